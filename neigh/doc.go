// Package neigh finds link-layer addresses and answers for them: ARP (RFC 826)
// and Neighbor Discovery (RFC 4861), without the kernel's own tables.
//
//	Resolve: ask for an address on an interface, wait for the answer
//	Responder: answer for whole prefixes, as if a host sat at each address
//
// Sockets are of mdlayher/packet, with a filter in the kernel that lets only
// these messages through, so that test traffic at full
// speed wakes nobody. A socket stands in the network namespace of the thread
// that makes it.
package neigh
