// Package neigh finds link-layer addresses and answers for them: ARP (RFC 826)
// and Neighbor Discovery (RFC 4861), without the kernel's own tables.
//
//	Resolve    question -> link -> first answer about the address -> its MAC
//	Responder  question -> an address of its prefixes? -> answer, with its MAC
//
// A question is an ARP request or a Neighbor Solicitation; an answer is an ARP
// reply or a Neighbor Advertisement. An answer goes out with the question's tag.
//
// A socket stands in the network namespace of the thread that makes it: Resolve
// and NewResponder make theirs before they return, so that the caller need hold
// that thread no longer. Its filter, in the kernel, lets nothing but these
// messages through: test traffic wakes nobody.
package neigh
