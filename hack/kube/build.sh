#!/usr/bin/env bash
# Builds a Kubernetes control plane from Go modules into bin/kube, for test/kube: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler and kubectl. With the argument node also kubelet and kube-proxy, for hack/cluster.
# Does nothing when bin/kube has what this directory pins.
#
# The flags are those of the tests (CGO_ENABLED=0, paths not trimmed), so that compiled packages are shared with them.
# The first build takes about 9 minutes of processor time and 3 GB of Go's build cache.
set -euo pipefail
cd "$(dirname "$0")"
GO=${GO:-go}
out=$(cd ../.. && pwd)/bin/kube

export CGO_ENABLED=0
# The compiler and the linker end soon: without garbage collection they need a fifth less processor time. The limit is for each of them.
export GOGC=${GOGC:-off} GOMEMLIMIT=${GOMEMLIMIT:-2GiB}
stamp=$(cat go.mod go.sum build.sh <($GO version) | sha256sum | cut -d' ' -f1)
packages=() stamps=()
want() { # STAMP PACKAGE...: packages that are not built as pinned
  if [[ "$(cat "$out/$1" 2>/dev/null)" != "$stamp" ]]; then
    stamps+=("$1") packages+=("${@:2}")
    rm -f "$out/$1"
  fi
}
want stamp go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubectl}
[[ "${1:-}" != node ]] || want stamp-node k8s.io/kubernetes/cmd/{kubelet,kube-proxy}
[[ ${#packages[@]} -gt 0 ]] || exit 0
mkdir -p "$out"

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
for package in "${packages[@]}"; do
  program=${package##*/}
  [[ $program == v3 ]] && program=etcd
  echo "Building $program of $($GO list -f '{{.Module.Version}}' "$package")"
done
$GO build -ldflags "$link" -o "$out/" "${packages[@]}" # together: while one is linked, others are compiled
[[ ! -e $out/server ]] || mv "$out/server" "$out/etcd" # Go names it by its directory
for name in "${stamps[@]}"; do
  echo "$stamp" >"$out/$name"
done
