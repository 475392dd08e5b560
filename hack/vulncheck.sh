#!/usr/bin/env bash
# Asks the Go vulnerability database about the code that the programs really call. Without the database, or without the
# tool, it says so and does not fail; with them it fails when there is something to mend.
#
#   hack/vulncheck.sh [PACKAGE...]   ./cmd/... without any
set -euo pipefail
cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev}
tool=golang.org/x/vuln/cmd/govulncheck@v1.1.4

if ! curl -sfm 20 -o /dev/null "$database/index/db.json"; then
  echo "The vulnerability database $database cannot be reached: nothing was checked."
  exit 0
fi
if ! "${GO:-go}" run "$tool" -version >/dev/null 2>&1; then
  echo "$tool cannot be built here: nothing was checked."
  exit 0
fi
[ $# -gt 0 ] || set -- ./cmd/...
exec "${GO:-go}" run "$tool" -db "$database" "$@"
