package xsk

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/internal/clock"
	"pktgen/ring"
)

const (
	// DefaultRXSlots is the number of frames that wait for the sink at most: 64 MiB
	// of frames of up to 1792 octets, 33 ms at 1 M frames/s. The kernel goes through
	// all of the memory, so that 2048 of them, which a cache holds, cost 0.73 instead
	// of 0.93 us a frame on a veth pair, but ride out 2 ms.
	DefaultRXSlots = 1 << 15
	// maxBlock is the most frames of a block, so that the kernel gets chunks back
	// while the next are read.
	maxBlock = 256
)

// RXOptions describe an RX ring.
type RXOptions struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queue     int    // of the interface
	MaxFrame  int    // largest frame, octets without FCS, 1..MaxReceived; longer ones are dropped
	Slots     int    // at least; 0 = DefaultRXSlots
	Copy      bool   // even where the driver can do without
	Port      *Port  // of this interface
}

// RX is an AF_XDP receive ring. It implements ring.RX.
//
// A VLAN tag is in the frame, unless the NIC takes it off, who then tells nobody.
type RX struct {
	sock *socket
	port *Port
	geo  geometry
	mem  []byte // the whole UMEM

	next     uint32 // position in the RX ring of the first frame of the next block
	returned uint32 // position in the fill ring
	block    ring.Block
	epochNs  int64  // CLOCK_REALTIME less CLOCK_MONOTONIC
	nowNs    int64  // when the block was read, ns since the Unix epoch
	seen     uint64 // frames that the kernel has put into the ring; at most 2^32 between two Drops
	before   ring.KernelDrops
	lost     error
	untimed  uint64 // frames in front of which the program wrote no time
}

var _ ring.RX = (*RX)(nil)

// OpenRX opens a receive ring on a queue of an interface of the calling thread's
// network namespace. Errors: ErrUnable, TooLargeError.
func OpenRX(o RXOptions) (*RX, error) {
	if o.Slots == 0 {
		o.Slots = DefaultRXSlots
	}
	g, err := rxLayout(o.MaxFrame, o.Slots)
	if err != nil {
		return nil, fmt.Errorf("%s queue %d: %w", o.Interface, o.Queue, err)
	}
	s, err := openSocket(o.Interface, o.Index, o.Queue, g, receiving(g.slots), o.Copy)
	if err != nil {
		return nil, err
	}
	r := &RX{sock: s, port: o.Port, geo: g, epochNs: clock.Epoch()}
	r.view()
	return r, nil
}

// view gives every chunk to the kernel.
func (r *RX) view() {
	r.mem = r.sock.umem.Bytes(0, r.geo.length())
	for i := range r.geo.slots {
		binary.NativeEndian.PutUint64(r.sock.fill.addr(uint32(i)), uint64(r.geo.offset(i)))
	}
	r.returned = uint32(r.geo.slots)
	r.sock.fill.producer.Store(r.returned)
}

// Mode says how frames come from the NIC, ZeroCopy or Copy, and why not ZeroCopy.
func (r *RX) Mode() (mode, reason string) { return r.sock.mode() }

// Start implements ring.RX.
func (r *RX) Start() error {
	if err := r.refill(); err != nil {
		return err
	}
	var err error
	if r.before, err = r.drops(); err != nil {
		return err
	}
	return r.port.start(r.sock)
}

// Next implements ring.RX.
func (r *RX) Next(wait time.Duration) (*ring.Block, error) {
	n := r.sock.ring.producer.Load() - r.next
	if n == 0 {
		if err := r.wait(wait); err != nil {
			return nil, err
		}
		n = r.sock.ring.producer.Load() - r.next
	}
	return r.take(n), nil
}

// waiting is the number of frames that have arrived and are not yet lent.
func (r *RX) waiting() uint32 {
	return min(r.sock.ring.producer.Load()-r.next, maxBlock, r.sock.ring.mask+1)
}

// arrived is the time that the program wrote for frame i of those waiting,
// CLOCK_MONOTONIC in ns; 0 where it did not.
func (r *RX) arrived(i uint32) uint64 {
	addr := binary.NativeEndian.Uint64(r.sock.ring.entry(r.next + i)[descAddr:])
	if addr < stampSize || addr > uint64(len(r.mem)) {
		return 0
	}
	return binary.NativeEndian.Uint64(r.mem[addr-stampSize : addr])
}

// take lends the next n frames, which wait, or as many as a block holds.
func (r *RX) take(n uint32) *ring.Block {
	n = min(n, maxBlock, r.sock.ring.mask+1)
	_, r.nowNs = clock.Both()
	r.block.Load(r, r.mem, int(r.next), int(n))
	r.block.Index = int(n)
	r.next += n
	return &r.block
}

