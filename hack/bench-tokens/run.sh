#!/usr/bin/env bash
# Measures internal/tokenizer beside tiktoken-go (o200k) and a plain encoding/json parse of the same text, in one run.
#
#   hack/bench-tokens/run.sh [PATTERN]       default: all but the worst inputs
#   hack/bench-tokens/run.sh Worst           a MiB of what is worst
#   BENCH_MODELS=DIR hack/bench-tokens/run.sh    also the models in DIR/*/tokenizer.json.gz (KEEP/goldens of
#                                                hack/goldens/run.sh)
#
# cpu-µs/op and cpu-MB/s are of the process's CPU time, which other work on the machine disturbs less than the clock.
# The text is the source of Go's standard library: English and code.
set -euo pipefail
cd "$(dirname "$0")"
exec "${GO:-go}" test -run '^$' -bench "${1:-Cold|Conversation|Prompt|WarmIDs|Load}" -benchtime "${BENCHTIME:-1s}" .
