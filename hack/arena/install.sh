#!/usr/bin/env bash
# Installs one router of requirements.txt, or the haproxy or nginx of this Debian release, into the user's cache, once.
# Prints a line: its version, its program, and the directory of libraries that it needs or nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$1
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/arena"
mkdir -p "$cache"

# debian NAME: a package with the libraries that this machine lacks, unpacked and not installed.
debian() {
  local dir="$cache/$name-debian" libraries
  if [ ! -x "$dir/usr/sbin/$name" ]; then
    command -v apt-get >/dev/null || { echo "installing $name: this is not Debian" >&2; exit 1; }
    work=$(mktemp -d "$cache/.install.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && apt-get download -qq "$@" 2>/dev/null) || { echo "downloading $* failed; try apt-get update" >&2; exit 1; }
    for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
    mv "$work/root" "$dir"
  fi
  libraries=$(find "$dir" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
  echo "$(LD_LIBRARY_PATH=$libraries "$dir/usr/sbin/$name" -v 2>&1 | grep -om1 '[0-9]\+\.[0-9]\+\.[0-9]\+') $dir/usr/sbin/$name $libraries"
}

case $name in
haproxy) debian haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1; exit ;;
nginx) debian nginx; exit ;;
esac

version=$(sed -n "s/^$name==\([^ ;]*\).*/\1/p" "$here/requirements.txt")
[ -n "$version" ] || { echo "no release of $name in $here/requirements.txt" >&2; exit 1; }
dir="$cache/$name-$version"
if [ ! -f "$dir/installed" ]; then
  command -v python3 >/dev/null || { echo "installing $name: there is no python3" >&2; exit 1; }
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check "$name==$version" >&2 ||
    { echo "installing $name $version from PyPI failed" >&2; exit 1; }
  touch "$dir/installed"
fi
echo "$version $dir/bin/$name"
