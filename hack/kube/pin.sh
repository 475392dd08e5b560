#!/usr/bin/env bash
# Writes hack/kube/go.mod: Kubernetes of the version that the project's own k8s.io modules have, and whatever else the
# two have in common at the project's versions, so that the tests and these programs share compiled packages. Run it
# after the project's k8s.io modules were upgraded.
#
# k8s.io/kubernetes refers to its staging directories; outside its repository they are modules of their own.
set -euo pipefail
cd "$(dirname "$0")"
GO=${GO:-go}

staging=$($GO -C ../.. list -m -f '{{.Version}}' k8s.io/apimachinery) # v0.MINOR.PATCH
kubernetes=v1.${staging#v0.}
theirs=$($GO mod download -json "k8s.io/kubernetes@$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')

{
  echo "module github.com/kvasir-dev/kvasir/hack/kube"
  echo
  grep '^go ' "$theirs"
  grep '^godebug ' "$theirs"
  echo
  echo "tool ("
  printf '\t%s\n' go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-proxy,kube-scheduler,kubectl,kubelet}
  echo ")"
  echo
  echo "require k8s.io/kubernetes $kubernetes"
  echo
  echo "require ("
  comm -12 <(sed -n 's/^\t\([^ ]*\) v.*/\1/p' ../../go.mod | sort) <(sed -n 's/^\t\([^ ]*\) v.*/\1/p' "$theirs" | sort) |
    while read -r module; do
      sed -n "s#^\t\($module v[^ ]*\).*#\t\1#p" ../../go.mod
    done
  echo ")"
  echo
  echo "replace ("
  sed -n "s#^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*#\t\1 => \1 $staging#p" "$theirs"
  echo ")"
} >go.mod
$GO mod tidy
