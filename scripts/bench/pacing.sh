#!/usr/bin/env bash
# How evenly frames arrive: pktgen's pacing beside trafgen's and tcpreplay's, on the
# same veth pair, one after the other, by the kernel's own receive stamps as
# "pktgen rx" sees them. All three send frames of 64 octets that it knows as test
# frames; trafgen and tcpreplay the same one again and again, without a checksum.
#
#   scripts/bench/pacing.sh                 10 and 100 kpps, 3 s each
#   RATES=1000 SECONDS_EACH=5 scripts/bench/pacing.sh
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
pktgen=${PKTGEN:-$here/../../pktgen}
RATES=${RATES:-10000 100000}
SECONDS_EACH=${SECONDS_EACH:-3}
((EUID == 0)) || { echo "run it as root: it makes network namespaces" >&2; exit 1; }
[[ -x $pktgen ]] || { echo "no $pktgen: run make build first" >&2; exit 1; }

tx=pktgen-pacing-$$-tx rx=pktgen-pacing-$$-rx dir=$(mktemp -d)
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
	for p in ${sender:-} ${receiver:-}; do kill "$p" 2>/dev/null; wait "$p" 2>/dev/null; done || true
	ip netns del "$tx" 2>/dev/null || true
	ip netns del "$rx" 2>/dev/null || true
	rm -r "$dir"
}
trap cleanup EXIT
for ns in "$tx" "$rx"; do
	ip netns add "$ns"
	ip netns exec "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
done
ip -n "$tx" link add eth31 type veth peer name eth32 netns "$rx"
ip -n "$tx" link set eth31 up
ip -n "$rx" link set eth32 up

# The frame, once as trafgen wants it, once as the only one of a capture file.
frame=(02 00 00 00 00 99 02 00 00 00 00 01 08 00
	45 00 00 2e 00 00 40 00 40 11 ae 97 c6 12 00 01 c6 12 00 02
	04 00 00 09 00 1a 00 00
	9e 37 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00)
printf '{ %s }\n' "$(printf '0x%s, ' "${frame[@]}" | sed 's/, $//')" >"$dir/frame.cfg"
{
	printf '\xd4\xc3\xb2\xa1\x02\x00\x04\x00\0\0\0\0\0\0\0\0\xff\xff\0\0\x01\0\0\0' # pcap, Ethernet
	printf '\0\0\0\0\0\0\0\0\x3c\0\0\0\x3c\0\0\0'
	printf '%b' "$(printf '\\x%s' "${frame[@]}")"
} >"$dir/frame.pcap"

# key DOCUMENT PATH: a number of the receiver's document, as it is indented.
key() {
	awk -v want="$2" '
		match($0, /^ */) { depth = RLENGTH / 2 }
		{ k = $1; gsub(/[":]/, "", k); path[depth] = k; p = ""; for (i = 1; i <= depth; i++) p = p "/" path[i] }
		p == "/" want { v = $2; sub(/,$/, "", v); print v; exit }' "$1"
}

# measure NAME RATE COMMAND...
measure() {
	local name=$1 rate=$2
	shift 2
	"$pktgen" rx --iface "$rx/eth32" --cpus 1 --json >"$dir/document" 2>"$dir/log" &
	receiver=$!
	for ((i = 0; i < 200; i++)); do grep -q receiving "$dir/log" && break; sleep 0.05; done
	timeout -k 1 -s INT $((SECONDS_EACH + 3)) "$@" >"$dir/output" 2>&1 &
	sender=$!
	sleep "$SECONDS_EACH"
	kill -INT "$receiver"
	wait "$receiver" || true
	receiver=
	kill "$sender" 2>/dev/null || true
	wait "$sender" 2>/dev/null || true
	sender=
	if [[ -z $(key "$dir/document" rx/gap_ns/p50) ]]; then
		echo "nothing arrived of: $*" >&2
		cat "$dir/output" >&2
		exit 1
	fi
	printf '%-10s %9d %12.1f' "$name" "$rate" "$(key "$dir/document" rx/pps)"
	for p in p50 p99 p99_9 max; do
		printf ' %11.1f' "$(awk -v ns="$(key "$dir/document" "rx/gap_ns/$p")" 'BEGIN { print ns / 1000 }')"
	done
	echo
}

echo "gaps between arrivals in us, by the kernel's receive stamps; $(uname -r), $(nproc) CPUs"
printf '%-10s %9s %12s %11s %11s %11s %11s\n' sender asked/s arrived/s p50 p99 p99.9 longest
for rate in $RATES; do
	measure pktgen "$rate" "$pktgen" tx --iface "$tx/eth31" --dst-mac 02:00:00:00:00:99 --cpus 0 --rate "$rate"
	if command -v trafgen >/dev/null; then
		measure "trafgen -b" "$rate" ip netns exec "$tx" trafgen --dev eth31 --conf "$dir/frame.cfg" --cpus 1 -b "${rate}pps"
		measure "trafgen -t" "$rate" ip netns exec "$tx" trafgen --dev eth31 --conf "$dir/frame.cfg" --cpus 1 -t $((1000000000 / rate))ns
	fi
	if command -v tcpreplay >/dev/null; then
		measure tcpreplay "$rate" ip netns exec "$tx" taskset -c 0 tcpreplay -q -i eth31 --loop 0 -K --pps "$rate" "$dir/frame.pcap"
	fi
done
for peer in trafgen tcpreplay; do
	command -v "$peer" >/dev/null || echo "$peer is not installed: left out"
done
