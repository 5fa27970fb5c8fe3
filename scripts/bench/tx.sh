#!/usr/bin/env bash
# Frames of 64 octets a second: pktgen's transmit ring beside trafgen's, on the
# same veth pair, in turns, counted by the receiving port (the kernel's counter
# over measured time). Median, least and most of RUNS; the ratio run by run.
#
#   scripts/bench/tx.sh            5 runs of a second each
#   RUNS=9 scripts/bench/tx.sh
#
# The receiving end is the same for all: nobody listens, no XDP, no GRO, and the
# frames go to a MAC that nobody has, so that its IP stack drops them at once.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
pktgen=${PKTGEN:-$here/../../pktgen}
RUNS=${RUNS:-5}
((EUID == 0)) || { echo "run it as root: it makes network namespaces" >&2; exit 1; }
[[ -x $pktgen ]] || { echo "no $pktgen: run make build first" >&2; exit 1; }

tx=pktgen-bench-$$-tx rx=pktgen-bench-$$-rx dir=$(mktemp -d)
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
	if [[ -n ${sender:-} ]]; then kill "$sender" 2>/dev/null; wait "$sender" 2>/dev/null; fi || true
	ip netns del "$tx" 2>/dev/null || true
	ip netns del "$rx" 2>/dev/null || true
	rm -r "$dir"
}
trap cleanup EXIT
for ns in "$tx" "$rx"; do
	ip netns add "$ns"
	ip netns exec "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
done
ip -n "$tx" link add eth31 numtxqueues 2 numrxqueues 2 type veth peer name eth32 numtxqueues 2 numrxqueues 2 netns "$rx"
ip -n "$tx" link set eth31 up
ip -n "$rx" link set eth32 up

cat >"$dir/frame.cfg" <<'EOF'
{
  0x02, 0x00, 0x00, 0x00, 0x00, 0x99, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00,
  0x45, 0x00, 0x00, 0x2e, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xae, 0x97, 198, 18, 0, 1, 198, 18, 0, 2,
  0x04, 0x00, 0x00, 0x09, 0x00, 0x1a, 0x00, 0x00, fill(0x00, 18)
}
EOF

received() { ip netns exec "$rx" cat /sys/class/net/eth32/statistics/rx_packets; }

# rate COMMAND...: frames/s at the receiving port, over a second in mid-run.
rate() {
	local before n0 t0 n1 t1 tries=0
	before=$(received)
	timeout -k 1 15 "$@" >"$dir/output" 2>&1 & # ends the command's own children too
	sender=$!
	while (($(received) < before + 1000)); do
		if ! kill -0 "$sender" 2>/dev/null || ((++tries > 200)); then
			echo "nothing sent by: $*" >&2
			cat "$dir/output" >&2
			exit 1
		fi
		sleep 0.05
	done
	sleep 0.3
	n0=$(received) t0=$(date +%s%N)
	sleep 1
	n1=$(received) t1=$(date +%s%N)
	kill "$sender"
	wait "$sender" || true
	sender=
	echo $(((n1 - n0) * 1000000000 / (t1 - t0)))
}

ours() { rate "$pktgen" tx --iface "$tx/eth31" --size 64 --dst-mac 02:00:00:00:00:99 "$@"; }
theirs() { rate ip netns exec "$tx" trafgen --dev eth31 --conf "$dir/frame.cfg" --cpus "$1"; }

# busy: per cent of all CPUs that something else takes, over a second.
busy() {
	{ head -1 /proc/stat; sleep 1; head -1 /proc/stat; } | awk '
		{ idle = $5 + $6 - idle; all = -all; for (i = 2; i <= 9; i++) all += $i }
		END { printf "%d", 100 * (1 - idle / all) }'
}
others=$(busy)

peer=
if command -v trafgen >/dev/null; then peer=trafgen; else echo "trafgen is not installed (Debian: netsniff-ng): left out"; fi
for ((i = 1; i <= RUNS; i++)); do
	ours --cpus 0 >>"$dir/one"
	[[ -n $peer ]] && theirs 1 >>"$dir/trafgen"
	((2 <= $(nproc))) && ours --queues 2 --cpus 0,1 >>"$dir/two"
done

# line NAME FILE: median, least and most, in M frames/s.
line() {
	sort -n "$2" | awk -v name="$1" '{ v[NR] = $1 / 1e6 }
		END { printf "%-28s %6.3f   (%.3f to %.3f)\n", name, v[int((NR + 1) / 2)], v[1], v[NR] }'
}
# ratio NAME FILE FILE: the same of the ratio of each pair of runs.
ratio() {
	paste "$2" "$3" | awk '{ print $1 / $2 }' | sort -n | awk -v name="$1" '{ v[NR] = $1 }
		END { printf "%-28s %6.2f   (%.2f to %.2f)\n", name, v[int((NR + 1) / 2)], v[1], v[NR] }'
}
echo "M frames/s at 64 octets, median of $RUNS (least to most); $(uname -r), $(nproc) CPUs"
line "pktgen, one worker" "$dir/one"
[[ -s $dir/two ]] && line "pktgen, two workers" "$dir/two"
[[ -n $peer ]] && line "trafgen, one process" "$dir/trafgen"
[[ -n $peer ]] && ratio "pktgen / trafgen" "$dir/one" "$dir/trafgen"
[[ -s $dir/two ]] && ratio "two workers / one" "$dir/two" "$dir/one"
((others < 10)) || echo "something else took $others % of the CPUs: measure again on a quiet machine"
