#!/bin/sh
# Checks the API types against the conventions of Kubernetes APIs with the linter pinned in hack/tools.
set -eu
cd "$(dirname "$0")/.."
exec go tool -modfile=hack/tools/go.mod golangci-lint-kube-api-linter run -c hack/kube-api-linter.yml "$@" ./api/...
