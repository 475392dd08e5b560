#!/usr/bin/env bash
# Measures internal/tokens/tokenizer beside tiktoken-go (o200k) and a plain encoding/json parse of the same text, in one run.
#
#   hack/bench-tokens/run.sh [PATTERN]       default: all but the worst inputs
#   hack/bench-tokens/run.sh Worst           a MiB of what is worst
#   BENCH_MODELS=DIR hack/bench-tokens/run.sh    also the models in DIR/*/tokenizer.json.gz (KEEP/goldens of
#                                                hack/goldens/run.sh)
#
# Cold     text never seen before, English and code
# Warm     ids of text that is all known
# Chat     bytes of a chat request to block keys, all but the newest turn known
# Prompt   bytes of a completion request of 100k tokens to block keys, never seen and all known
# Load     a tokenizer.json: time, memory kept, and the most needed
#
# cpu-µs/op and cpu-MB/s are of the process's CPU time, which other work on the machine disturbs less than the clock.
# The text is of Go's standard library: its sources, and the English in their comments.
set -euo pipefail
cd "$(dirname "$0")"
exec "${GO:-go}" test -run '^$' -bench "${1:-Cold|Warm|Chat|Prompt|Load}" -benchtime "${BENCHTIME:-1s}" -timeout 60m .
