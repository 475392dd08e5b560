#!/usr/bin/env bash
# Runs every fuzz target of the module for a while each: hack/fuzz.sh [DURATION]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-5s}
go=${GO:-go}
count=0
while IFS=: read -r file target; do
  package=./$(dirname "$file")
  echo "-- $package $target"
  "$go" test "$package" -run "^\$" -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 5x -parallel 2
  count=$((count + 1))
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/' | sort)
[ "$count" -gt 0 ] || { echo "no fuzz targets found" >&2; exit 1; }
echo "$count fuzz targets ran"
