#!/usr/bin/env bash
# Both directions of a path at once.
#
#   pktgen lab wire -- scripts/pktgen_sample04_both_ways.sh -r 50kpps
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=scripts/functions.sh
VERBOSE=0 && source "$here/functions.sh"
# shellcheck source=scripts/parameters.sh
source "$here/parameters.sh"
need_root
[[ -n $RX_IFACE ]] || err "-R: both ways need two interfaces of this machine" 2

run_one "$IFACE" "$RX_IFACE" "$SIZE" "$QUEUES" --both-ways
