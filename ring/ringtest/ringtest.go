// Package ringtest is a wire in memory, for tests of what sends into a ring.TX
// and reads from a ring.RX.
//
//	TX.Kick -> Wire.Alter (lose, double, reorder, damage) -> RX of some queue -> RX.Next
//
// Unlike the rings that it stands for, a Wire is shared: it has a lock. Each TX
// and RX still belongs to one goroutine.
package ringtest

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"pktgen/ring"
)

// Wire joins any number of TX to any number of RX.
type Wire struct {
	// Alter says what arrives of a frame, and in its place. n counts the frames
	// of the wire from 0. nil: the frame itself.
	Alter func(n uint64, frame []byte) [][]byte
	// Queue says which RX a frame goes to; nil: the first.
	Queue func(frame []byte) int
	// Now stamps arrivals, ns since the Unix epoch; nil: the clock.
	Now func() int64

	mu       sync.Mutex
	n        uint64
	rxs      []*RX
	capacity int
}

// NewWire makes a wire whose receivers hold up to capacity frames each; more
// are dropped, as the kernel drops what a full ring has no room for.
func NewWire(capacity int) *Wire { return &Wire{capacity: capacity} }

// TX is a sender of slots slots. Fault, when set, is asked at each Kick.
type TX struct {
	Fault func() error

	wire    *Wire
	slots   [][]byte
	head    uint64 // committed
	tail    uint64 // taken by the wire
	counts  ring.TXCounts
	closed  bool
	Stopped bool // the wire takes nothing, as if the link were blocked
}

var _ ring.TX = (*TX)(nil)

// TX makes a sender for frames of up to maxFrame octets.
func (w *Wire) TX(slots, maxFrame int) *TX {
	t := &TX{wire: w, slots: make([][]byte, slots)}
	for i := range t.slots {
		t.slots[i] = make([]byte, maxFrame)
	}
	return t
}

func (t *TX) Prefill(fill func([]byte) int) {
	for i, s := range t.slots {
		t.slots[i] = s[:fill(s[:cap(s)])]
	}
}

func (t *TX) Reserve(max int) [][]byte {
	n := uint64(len(t.slots))
	at := t.head % n
	free := min(n-(t.head-t.tail), n-at, uint64(max))
	return t.slots[at : at+free]
}

func (t *TX) Commit(frames [][]byte) { t.head += uint64(len(frames)) }

func (t *TX) Kick() error {
	if t.Fault != nil {
		if err := t.Fault(); err != nil {
			if err == ring.ErrBusy {
				t.counts.Busy++
			}
			return err
		}
	}
	for ; t.tail < t.head && !t.Stopped; t.tail++ {
		t.wire.send(t.slots[t.tail%uint64(len(t.slots))])
		t.counts.Sent++
	}
	return nil
}

func (t *TX) Wait(max time.Duration) error {
	time.Sleep(min(max, 100*time.Microsecond))
	return nil
}

func (t *TX) Outstanding() int      { return int(t.head - t.tail) }
func (t *TX) Counts() ring.TXCounts { return t.counts }
func (t *TX) Close() error          { t.closed = true; return nil }

// Closed says that Close was called.
func (t *TX) Closed() bool { return t.closed }

func (w *Wire) send(frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := [][]byte{frame}
	if w.Alter != nil {
		out = w.Alter(w.n, slices.Clone(frame))
	}
	w.n++
	for _, f := range out {
		q := 0
		if w.Queue != nil {
			q = w.Queue(f)
		}
		if q < len(w.rxs) {
			w.rxs[q].receive(f, w.now())
		}
	}
}

func (w *Wire) now() int64 {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now().UnixNano()
}

// Inject has a frame arrive that nobody here has sent.
func (w *Wire) Inject(queue int, frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rxs[queue].receive(frame, w.now())
}

// RX is a receiver. Its frames come in blocks of those that have arrived.
type RX struct {
	wire  *Wire
	mem   []byte // what has arrived and was not yet read
	count int
	drops ring.KernelDrops
	block ring.Block
	fault error
}

var _ ring.RX = (*RX)(nil)

// RX makes the next receiver.
func (w *Wire) RX() *RX {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &RX{wire: w}
	w.rxs = append(w.rxs, r)
	return r
}

// Fail has Next return err once what has arrived is read. Safe from any goroutine.
func (r *RX) Fail(err error) {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	r.fault = err
}

// The layout of a block's frames: length, time, octets.
const header = 4 + 8

func (r *RX) receive(frame []byte, now int64) {
	r.drops.Packets++
	if r.count == r.wire.capacity {
		r.drops.Drops++
		return
	}
	r.count++
	r.mem = binary.NativeEndian.AppendUint32(r.mem, uint32(len(frame)))
	r.mem = binary.NativeEndian.AppendUint64(r.mem, uint64(now))
	r.mem = append(r.mem, frame...)
}

func (r *RX) Next(wait time.Duration) (*ring.Block, error) {
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Microsecond) {
		r.wire.mu.Lock()
		mem, count, fault := r.mem, r.count, r.fault
		r.mem, r.count = nil, 0
		r.wire.mu.Unlock()
		switch {
		case count > 0:
			r.block.Load(walker{}, mem, 0, count)
			return &r.block, nil
		case fault != nil:
			return nil, fault
		case !time.Now().Before(end):
			return nil, ring.ErrTimeout
		}
	}
}

func (r *RX) Release(*ring.Block) {}

func (r *RX) Drops() (ring.KernelDrops, error) {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	return r.drops, nil
}

func (r *RX) Close() error { return nil }

type walker struct{}

func (walker) Frame(block []byte, off int, f *ring.Frame) (next int, ok bool) {
	if len(block)-off < header {
		return 0, false
	}
	n := int(binary.NativeEndian.Uint32(block[off:]))
	if n > len(block)-off-header {
		return 0, false
	}
	*f = ring.Frame{
		Data: block[off+header : off+header+n : off+header+n], WireLen: n,
		TimeNs: int64(binary.NativeEndian.Uint64(block[off+4:])),
	}
	return off + header + n, true
}
