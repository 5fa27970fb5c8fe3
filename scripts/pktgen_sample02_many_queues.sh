#!/usr/bin/env bash
# Small frames from several queues at once, each with its own CPU (-t QUEUES;
# without it, one for each CPU).
#
#   pktgen lab wire --queues 2 -- scripts/pktgen_sample02_many_queues.sh -t 2
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=scripts/functions.sh
VERBOSE=0 && source "$here/functions.sh"
QUEUES=$(nproc)
# shellcheck source=scripts/parameters.sh
source "$here/parameters.sh"
need_root

run_one "$IFACE" "$RX_IFACE" "$SIZE" "$QUEUES"
