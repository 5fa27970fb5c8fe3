package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/sock"
)

// DefaultTXSlots is the number of slots of a TX ring. On a veth pair 256 to 16384
// differ by less than the noise, because small frames lie close together: each in a
// chunk of its own costs 8 % more. A NIC keeps slots until it has sent them.
const DefaultTXSlots = 4096

// TXOptions describe a TX ring.
type TXOptions struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queue     int    // of the interface
	MaxFrame  int    // largest frame, octets without FCS, 1..MaxFrame
	Slots     int    // at least; 0 = DefaultTXSlots
	Copy      bool   // even where the driver can do without
}

// TX is an AF_XDP transmit ring. It implements ring.TX.
//
// Slots are lent, committed and taken back in the order of the memory. The kernel may
// finish them in any other: then a slot waits for those before it.
type TX struct {
	sock  *socket
	geo   geometry
	data  [][]byte // each slot's frame; capacity ends at the largest
	owner []uint32 // completions that each slot waits for: 0 = it is ours

	head      uint64 // slots committed
	tail      uint64 // slots that the kernel has finished with
	completed uint32 // position in the completion ring

	// Positions in the TX ring.
	produced uint32 // behind the last entry
	consumed uint32 // what the kernel reads next, as of the last Kick; without zero-copy only

	mtu    int // of the interface, octets of an IP packet
	counts ring.TXCounts
}

var _ ring.TX = (*TX)(nil)

// OpenTX opens a transmit ring on a queue of an interface of the calling thread's
// network namespace. Errors name the operation, the interface and the queue; also
// ErrUnable, TooLargeError.
func OpenTX(o TXOptions) (*TX, error) {
	if o.Slots == 0 {
		o.Slots = DefaultTXSlots
	}
	g, err := txLayout(o.MaxFrame, o.Slots)
	if err != nil {
		return nil, fmt.Errorf("%s queue %d: %w", o.Interface, o.Queue, err)
	}
	s, err := openSocket(o.Interface, o.Index, o.Queue, g, sending(g.slots), o.Copy)
	if err != nil {
		return nil, err
	}
	t := &TX{sock: s, geo: g}
	if t.mtu, err = mtu(s.Socket, o.Index); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	s.SendBuffer(g.slots * (1<<g.shift + sock.FrameOverhead))
	// Of frames that are copied one call sends 32 (TX_BATCH_SIZE, net/xdp/xsk.c) where
	// it cannot be told more (Linux 6.18): then a Kick makes several.
	_ = unix.SetsockoptInt(s.FD, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, min(g.slots, maxBudget))
	t.view(o.MaxFrame)
	return t, nil
}

// maxBudget bounds how long one system call takes, to less than a millisecond.
const maxBudget = 1024

// mtu is that of an interface in the namespace of the calling thread.
func mtu(s *sock.Socket, index int) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // one of AF_XDP takes no ioctl
	if err != nil {
		return 0, s.Errorf("socket(AF_UNIX)", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("by-index")
	if err != nil {
		return 0, err
	}
	ifr.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr); err != nil {
		return 0, s.Errorf("SIOCGIFNAME", err)
	}
	if ifr, err = unix.NewIfreq(ifr.Name()); err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFMTU, ifr); err != nil {
		return 0, s.Errorf("SIOCGIFMTU", err)
	}
	return int(ifr.Uint32()), nil
}

// view makes the slots.
func (t *TX) view(maxFrame int) {
	n := t.geo.slots
	t.data, t.owner = make([][]byte, n), make([]uint32, n)
	for i := range n {
		t.data[i] = t.sock.umem.Bytes(t.geo.offset(i), maxFrame)
	}
}

// Mode says how frames reach the NIC, ZeroCopy or Copy, and why not ZeroCopy.
func (t *TX) Mode() (mode, reason string) { return t.sock.mode() }

// Prefill implements ring.TX.
func (t *TX) Prefill(fill func(slot []byte) int) {
	for i, d := range t.data {
		n := fill(d[:cap(d)])
		t.data[i] = d[:n]
	}
}

// Reserve implements ring.TX. The slots end at the end of the ring's memory,
// so a batch there may be shorter than the ring has room for.
func (t *TX) Reserve(max int) [][]byte {
	n := uint64(len(t.data))
	free := n - (t.head - t.tail)
	if free < uint64(max) {
		t.reclaim()
		free = n - (t.head - t.tail)
	}
	at := t.head & (n - 1)
	free = min(free, uint64(max), n-at)
	return t.data[at : at+free]
}

// Commit implements ring.TX. The kernel passes over a frame of no octets and does
// not say so: it never gets one.
func (t *TX) Commit(frames [][]byte) {
	at := int(t.head & uint64(len(t.data)-1))
	for i, f := range frames {
		if len(f) == 0 {
			t.owner[at+i] = rejected
			continue
		}
		t.owner[at+i] = 1
		t.put(t.produced, at+i, len(f))
		t.produced++
	}
	t.head += uint64(len(frames))
	t.sock.ring.producer.Store(t.produced)
}

// put writes one entry of the TX ring.
func (t *TX) put(position uint32, slot, length int) {
	d := t.sock.ring.entry(position)
	binary.NativeEndian.PutUint64(d[descAddr:], uint64(t.geo.offset(slot)))
	binary.NativeEndian.PutUint32(d[descLen:], uint32(length))
}

