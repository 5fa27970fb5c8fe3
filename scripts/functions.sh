# shellcheck shell=bash
# Shared by the samples: messages (err MESSAGE [EXIT_CODE]), checks, one run, one column of its result.

err() { echo "ERROR: $1" >&2; exit "${2:-1}"; }
info() { ((VERBOSE)) && echo "INFO: $*" >&2; return 0; }

# PKTGEN is the binary: beside the scripts, else the one on the PATH.
SCRIPTS=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
PKTGEN=${PKTGEN:-$SCRIPTS/../pktgen}
[[ -x $PKTGEN ]] || PKTGEN=$(command -v pktgen) || err "no pktgen: run make build first"

# need_root: sending takes CAP_NET_RAW, which root has; so has the lab's owner.
need_root() { ((EUID == 0)) || err "run it as root, or in the lab: $PKTGEN lab wire -- $0"; }

# traffic ARGS...: what the parameters ask for, as flags of pktgen.
traffic() {
	local flags=(--rate "$RATE" --dport "$DST_PORT")
	[[ $COUNT -gt 0 ]] && flags+=(--count "$COUNT")
	[[ $COUNT -eq 0 ]] && flags+=(--duration "$DURATION")
	[[ -n $DEST_IP ]] && flags+=(--dst "$DEST_IP")
	[[ -n $DST_MAC ]] && flags+=(--dst-mac "$DST_MAC")
	((IPV6)) && flags+=(--ipv6)
	printf '%s\n' "${flags[@]}"
}

# run_one IFACE RX_IFACE SIZE QUEUES ARGS...: one run; with no RX_IFACE it only sends.
run_one() {
	local tx=$1 rx=$2 size=$3 queues=$4
	shift 4
	local flags
	mapfile -t flags < <(traffic)
	flags+=(--queues "$queues" "$@")
	[[ -n $size ]] && flags+=(--size "$size")
	if [[ -n $rx ]]; then
		info "$PKTGEN run --tx $tx --rx $rx ${flags[*]}"
		"$PKTGEN" run --tx "$tx" --rx "$rx" "${flags[@]}"
	else
		info "$PKTGEN tx --iface $tx ${flags[*]}"
		"$PKTGEN" tx --iface "$tx" "${flags[@]}"
	fi
}

# value SECTION KEY < RESULT.json: a number at the top of tx or rx.
value() {
	awk -v section="\"$1\": {" -v key="\"$2\":" '
		index($0, "  " section) == 1 { inside = 1 }
		inside && $1 == key { gsub(",", "", $2); print $2; exit }
		inside && $0 == "  }," { exit }'
}