// lookAtLink is how often a ring that waits asks whether the interface is up: an
// interface that is set down wakes nobody.
const lookAtLink = 50 * time.Millisecond

// wait returns nil once there is a frame.
func (r *RX) wait(wait time.Duration) error {
	for end := time.Now().Add(wait); ; wait = time.Until(end) {
		if r.lost == nil {
			r.lost = r.sock.Poll(unix.POLLIN, min(max(wait, 0), lookAtLink))
		}
		if r.sock.ring.producer.Load() != r.next {
			return nil // also after an error, which is kept: what has arrived is read first
		}
		if r.lost == nil {
			r.lost = r.link()
		}
		if r.lost != nil {
			return r.lost
		}
		// The runtime's own signals end a poll early: that is no timeout.
		if !time.Now().Before(end) {
			return ring.ErrTimeout
		}
	}
}

// link asks for the state of the interface.
func (r *RX) link() error {
	if errno := wakeErrno(r.sock.FD, unix.SYS_RECVFROM); errno != 0 && !busy(errno) {
		return r.sock.Errorf("recv", errno)
	}
	return nil
}

// stampSize is what the program (xsk.bpf.c) writes in front of a frame: CLOCK_MONOTONIC
// in ns, 64 bits.
const stampSize = 8

// Frame implements ring.Walker: off is a position in the RX ring. What the kernel has
// written is checked before it is used.
func (r *RX) Frame(mem []byte, off int, f *ring.Frame) (next int, ok bool) {
	d := r.sock.ring.entry(uint32(off))
	addr, n := binary.NativeEndian.Uint64(d[descAddr:]), binary.NativeEndian.Uint32(d[descLen:])
	if addr < stampSize || addr > uint64(len(mem)) || uint64(n) > uint64(len(mem))-addr {
		return 0, false
	}
	at := int(addr)
	f.Data = mem[at : at+int(n) : at+int(n)]
	f.WireLen = int(n)
	f.TimeNs = r.nowNs
	if ns := binary.NativeEndian.Uint64(mem[at-stampSize : at]); ns != 0 {
		f.TimeNs = int64(ns) + r.epochNs
	} else {
		r.untimed++
	}
	f.Hardware, f.ChecksumPartial, f.VLAN, f.TPID = false, false, 0, 0
	return off + 1, true
}

// Release implements ring.RX. The time of each frame is wiped out: where the program
// cannot write one, there is none.
func (r *RX) Release(b *ring.Block) {
	n := uint32(b.Index)
	b.Index = 0
	fill, rx := &r.sock.fill, &r.sock.ring
	for at := r.next - n; at != r.next; at++ {
		addr := binary.NativeEndian.Uint64(rx.entry(at)[descAddr:])
		if addr >= uint64(len(r.mem)) {
			continue // not ours to give back
		}
		if addr >= stampSize {
			binary.NativeEndian.PutUint64(r.mem[addr-stampSize:addr], 0)
		}
		binary.NativeEndian.PutUint64(fill.addr(r.returned), addr&^uint64(r.geo.chunk-1))
		r.returned++
	}
	rx.consumer.Store(r.next)
	fill.producer.Store(r.returned)
	_ = r.refill() // an interface that is gone is told by Next
}

// refill has a driver without copying take the chunks, where it does not look itself.
func (r *RX) refill() error {
	if r.sock.zeroCopy && r.sock.fill.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 {
		return r.link()
	}
	return nil
}

// Drops implements ring.RX. A freeze is a time at which the kernel found no chunk to
// write a frame into.
func (r *RX) Drops() (ring.KernelDrops, error) {
	d, err := r.drops()
	d.Packets -= r.before.Packets
	d.Drops -= r.before.Drops
	d.Freezes -= r.before.Freezes
	return d, err
}

func (r *RX) drops() (ring.KernelDrops, error) {
	// The frames first: one that comes meanwhile is then not yet counted at all.
	r.seen += uint64(r.sock.ring.producer.Load() - uint32(r.seen))
	st, err := r.sock.statistics()
	d := ring.KernelDrops{Drops: st.Rx_dropped + st.Rx_ring_full, Freezes: st.Rx_fill_ring_empty_descs}
	d.Packets = r.seen + d.Drops
	return d, err
}

// Close implements ring.RX. The kernel takes the socket out of the program's map.
func (r *RX) Close() error {
	r.mem = nil
	return r.sock.Close()
}
