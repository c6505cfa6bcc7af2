# Two stages: the first builds, the second holds the two binaries and nothing that builds.
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
# Not built here, but Cargo.toml names what is in it.
COPY benches benches
# A member of the workspace, which cargo wants to see.
COPY clients/rust clients/rust
# What `dormouse -v` says of the build: docker build --build-arg COMMIT=... --build-arg DATE=...
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
# A number: runAsNonRoot refuses a name.
USER 10001:10001
# What listens on 127.0.0.1 inside a container is reached by nobody outside. The admin port stays there: `docker exec`
# reaches it. To publish it too, set DORMOUSE_ADMIN_HOST=0.0.0.0, and an account: DORMOUSE_ACCOUNTS_OPERATOR=<password>.
ENV DORMOUSE_HOST=0.0.0.0
# Without a configuration jobs are kept in /data/dormouse-data. Give it a volume.
WORKDIR /data
VOLUME /data
EXPOSE 7777 7778
# An admin port that is elsewhere, or speaks TLS, is named by DORMOUSE_ADMIN.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["dormouse", "health"]
ENTRYPOINT ["dormouse"]
