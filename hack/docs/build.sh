#!/usr/bin/env bash
# Makes the site of the documentation in out/docs, from the Markdown of docs/: with a search, and every link checked. It needs Python 3.11 or
# newer; the generator is installed into the user's cache, once for each version of requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/docs
if ! cmp -s hack/docs/requirements.txt "$home/requirements.txt"; then
  rm -rf "$home"
  mkdir -p "$home"
  "${PYTHON:-python3}" -m venv "$home/venv"
  "$home/venv/bin/pip" install --quiet --disable-pip-version-check --requirement hack/docs/requirements.txt
  cp hack/docs/requirements.txt "$home/requirements.txt"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pages"
"$home/venv/bin/python" hack/docs/stage.py . "$work/pages"
rm -rf out/docs
# -W: a link or an anchor that leads nowhere fails the build; --keep-going lists all of them.
"$home/venv/bin/sphinx-build" -W --keep-going -q -b html -d "$work/doctrees" "$work/pages" out/docs
echo "The site is in out/docs; open out/docs/index.html."
