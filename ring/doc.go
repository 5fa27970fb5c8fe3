// Package ring is the contract by which one goroutine borrows packet memory
// from the kernel: TX slots to fill, RX blocks to read.
//
//	Reserve -> write the frame -> Commit -> Kick            TX, a batch
//	Next -> Block.Next, Block.Next, ... -> Release          RX, a block
//
// Vocabulary: a slot holds one frame to send; a block holds the frames that
// arrived together. Sizes here are those of the socket: octets from the
// destination MAC, without FCS.
//
// Ownership: a ring belongs to the goroutine that opened it, which has locked
// its thread; nothing here is safe for a second one. The worker is asked to
// stop by a flag that it reads between batches and blocks (its waits are
// short), and closes its ring itself, so no wake-up descriptor is needed.
//
// A batch costs at most one system call; a frame costs none, and no allocation.
package ring
