#!/usr/bin/env bash
# The quick look before a commit: builds everything, then formats, vets, lints and tests (-short, no race detector) the packages
# that differ from BASE and those that import them, directly or not. BASE is the upstream of the branch, or else the last commit;
# files that are not committed yet always count. `make test` is what protects a change; this says within a minute what is plainly
# wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}
base=${BASE:-$(git rev-parse -q --verify '@{upstream}' || echo HEAD)}
base=$(git merge-base "$base" HEAD)

mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u)
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.go$' || true)
if ((${#sources[@]})); then
  unformatted=$(gofmt -l "${sources[@]}")
  if [ -n "$unformatted" ]; then
    echo "gofmt these: $unformatted"
    exit 1
  fi
fi

export CGO_ENABLED=0
$GO build ./...

# Packages of this module whose directory holds a changed file (testdata counts for the package above it), and all packages
# whose code or tests depend on one of them.
module=$($GO list -m)
changed=$(printf '%s\n' "${files[@]}" | sed -nE 's,/?[^/]*$,,; s,/testdata(/.*)?$,,; /./p' | sort -u)
mapfile -t packages < <($GO list -test -f '{{.ImportPath}}{{range .Deps}} {{.}}{{end}}' ./... 2>/dev/null |
  awk -v module="$module/" -v dirs="$changed" '
    BEGIN { n = split(dirs, d, "\n"); for (i = 1; i <= n; i++) is[module d[i]] = 1 }
    {
      package = $1; sub(/\.test$/, "", package); sub(/_test$/, "", package)
      for (i = 1; i <= NF; i++) { name = $i; sub(/\.test$/, "", name); if (name in is) { print package; break } }
    }' | grep -v '\[' | sort -u)
if ! ((${#packages[@]})); then
  echo "No package differs from $(git rev-parse --short "$base")."
  exit 0
fi
mapfile -t own < <(for dir in $changed; do $GO list "./$dir" 2>/dev/null || true; done)

$GO vet "${packages[@]}"
if ((${#own[@]})); then
  $GO tool -modfile=hack/tools/go.mod golangci-lint run --allow-serial-runners $(printf './%s\n' "${own[@]#"$module/"}")
fi
# Suites of real processes, clusters and browsers belong to make test.
mapfile -t tests < <(printf '%s\n' "${packages[@]}" | grep -vE "/test/(browser|chart|clients|cluster|crdcel|docs|e2e|envoy|integration|kube|lifecycle|podrunner|real|sim)(/|$)|/internal/sim/lab$" || true)
if ((${#tests[@]})); then
  $GO test -short -timeout 5m "${tests[@]}" | { grep -v 'no test files' || true; }
fi
echo "${#own[@]} packages differ from $(git rev-parse --short "$base"), ${#packages[@]} depend on them: built, vetted, linted, tested."
