# One image with every program of Kvasir; the command chooses. Static binaries on an empty file system, no root.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /out/ ./cmd/...

FROM scratch
COPY --from=build /out/ /usr/local/bin/
COPY LICENSE /LICENSE
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/picker"]
