#!/usr/bin/env bash
# Runs every fuzz target of the module for a while each: hack/fuzz.sh [DURATION]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-5s}
go=${GO:-go}
count=0

# fuzz runs one target. When the time ends while an input runs, Go sometimes calls that a failure without having found
# any ("context deadline exceeded", and no input written): then the target is run again, and only the last run is shown.
fuzz() {
  local log try
  log=$(mktemp)
  for try in 1 2 3; do
    if "$go" test "$1" -run "^\$" -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 5x -parallel 2 >"$log" 2>&1; then
      cat "$log"
      rm -f "$log"
      return 0
    fi
    if ! grep -q '^ *context deadline exceeded$' "$log" || grep -q 'Failing input written' "$log"; then
      break
    fi
    [ "$try" = 3 ] || echo "$2 ended in the middle of an input; it runs again."
  done
  cat "$log"
  rm -f "$log"
  return 1
}

while IFS=: read -r file target; do
  package=./$(dirname "$file")
  echo "-- $package $target"
  fuzz "$package" "$target"
  count=$((count + 1))
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/' | sort)
[ "$count" -gt 0 ] || { echo "no fuzz targets found" >&2; exit 1; }
echo "$count fuzz targets ran"
