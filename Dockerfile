# docker build -t hqdl . && docker run --rm -v "$PWD:/data" hqdl plan specs/my.toml
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist --features parquet --bin hqdl

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/dist/hqdl /usr/local/bin/hqdl
# Facts and journal: mount a volume here, or they go with the container.
ENV HQDL_CACHE=/cache
VOLUME ["/cache"]
WORKDIR /data
ENTRYPOINT ["hqdl"]
