#!/usr/bin/env bash
# The frame sizes of RFC 2544, one run each, and a table of them all.
#
#   pktgen lab wire -- scripts/pktgen_sample03_sizes.sh -T 1s
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=scripts/functions.sh
VERBOSE=0 && source "$here/functions.sh"
# shellcheck source=scripts/parameters.sh
source "$here/parameters.sh"
need_root

printf '%6s %14s %12s %12s %12s\n' size frames frames/s 'Mbit/s L1' lost
for size in 64 128 256 512 1024 1280 1518; do
	((IPV6 && size < 84)) && size=84
	result=$(run_one "$IFACE" "$RX_IFACE" "$size" "$QUEUES" --json) || err "size $size: $result"
	lost=-
	[[ -n $RX_IFACE ]] && lost=$(value rx lost <<<"$result")
	printf '%6s %14s %12.0f %12.1f %12s\n' "$size" "$(value tx frames <<<"$result")" \
		"$(value tx pps <<<"$result")" "$(value tx l1_bps <<<"$result" | awk '{ printf "%f", $1 / 1e6 }')" "$lost"
done
