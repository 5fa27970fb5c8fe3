// Package live sends frames that begin their life in the kernel: BPF_PROG_RUN with
// BPF_F_TEST_XDP_LIVE_FRAMES runs an XDP program over pages that hold a frame, and
// the program (live.bpf.c) stamps each and redirects it to the port's driver. No
// frame crosses from user space; there is no socket, sk_buff or qdisc.
//
//	Open: programs loaded, one frame tried: a port may not take such frames
//	Start: every worker's thread enters the kernel, and stays there
//	  clock -> frames due -> headers, stamp -> bulk queue -> driver
//	a watcher reads their counters, and calls them back at the end
//
// What counts as sent is what the driver said it took (tracepoint
// xdp:xdp_devmap_xmit), not how often the program ran. Frames that a full port
// refused are stamped and offered again, with the same numbers. A worker that has
// nothing due makes the kernel throw frames away: its CPU is always busy.
//
// Since Linux 5.18. The port's driver must take redirected frames
// (ndo_xdp_xmit); that of a veth does where its peer has an XDP program or GRO.
package live

//go:generate ../../scripts/bpf2go.sh live live.bpf.c worker
