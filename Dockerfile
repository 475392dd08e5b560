# One program of Kvasir, static, on a file system without anything else, as a user that is not root:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg COMPONENT=picker -t kvasir/picker:dev .
#
# COMPONENT is manager, picker, reporter or vllmsim. `make images` makes the same images without a container daemon.
ARG BASE=scratch

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG COMPONENT TARGETOS TARGETARCH VERSION=dev REVISION=
ARG PACKAGE=github.com/kvasir-dev/kvasir/internal/version
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
  -ldflags="-s -w -X $PACKAGE.release=$VERSION -X $PACKAGE.revision=$REVISION" -o /out/program ./cmd/${COMPONENT:?is manager, picker, reporter or vllmsim}
RUN mkdir -p /out/etc && printf 'root:x:0:0:root:/:\nnonroot:x:65532:65532:nonroot:/:\n' >/out/etc/passwd && printf 'root:x:0:\nnonroot:x:65532:\n' >/out/etc/group

# BASE may be a distroless static image. What programs need of one is here as well: users, and in the programs themselves
# the certificates of authorities, which count where the base has no file of them.
FROM ${BASE}
ARG COMPONENT VERSION=dev REVISION=
LABEL org.opencontainers.image.title="kvasir-${COMPONENT}" \
      org.opencontainers.image.source="https://github.com/kvasir-dev/kvasir" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/etc/ /etc/
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /out/program /kvasir
USER 65532:65532
ENTRYPOINT ["/kvasir"]
