// Package xsk is AF_XDP: sockets whose frames lie in memory that is registered with
// the kernel (UMEM) and is named by rings of descriptors
// (Documentation/networking/af_xdp.rst, include/uapi/linux/if_xdp.h, net/xdp).
//
//	OpenTX: a ring of slots, past the stack and the qdisc         tx.go
//	OpenPort: the XDP program that finds our frames               port.go, xsk.bpf.c
//	OpenRX: a ring of one queue, fed by that program              rx.go
//	sockets, their memory and rings                               socket.go
//	where slots and descriptors lie                               layout.go
//
// The socket is opened in the network namespace of the calling thread, and belongs
// to one queue of the interface: a NIC sends through that queue, and of what the NIC
// has put into another it sees nothing. Lengths are the kernel's: octets of the frame
// without FCS.
//
// UMEM: what both sides share. Fill ring: chunks that the kernel may write frames
// into. Completion ring: frames that it has sent. Position: counts entries of a ring
// without end; one masked is an index.
package xsk

//go:generate ../../scripts/bpf2go.sh xsk xsk.bpf.c
