package tpacket

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
	"pktgen/ring/internal/sock"
)

// DefaultTXSlots is the number of slots of a TX ring. On a veth pair 256 to
// 8192 slots differ by less than the noise; a NIC keeps slots until it has
// sent them, so the ring must be longer than the NIC's own (512 to 4096).
// Of frames so large that they would take more than maxTXRing there are fewer,
// leastTXSlots at least.
const (
	DefaultTXSlots = 4096
	leastTXSlots   = 256
	maxTXRing      = 64 << 20 // octets
)

// defaultSlots is the number of slots of a ring for frames of up to maxFrame octets.
func defaultSlots(maxFrame int) int {
	return max(leastTXSlots, min(DefaultTXSlots, maxTXRing/(v2Data+maxFrame)))
}

// TXOptions describe a TX ring.
type TXOptions struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queue     int    // worker number, for errors
	MaxFrame  int    // largest frame, octets without FCS, 1..MaxFrame
	Slots     int    // at least; 0 = DefaultTXSlots, or fewer of large frames
	Launch    int    // clock of KickAt's times: unix.CLOCK_TAI for an etf qdisc, CLOCK_MONOTONIC for fq; 0 (CLOCK_REALTIME, which neither takes): none
	Qdisc     bool   // go through the queueing discipline instead of past it (PACKET_QDISC_BYPASS)
}

// TX is a TPACKET_V2 transmit ring (V3 measures 2 % slower and has no use for
// its variable frames here). It implements ring.TX.
type TX struct {
	sock *sock.Socket
	mem  *shm.Mem

	status []*atomic.Uint32 // tp_status of each slot: written by both sides, passes ownership
	length []*uint32        // tp_len of each slot: ours until Commit
	data   [][]byte         // each slot's frame; capacity ends at the slot

	head   uint64 // slots committed
	tail   uint64 // slots that the kernel has finished with
	counts ring.TXCounts
	oob    [stampOOB]byte
	launch []byte // the control message of KickAt
}

var _ ring.TX = (*TX)(nil)

// OpenTX opens a transmit ring on an interface of the calling thread's network
// namespace. Errors name the operation, the interface and the queue.
func OpenTX(o TXOptions) (*TX, error) {
	if o.Slots == 0 {
		o.Slots = defaultSlots(o.MaxFrame)
	}
	g, err := txLayout(o.MaxFrame, o.Slots)
	if err != nil {
		return nil, fmt.Errorf("%s queue %d: %w", o.Interface, o.Queue, err)
	}
	sock, err := sock.Packet(o.Interface, o.Queue)
	if err != nil {
		return nil, err
	}
	t := &TX{sock: sock}
	if err := t.setUp(o, g); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *TX) setUp(o TXOptions, g txGeometry) error {
	s := t.sock
	if err := s.SetInt("PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return err
	}
	// Without it the first frame that is too large for the interface would stop the
	// ring for good: the kernel waits at its slot. With it the kernel drops such
	// frames and says nothing, so that they count as sent here, but not in the
	// interface's own counters.
	if err := s.SetInt("PACKET_LOSS", unix.PACKET_LOSS, 1); err != nil {
		return err
	}
	if !o.Qdisc {
		if err := s.SetInt("PACKET_QDISC_BYPASS", unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return err
		}
	}
	if o.Launch != 0 {
		if err := t.useLaunchTimes(o.Launch); err != nil {
			return err
		}
	}
	s.SendBuffer(g.slots() * (g.slotSize + sock.FrameOverhead))
	req := g.request()
	if err := unix.SetsockoptTpacketReq(s.FD, unix.SOL_PACKET, unix.PACKET_TX_RING, &req); err != nil {
		return s.Errorf("PACKET_TX_RING of "+sock.Size(g.length()), err)
	}
	mem, err := shm.Map(s.FD, 0, g.length())
	if err != nil {
		return s.Errorf("mmap of "+sock.Size(g.length()), err)
	}
	t.view(mem, g, o.MaxFrame)
	if o.Qdisc {
		return s.Bind(o.Index, 0) // the kernel reads the protocol out of each frame: filters may ask for it
	}
	return s.Bind(o.Index, sock.Experimental)
}

// view casts the ring's pointers, once.
func (t *TX) view(mem *shm.Mem, g txGeometry, maxFrame int) {
	t.mem = mem
	n := g.slots()
	t.status, t.length, t.data = make([]*atomic.Uint32, n), make([]*uint32, n), make([][]byte, n)
	for i := range n {
		off := g.offset(i)
		t.status[i] = mem.Word(off + v2Status)
		t.length[i] = mem.Plain(off + v2Len)
		t.data[i] = mem.Bytes(off+v2Data, maxFrame)
	}
}

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
	at := t.head % n
	free = min(free, uint64(max), n-at)
	return t.data[at : at+free]
}

// Commit implements ring.TX.
func (t *TX) Commit(frames [][]byte) {
	n := uint64(len(t.data))
	at := t.head % n
	for i, f := range frames {
		*t.length[at+uint64(i)] = uint32(len(f))
		t.status[at+uint64(i)].Store(unix.TP_STATUS_SEND_REQUEST)
	}
	t.head += uint64(len(frames))
}

// Kick implements ring.TX. RawSyscall, because the thread is the worker's own
// and the call does not block: Syscall costs a batch of 64 some 12 %.
func (t *TX) Kick() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(t.sock.FD), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	if errno == 0 {
		return nil
	}
	return t.kickError(errno)
}

func (t *TX) kickError(errno unix.Errno) error {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS:
		t.counts.Busy++
		return ring.ErrBusy
	case unix.EINTR:
		return ring.ErrBusy
	}
	return t.sock.Errorf("send", errno)
}

// reclaim moves the tail over the slots that the kernel has finished with.
func (t *TX) reclaim() {
	n := uint64(len(t.data))
	for t.tail < t.head {
		switch v := t.status[t.tail%n].Load(); {
		case v&(unix.TP_STATUS_SEND_REQUEST|unix.TP_STATUS_SENDING) != 0:
			return
		case v&unix.TP_STATUS_WRONG_FORMAT != 0: // ours all the same
			t.counts.Rejected++
		default:
			t.counts.Sent++
		}
		t.tail++
	}
}

// Wait implements ring.TX.
func (t *TX) Wait(max time.Duration) error {
	return t.sock.Poll(unix.POLLOUT, max)
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
	var unmap error
	if t.mem != nil {
		unmap = t.mem.Unmap()
		t.mem, t.status, t.length, t.data = nil, nil, nil, nil
	}
	return errors.Join(unmap, t.sock.Close())
}
