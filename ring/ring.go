package ring

import (
	"errors"
	"time"
)

// Errors that every backend returns, wrapped with the interface, the queue
// and the operation. Test with errors.Is.
var (
	// ErrBusy: the kernel or the NIC took no more for now (EAGAIN, ENOBUFS).
	// What was committed stays committed; Kick again after Wait.
	ErrBusy = errors.New("device busy")
	// ErrTimeout: nothing arrived within the wait.
	ErrTimeout = errors.New("timeout")
	// ErrLinkDown: the interface was set down or removed (ENETDOWN, ENXIO, ENODEV).
	ErrLinkDown = errors.New("interface is down or gone")
)

// TX lends transmit slots of kernel-shared memory to one goroutine.
// Owned by the queue goroutine: no method may be called from another.
type TX interface {
	// Prefill hands every slot, at its full capacity, to fill, which writes a
	// frame (destination MAC onward, no FCS) and returns its length in octets.
	// Set-up only: no slot may be outstanding.
	Prefill(fill func(slot []byte) int)
	// Reserve lends up to max free slots, in ring order, each with the bytes and
	// length of its last use; none when the ring is full. A slot's capacity is
	// the largest frame it holds; s[i] = s[i][:n] changes a frame's length.
	// Valid until Commit.
	Reserve(max int) [][]byte
	// Commit gives a prefix of the last Reserve to the kernel.
	Commit(frames [][]byte)
	// Kick has the kernel send what is committed: one system call, which does not
	// wait. Its error is never to be dropped: ErrBusy asks for another Kick,
	// ErrLinkDown and all others end the run.
	Kick() error
	// Wait blocks until a slot may be free, or for max.
	Wait(max time.Duration) error
	// Outstanding is the number of committed frames that the kernel has not yet
	// finished with; the drain at the end of a run waits on it.
	Outstanding() int
	// Counts says what became of the committed frames so far.
	Counts() TXCounts
	// Close gives the memory back. Frames still outstanding may be sent all the
	// same: a queueing discipline or a NIC has them.
	Close() error
}

// Stamper is a TX whose kernel can tell when frames have left. Owned as TX is.
type Stamper interface {
	// Stamp has the kernel note when each frame that is sent from now on leaves, or
	// no longer. The frames are numbered from 0 each time it is turned on.
	Stamp(on bool) error
	// ReadStamp returns the number of a frame that has left, and when, ns since the
	// Unix epoch; ok is false where there is none. It does not wait. A device that
	// keeps no time, or a queue that is full, leaves frames out.
	ReadStamp() (n uint32, timeNs int64, ok bool)
}

// Launcher is a TX whose kernel can hold a frame until a time. Owned as TX is.
type Launcher interface {
	// KickAt is Kick, for frames that are to leave at an instant of the launch
	// clock, ns; a time that has passed means now.
	KickAt(launchNs int64) error
}

// TXCounts are totals since the ring was opened, in frames.
type TXCounts struct {
	Sent     uint64 // done with by the kernel: taken by the driver, unless larger than the MTU
	Rejected uint64 // refused by the kernel for their form, where it says so (TP_STATUS_WRONG_FORMAT)
	Busy     uint64 // Kicks answered by EAGAIN or ENOBUFS
}

// RX lends blocks of received frames to one goroutine.
// Owned by the queue goroutine: no method may be called from another.
type RX interface {
	// Start lets frames in: none that arrives before it is ever seen, so that the
	// rings of a fanout group have all joined when the first one counts. Once.
	Start() error
	// Next returns the next block that the kernel has handed over, waiting for
	// one up to wait. Errors: ErrTimeout, ErrLinkDown. Valid until Release.
	Next(wait time.Duration) (*Block, error)
	// Release gives the block back to the kernel.
	Release(*Block)
	// Drops are the frames lost to this socket, cumulative since Start,
	// though the kernel clears its own counter on each read.
	Drops() (KernelDrops, error)
	// Close gives all memory back.
	Close() error
}

// KernelDrops are totals since Start.
type KernelDrops struct {
	Packets uint64 // frames the socket saw, dropped ones included
	Drops   uint64 // frames dropped because the ring was full
	Freezes uint64 // times the ring was found full (TPACKET_V3)
}

// Frame is one received frame. Its Data is valid until the block's Release.
type Frame struct {
	// Data are the octets from the destination MAC, without FCS and without the
	// outermost VLAN tag, if the kernel or the NIC took it off (see VLAN).
	Data []byte
	// WireLen is the length in octets on the wire, without FCS, the removed tag
	// and anything beyond a snap length included.
	WireLen int
	// TimeNs is when the kernel (or the NIC) received it, ns since the Unix epoch.
	TimeNs int64
	// Hardware: TimeNs is the NIC's, by its own clock (PHC), not the kernel's.
	Hardware bool
	// VLAN is the removed tag's TCI, TPID its EtherType; TPID 0 means none was removed.
	VLAN, TPID uint16
	// ChecksumPartial: the sender left the transport checksum to the NIC, so that
	// it is not in the frame yet (TP_STATUS_CSUMNOTREADY).
	ChecksumPartial bool
}

// Walker is what a backend knows about the layout of its block.
type Walker interface {
	// Frame reads the frame at octet off of the block and says where the next
	// one is. It checks every kernel-given offset against the block, and
	// returns ok = false where one does not fit.
	Frame(block []byte, off int, f *Frame) (next int, ok bool)
}
