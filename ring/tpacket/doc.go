// Package tpacket is PACKET_MMAP: AF_PACKET sockets whose frames lie in memory
// shared with the kernel (Documentation/networking/packet_mmap.rst,
// include/uapi/linux/if_packet.h, net/packet/af_packet.c).
//
//	OpenTX: a TPACKET_V2 ring of slots, past the qdisc     tx.go
//	OpenRX: a TPACKET_V3 ring of blocks, one of a fanout   rx.go
//	Fanout: which of several RX rings gets a frame         fanout.go
//	slot and block layout, sizes                           layout.go
//
// The socket is opened in the network namespace of the calling thread.
// Lengths and addresses in here are the kernel's: octets of the frame without FCS.
package tpacket
