#!/usr/bin/env bash
# Installs the routing sidecar of llm-d, of the release in the file `version`, into the user's cache, once, and prints the path of its
# program. With --installed it only prints it. KVASIR_SIDECAR_SOURCE names a checkout of the release to build in place of the module.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(cat "$here/version")
module=github.com/llm-d/llm-d-router/cmd/pd-sidecar
dir="${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/sidecar/$version"

if [ ! -x "$dir/pd-sidecar" ]; then
  [ "${1:-}" != --installed ] || { echo "the sidecar $version is not installed (hack/sidecar/install.sh)" >&2; exit 1; }
  mkdir -p "$dir"
  work=$(mktemp -d "$dir/.install.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [ -n "${KVASIR_SIDECAR_SOURCE:-}" ]; then
    (cd "$KVASIR_SIDECAR_SOURCE" && GOFLAGS=-mod=mod "${GO:-go}" build -o "$work/pd-sidecar" ./cmd/pd-sidecar) >&2 ||
      { echo "building the sidecar in $KVASIR_SIDECAR_SOURCE failed" >&2; exit 1; }
  else
    (cd "$work" && GOFLAGS= GOBIN="$work" "${GO:-go}" install "$module@$version") >&2 || { echo "installing the sidecar $version failed" >&2; exit 1; }
  fi
  mv -f "$work/pd-sidecar" "$dir/pd-sidecar" # at once: another test may install it at the same time
fi
echo "$dir/pd-sidecar"
