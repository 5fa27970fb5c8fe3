#!/usr/bin/env bash
# Small frames from one queue, as fast as it goes.
#
#   pktgen lab wire -- scripts/pktgen_sample01_one_queue.sh
#   scripts/pktgen_sample01_one_queue.sh -i eth31 -R eth32
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=scripts/functions.sh
VERBOSE=0 && source "$here/functions.sh"
# shellcheck source=scripts/parameters.sh
source "$here/parameters.sh"
need_root

run_one "$IFACE" "$RX_IFACE" "$SIZE" 1
