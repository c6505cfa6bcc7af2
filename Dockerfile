# Two stages: the first builds, the second contains only dormouse, and token-cli, which runs it.
FROM rust:1.95-slim-bookworm AS build
# jemalloc is built by its makefile. The image has a C compiler and no make.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY src src
COPY lua lua
# Served by both ports.
COPY docs/openapi.yaml docs/openapi-admin.yaml docs/
# Not built here, but Cargo.toml refers to these files.
COPY benches benches
# A member of the workspace, which cargo requires to exist.
COPY clients/rust clients/rust
# Build information for `dormouse -v`: docker build --build-arg COMMIT=... --build-arg DATE=...
ARG COMMIT=unknown
ARG DATE=unknown
RUN DORMOUSE_BUILD_COMMIT="$COMMIT" DORMOUSE_BUILD_DATE="$DATE" cargo build --release --locked --bins

FROM debian:bookworm-slim
# Push calls https, and a Redis may speak TLS: both need the certificates of the authorities.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 dormouse \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin dormouse \
    && mkdir -m 0700 /data && chown 10001:10001 /data
COPY --from=build /src/target/release/dormouse /src/target/release/token-cli /usr/local/bin/
COPY config/dormouse.toml config/redis.toml /etc/dormouse/
# A number, since runAsNonRoot rejects names.
USER 10001:10001
# A server on 127.0.0.1 inside a container is unreachable from outside. The admin port stays there, for `docker exec`.
# To publish it too, set DORMOUSE_ADMIN_HOST=0.0.0.0, and an account: DORMOUSE_ACCOUNTS_OPERATOR=<password>.
ENV DORMOUSE_HOST=0.0.0.0
# Without a configuration jobs are kept in /data/dormouse-data. Give it a volume.
WORKDIR /data
VOLUME /data
EXPOSE 7777 7778
# DORMOUSE_ADMIN gives the address of an admin port elsewhere or with TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["dormouse", "health"]
ENTRYPOINT ["dormouse"]