// Kick implements ring.TX. In zero-copy the driver may be sending all the while, and
// then needs no call. RawSyscall, because the thread is the worker's own and the call
// does not wait.
func (t *TX) Kick() error {
	if t.sock.zeroCopy && t.sock.ring.flags.Load()&unix.XDP_RING_NEED_WAKEUP == 0 {
		return nil
	}
	for {
		errno := wakeErrno(t.sock.FD, unix.SYS_SENDTO)
		if more, err := t.kicked(errno); !more {
			return err
		}
	}
}

// kicked takes what the kernel says to a wake-up; more asks for another one at once.
func (t *TX) kicked(errno unix.Errno) (more bool, err error) {
	moved := t.advance()
	switch errno {
	case 0:
		if !t.sock.zeroCopy && t.consumed != t.produced {
			return false, t.sock.Errorf("send", errors.New("the interface has no such transmit queue"))
		}
		return false, nil
	case unix.EAGAIN:
		if moved && !t.sock.zeroCopy {
			return true, nil // as many as one call sends
		}
	case unix.EBUSY:
		if !t.sock.zeroCopy && t.dropped(moved) {
			return true, nil
		}
	case unix.ENOBUFS:
	case unix.EINTR:
		return false, ring.ErrBusy
	default:
		return false, t.sock.Errorf("send", errno)
	}
	t.counts.Busy++
	return false, ring.ErrBusy
}

// advance notes how far the kernel has come in the TX ring, which it says when it has
// sent a frame or finds no more.
func (t *TX) advance() (moved bool) {
	if c := t.sock.ring.consumer.Load(); int32(c-t.consumed) > 0 {
		t.consumed = c
		return true
	}
	return false
}

// dropped deals with EBUSY (__xsk_generic_xmit, net/xdp/xsk.c): the last frame that
// the kernel took was finished with, but the driver has not taken it, because the
// link is blocked or the other end of a veth pair has no room. It is put back into
// the ring, in front of those that are still there, as if it had been refused. But one
// larger than the MTU would be dropped for ever: true says to go on without it.
func (t *TX) dropped(moved bool) bool {
	r := &t.sock.ring
	if !moved && t.consumed == t.produced {
		return false // there was none to take
	}
	if !moved {
		t.consumed++ // which the kernel tells only of a call that has sent something
	}
	var lost [descSize]byte
	copy(lost[:], r.entry(t.consumed-1))
	length := int(binary.NativeEndian.Uint32(lost[descLen:]))
	if length > t.mtu+ethernetHeader {
		return true
	}
	t.owner[t.geo.slot(binary.NativeEndian.Uint64(lost[descAddr:]))]++
	for at := t.produced; at != t.consumed; at-- {
		copy(r.entry(at), r.entry(at-1))
	}
	copy(r.entry(t.consumed), lost[:])
	t.produced++
	r.producer.Store(t.produced)
	t.reclaim() // the frame has been completed and will be again: there must be room
	return false
}

const ethernetHeader = 14 // octets

// reclaim takes the completed frames out of the completion ring, and moves the tail
// over the slots that the kernel has finished with.
func (t *TX) reclaim() {
	c := &t.sock.completion
	if end := c.producer.Load(); end != t.completed {
		for ; t.completed != end; t.completed++ {
			at := binary.NativeEndian.Uint64(c.addr(t.completed))
			if i := t.geo.slot(at); i < len(t.owner) && t.owner[i] != 0 {
				t.owner[i]--
			}
		}
		c.consumer.Store(t.completed)
	}
	n := uint64(len(t.data))
	for ; t.tail < t.head; t.tail++ {
		switch o := &t.owner[t.tail&(n-1)]; *o {
		case 0:
			t.counts.Sent++
		case rejected:
			*o = 0
			t.counts.Rejected++
		default:
			return
		}
	}
}

// rejected is the owner of a slot that the kernel never gets.
const rejected = math.MaxUint32

// waitStep is how often a Wait looks whether a slot is free. The kernel's poll(2)
// tells when the TX ring has room, not when frames have been sent, and sends some
// itself without saying what became of them.
const waitStep = 50 * time.Microsecond

// Wait implements ring.TX.
func (t *TX) Wait(max time.Duration) error {
	for end := time.Now().Add(max); t.Outstanding() == len(t.data); {
		left := time.Until(end)
		if left <= 0 {
			return t.lost()
		}
		ts := unix.NsecToTimespec(int64(min(left, waitStep)))
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // EINTR: looks again
	}
	return nil
}

// lost asks for the state of the interface, of which a socket that is full learns
// nothing.
func (t *TX) lost() error {
	if errno := wakeErrno(t.sock.FD, unix.SYS_SENDTO); errno != 0 {
		if _, err := t.kicked(errno); err != nil && !errors.Is(err, ring.ErrBusy) {
			return err
		}
	}
	return nil
}

// Outstanding implements ring.TX.
func (t *TX) Outstanding() int {
	t.reclaim()
	return int(t.head - t.tail)
}

// Counts implements ring.TX.
func (t *TX) Counts() ring.TXCounts {
	t.reclaim()
	return t.counts
}

// Close implements ring.TX.
func (t *TX) Close() error {
	t.data, t.owner = nil, nil
	return t.sock.Close()
}
