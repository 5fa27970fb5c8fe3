# shellcheck shell=bash disable=SC2034 # functions.sh uses them
# The parameters of every sample, with the letters of the kernel's pktgen
# scripts (samples/pktgen). The lab gives the interfaces in PKTGEN_TX and PKTGEN_RX.

usage() {
	cat <<EOF
Usage: $0 [-i IFACE] [-R RX_IFACE] [-s SIZE] [-d DEST_IP] [-m DST_MAC]
          [-p DST_PORT] [-t QUEUES] [-n COUNT] [-r RATE] [-T TIME] [-6] [-v] [-h]
  -i  sending interface (${IFACE:-none}), or NAMESPACE/INTERFACE
  -R  receiving interface (${RX_IFACE:-none}); without one it only sends
  -s  frame size, destination MAC through FCS (${SIZE:-the least that fits})
  -d  destination IP
  -m  destination MAC
  -p  destination UDP port ($DST_PORT)
  -t  queues ($QUEUES)
  -n  number of frames, 0: by time ($COUNT)
  -r  rate: max, 100kpps, 10%, 1Gbps ($RATE)
  -T  time, where -n is 0 ($DURATION)
  -6  IPv6
  -v  say what is run
EOF
}

IFACE=${PKTGEN_TX:-}
IFACE=${IFACE%%,*}
RX_IFACE=${PKTGEN_RX:-}
RX_IFACE=${RX_IFACE%%,*}
SIZE='' DEST_IP='' DST_MAC='' DST_PORT=9 QUEUES=${QUEUES:-1} COUNT=0 RATE=max DURATION=3s IPV6=0 VERBOSE=0
while getopts 'i:R:s:d:m:p:t:n:r:T:6vh' option; do
	case $option in
	i) IFACE=$OPTARG ;;
	R) RX_IFACE=$OPTARG ;;
	s) SIZE=$OPTARG ;;
	d) DEST_IP=$OPTARG ;;
	m) DST_MAC=$OPTARG ;;
	p) DST_PORT=$OPTARG ;;
	t) QUEUES=$OPTARG ;;
	n) COUNT=$OPTARG ;;
	r) RATE=$OPTARG ;;
	T) DURATION=$OPTARG ;;
	6) IPV6=1 ;;
	v) VERBOSE=1 ;;
	h) usage; exit 0 ;;
	*) usage >&2; exit 2 ;;
	esac
done
if [[ -z $IFACE ]]; then
	usage >&2
	err "-i: which interface? or in the lab: pktgen lab wire -- $0" 2
fi
# What the lab says in the environment is in the parameters now.
unset PKTGEN_TX PKTGEN_RX
