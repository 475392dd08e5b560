#!/bin/sh
# Checks the prose of Markdown pages and Go comments with Vale, except for what todo.txt lists. Vale reads Go comments with a
# parser written in C, so without a C compiler it is skipped; test/docs applies the same list everywhere. --all ignores todo.txt.
set -eu
cd "$(dirname "$0")/../.."
GO=${GO:-go}
if ! command -v "${CC:-cc}" >/dev/null 2>&1; then
	echo "vale skipped: it needs a C compiler"
	exit 0
fi
todo=hack/vale/todo.txt
[ "${1:-}" = --all ] && todo=/dev/null
git ls-files '*.md' '*.go' | grep -vE '/testdata/|\.pb\.go$|/zz_generated|^docs/(api|glossary)\.md$' | awk -v todo="$todo" '
	BEGIN { while ((getline line < todo) > 0) if (line !~ /^(#|$)/) skip[line] = 1 }
	{
		unit = $0
		if (/\.go$/) { sub(/\/[^\/]*$/, "", unit); if (/_test\.go$/) unit = unit "/*_test.go" }
		if (!(unit in skip)) print
	}' | CGO_ENABLED=1 xargs "$GO" tool -modfile=hack/vale/go.mod vale --config hack/vale/.vale.ini --output line
