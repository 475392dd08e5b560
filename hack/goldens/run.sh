#!/usr/bin/env bash
# Compares internal/tokens/tokenizer with the reference library on models whose files may not be kept in the repository, and the
# prompts of their chat templates, to the ids, with Python's Jinja2 where python3 has it.
#
#   hack/goldens/run.sh [MODEL...]     default: all that package.json names
#   FUZZ=15000 hack/goldens/run.sh     random texts per model
#   hack/goldens/run.sh --testdata     makes internal/tokens/tokenizer/testdata/{splits.jsonl.gz,spm.jsonl.gz,spm/} again
#
# It installs the packages of package.json (the Rust library `tokenizers` and models' tokenizer.json) with npm into a
# temporary directory, makes goldens there, and runs the package's tests on them. Needs Node.js 20, npm, about 1.2 GB
# on disk. KEEP=DIR keeps packages and goldens in DIR for the next run.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=hack/goldens
go=${GO:-go}

work=${KEEP:-$(mktemp -d)}
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
cp "$here/package.json" "$work/"
[ -d "$work/node_modules/tokenizers" ] || npm install --prefix "$work" --no-audit --no-fund --ignore-scripts --no-package-lock --loglevel error
export GOLDENS_MODULES=$work

if [ "${1:-}" = --testdata ]; then
  data=internal/tokens/tokenizer/testdata
  node "$here/splits.mjs" "$data/splits.jsonl.gz"
  node "$here/spm.mjs" "$data/spm" "$data/spm.jsonl.gz" 100
  exit
fi

models=("$@")
if [ ${#models[@]} -eq 0 ]; then
  models=(gpt2 qwen2_5 mistral_nemo gptoss deepseek_v3 llama3_1 llama2 gemma2 gemma3)
fi
rm -rf "$work/goldens"
node "$here/models.mjs" "$work/goldens" "${FUZZ:-15000}" "${models[@]}"
failed=0
"$go" test ./internal/tokens/tokenizer -count=1 -timeout 60m -run 'Goldens|Configurations|Cached|Worst' -v -goldens "$work/goldens" |
  grep -E '^ok|FAIL|exact|wrong|around|got|want|^panic' || failed=1
if python3 -c 'import jinja2' 2>/dev/null; then
  python3 "$here/endtoend.py" "$work/goldens" "${models[@]}"
  node "$here/endtoend.mjs" "$work/goldens"
  "$go" test ./internal/tokens/chatprompt -count=1 -run EndToEnd -v -endtoend "$work/goldens" -tokenizers "$work/goldens" |
    grep -E '^ok|FAIL|exact|got|want|^panic' || failed=1
else
  echo "python3 has no jinja2: the prompts of chat templates are not compared"
fi
exit $failed
