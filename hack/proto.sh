#!/bin/sh
# Generates Go code from the .proto files. Compiler and plugins are Go modules, pinned in hack/tools/proto/go.mod.
#
#   hack/proto.sh          writes *.pb.go beside the .proto files
#   hack/proto.sh --check  writes nothing; fails when they are stale
set -eu
cd "$(dirname "$0")/.."

files="internal/reportpb/report.proto internal/rpc/report.proto internal/peerpb/peer.proto internal/rpc/peer.proto internal/rpc/files.proto internal/rpc/operate.proto internal/operator/keda/externalscaler.proto"
made="internal/reportpb/report.pb.go internal/rpc/report_grpc.pb.go internal/peerpb/peer.pb.go internal/rpc/peer_grpc.pb.go internal/rpc/files.pb.go internal/rpc/files_grpc.pb.go internal/rpc/operate.pb.go internal/rpc/operate_grpc.pb.go internal/operator/keda/externalscaler.pb.go internal/operator/keda/externalscaler_grpc.pb.go"

root=$PWD
if [ "${1:-}" = --check ]; then
	root=$(mktemp -d)
	trap 'rm -rf "$root"' EXIT INT TERM
	for f in $files; do
		mkdir -p "$root/$(dirname "$f")"
		cp "$f" "$root/$f"
	done
fi
# shellcheck disable=SC2086
"${GO:-go}" -C hack/tools/proto run . "$root" $files
if [ "${1:-}" = --check ]; then
	for f in $made; do
		diff -u "$f" "$root/$f" || {
			echo "generated files are stale: run hack/proto.sh" >&2
			exit 1
		}
	done
fi
