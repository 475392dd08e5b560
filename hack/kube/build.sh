#!/usr/bin/env bash
# Builds a Kubernetes control plane from Go modules into bin/kube, for test/kube: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler and kubectl. Does nothing when bin/kube has what this directory pins.
#
# The flags are those of the tests (CGO_ENABLED=0, paths not trimmed), so that compiled packages are shared with them.
# The first build takes about 9 minutes of processor time and 3 GB of Go's build cache.
set -euo pipefail
cd "$(dirname "$0")"
GO=${GO:-go}
out=$(cd ../.. && pwd)/bin/kube

export CGO_ENABLED=0
stamp=$(cat go.mod go.sum build.sh <($GO version) | sha256sum | cut -d' ' -f1)
if [[ "$(cat "$out/stamp" 2>/dev/null)" == "$stamp" ]]; then
  exit 0
fi
mkdir -p "$out"
rm -f "$out/stamp"

ours=$($GO -C ../.. list -m -f '{{.Version}}' k8s.io/apimachinery)
theirs=$($GO list -m -f '{{with .Replace}}{{.Version}}{{end}}' k8s.io/apimachinery)
if [[ $ours != "$theirs" ]]; then
  echo "the project has Kubernetes $ours, hack/kube/go.mod $theirs: run hack/kube/pin.sh" >&2
  exit 1
fi

version=$($GO list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${version#v}"
base=k8s.io/component-base/version
link="-s -w -X $base.gitVersion=$version -X $base.gitMajor=$major -X $base.gitMinor=$minor -X $base.gitTreeState=clean"
for package in go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubectl}; do
  program=${package##*/}
  [[ $program == v3 ]] && program=etcd
  echo "Building $program of $($GO list -f '{{.Module.Version}}' "$package")"
  $GO build -ldflags "$link" -o "$out/$program" "$package"
done
echo "$stamp" >"$out/stamp"
