#!/usr/bin/env bash
# Builds helm from its Go module into bin/helm, of the version that this directory pins. Does nothing when it is there.
# The flags are those of the tests, as in hack/kube/build.sh.
set -euo pipefail
cd "$(dirname "$0")"
GO=${GO:-go}
out=$(cd ../.. && pwd)/bin

export CGO_ENABLED=0
stamp=$(cat go.mod go.sum build.sh <($GO version) | sha256sum | cut -d' ' -f1)
if [[ -x "$out/helm" && "$(cat "$out/helm.stamp" 2>/dev/null)" == "$stamp" ]]; then
  exit 0
fi
version=$($GO list -m -f '{{.Version}}' helm.sh/helm/v4)
echo "Building helm of $version"
mkdir -p "$out"
rm -f "$out/helm.stamp"
$GO build -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" -o "$out/helm" helm.sh/helm/v4/cmd/helm
echo "$stamp" >"$out/helm.stamp"
