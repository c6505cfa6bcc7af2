# Two stages: the first builds, the second holds the two binaries and nothing that builds.
FROM rust:1.95-slim-bookworm AS build
# jemalloc is built by its makefile. The image has a C compiler and no make.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY src src
COPY lua lua
# Not built here, but Cargo.toml names what is in it.
COPY benches benches
# What `dormouse -v` says of the build: docker build --build-arg COMMIT=... --build-arg DATE=...
ARG COMMIT=unknown
ARG DATE=unknown
RUN DORMOUSE_BUILD_COMMIT="$COMMIT" DORMOUSE_BUILD_DATE="$DATE" cargo build --release --locked --bins

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin dormouse \
    && mkdir -m 0700 /data && chown dormouse:dormouse /data
COPY --from=build /src/target/release/dormouse /src/target/release/token-cli /usr/local/bin/
COPY config/dormouse.toml config/redis.toml /etc/dormouse/
USER dormouse
# Without a configuration jobs are kept in /data/dormouse-data. Give it a volume.
WORKDIR /data
VOLUME /data
EXPOSE 7777 7778
ENTRYPOINT ["dormouse"]
