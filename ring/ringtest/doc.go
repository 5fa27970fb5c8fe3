// Package ringtest is a kernel in memory, for tests: the other side of a ring,
// without a socket, a privilege, or an interface.
//
//	ring/tpacket <- shared memory -> TXKernel, RXKernel     tests of a backend
//	TX.Kick -> Wire.Alter -> RX of some queue -> RX.Next    tests of who uses rings
//
// TXKernel and RXKernel keep the rules of net/packet/af_packet.c over memory of
// shm.Alloc, and may run on a goroutine of their own, as the kernel does: under
// -race a missing acquire or release is then a reported race. They take the
// layout of the kernel's structs from golang.org/x/sys/unix, so that it is a
// second source for a backend's own.
//
// A Wire loses, doubles, reorders and damages what a test says. It is shared,
// unlike the rings that it stands for, and so has a lock; each TX and RX still
// belongs to one goroutine. They panic where their user breaks the contract of
// package ring, and spoil memory that is no longer lent.
//
// Only tests import this package.
package ringtest
