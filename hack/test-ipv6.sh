#!/usr/bin/env bash
# Runs tests in a network of their own that has IPv6 only, or both families (root, Linux). The first argument is the family of the
# API server, of Services and of pods: IPv6, or both with the one that pods have first ("IPv6,IPv4", "IPv4,IPv6"). The others are
# arguments of go test. With IPv6 alone there is no address of IPv4, not even 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
IPv6 | IPv6,IPv4 | IPv4,IPv6) export KVASIR_TEST_FAMILY=$1 ;;
*) echo "usage: test-ipv6.sh IPv6|IPv6,IPv4|IPv4,IPv6 ARGUMENT..." >&2; exit 2 ;;
esac
shift
"${GO:-go}" mod download # there is no network afterwards
exec unshare --net --mount bash -euo pipefail -c '
ip link set lo up
if [ "$KVASIR_TEST_FAMILY" = IPv6 ]; then ip address delete 127.0.0.1/8 dev lo; fi
if [[ "$KVASIR_TEST_FAMILY" = IPv6* ]]; then
  hosts=$(mktemp)
  echo ::1 localhost >"$hosts"
  mount --bind "$hosts" /etc/hosts # of this mount namespace
  rm "$hosts"
fi
# Every address of fd00:6b76::/32 is one of this machine, as those of 127.0.0.0/8 are.
sysctl --quiet --write net.ipv6.ip_nonlocal_bind=1
ip -6 route add local fd00:6b76::/32 dev lo
ip -6 address add fd00:6b76::1/128 dev lo
if [ "$KVASIR_TEST_FAMILY" = IPv4,IPv6 ]; then ip address add 192.0.2.10/32 dev lo; fi
exec "$@"' -- "${GO:-go}" test "$@"
