package ringtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
)

// Wire joins any number of TX to any number of RX. Its fields are set before
// the first frame.
type Wire struct {
	// Alter says what arrives of a frame, and in its place. n counts the frames
	// of the wire from 0. The frame is the wire's own, to be altered or kept.
	// nil: it arrives.
	Alter func(n uint64, frame []byte) [][]byte
	// Queue says which RX a frame goes to, in the order in which they were made;
	// nil: the first. One that is not there loses it.
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

// Inject has a frame arrive that nobody here has sent. Safe from any goroutine.
func (w *Wire) Inject(queue int, frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rxs[queue].receive(frame, w.now())
}

func (w *Wire) now() int64 {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now().UnixNano()
}

// TX is a sender. It implements ring.TX, and panics where its user breaks the
// contract of that.
type TX struct {
	Fault    func() error            // asked at each Kick; its error is that Kick's
	Reject   func(frame []byte) bool // says which frames are refused for their form
	Stopped  bool                    // the wire takes nothing, as if the link were blocked
	NoStamp  error                   // what Stamp returns
	Launched []int64                 // the times given to KickAt; for after the run

	wire      *Wire
	slots     [][]byte
	reserved  [][]byte // the last Reserve, until Commit
	committed [][]byte // what each slot held at Commit
	head      uint64   // committed
	tail      uint64   // taken by the wire
	counts    ring.TXCounts
	stamping  bool
	numbered  uint32  // frames sent since stamping was turned on
	stamps    []stamp // not yet read
	closed    bool
}

// stamp is when a frame left.
type stamp struct {
	n      uint32
	timeNs int64
}

var (
	_ ring.TX      = (*TX)(nil)
	_ ring.Stamper = (*TX)(nil)
)

// TX makes a sender of slots slots for frames of up to maxFrame octets.
func (w *Wire) TX(slots, maxFrame int) *TX {
	t := &TX{wire: w, slots: make([][]byte, slots), committed: make([][]byte, slots)}
	for i := range t.slots {
		t.slots[i] = make([]byte, maxFrame)
	}
	return t
}

// Prefill implements ring.TX.
func (t *TX) Prefill(fill func([]byte) int) {
	if t.head != t.tail {
		panic("ringtest: Prefill with slots outstanding")
	}
	for i, s := range t.slots {
		t.slots[i] = s[:fill(s[:cap(s)])]
	}
}

// Reserve implements ring.TX. As with a mapped ring, a batch ends where the
// memory ends.
func (t *TX) Reserve(max int) [][]byte {
	t.open("Reserve")
	n := uint64(len(t.slots))
	at := t.head % n
	free := min(n-(t.head-t.tail), n-at, uint64(max))
	t.reserved = t.slots[at : at+free]
	return t.reserved
}

// Commit implements ring.TX.
func (t *TX) Commit(frames [][]byte) {
	t.open("Commit")
	if len(frames) > len(t.reserved) {
		panic("ringtest: Commit of more than the last Reserve")
	}
	at := t.head % uint64(len(t.slots))
	for i, f := range frames {
		if slot := t.reserved[i]; cap(f) != cap(slot) || &f[:1][0] != &slot[:1][0] {
			panic("ringtest: Commit of something else than a prefix of the last Reserve")
		}
		t.slots[at] = f
		t.committed[at] = append(t.committed[at][:0], f...)
		at++
	}
	t.head += uint64(len(frames))
	t.reserved = nil
}

// Kick implements ring.TX.
func (t *TX) Kick() error {
	t.open("Kick")
	if t.Fault != nil {
		if err := t.Fault(); err != nil {
			if errors.Is(err, ring.ErrBusy) {
				t.counts.Busy++
			}
			return err
		}
	}
	for ; t.tail < t.head && !t.Stopped; t.tail++ {
		at := t.tail % uint64(len(t.slots))
		frame := t.slots[at]
		if !bytes.Equal(frame, t.committed[at]) {
			panic("ringtest: a slot was written to after its Commit")
		}
		if t.Reject != nil && t.Reject(frame) {
			t.counts.Rejected++
			continue
		}
		t.wire.send(frame)
		t.counts.Sent++
		if t.stamping {
			t.stamps = append(t.stamps, stamp{t.numbered, t.wire.now()})
			t.numbered++
		}
	}
	return nil
}

// Wait implements ring.TX.
func (t *TX) Wait(max time.Duration) error {
	t.open("Wait")
	if t.tail < t.head { // only a Kick changes that
		time.Sleep(min(max, 100*time.Microsecond))
	}
	return nil
}

// KickAt implements ring.Launcher.
func (t *TX) KickAt(launchNs int64) error {
	t.Launched = append(t.Launched, launchNs)
	return t.Kick()
}

// Stamp implements ring.Stamper.
func (t *TX) Stamp(on bool) error {
	t.open("Stamp")
	if on && !t.stamping {
		t.numbered = 0
	}
	t.stamping = on
	return t.NoStamp
}

// ReadStamp implements ring.Stamper.
func (t *TX) ReadStamp() (n uint32, timeNs int64, ok bool) {
	t.open("ReadStamp")
	if len(t.stamps) == 0 {
		return 0, 0, false
	}
	s := t.stamps[0]
	t.stamps = t.stamps[1:]
	return s.n, s.timeNs, true
}

// Outstanding implements ring.TX.
func (t *TX) Outstanding() int { return int(t.head - t.tail) }

// Counts implements ring.TX.
func (t *TX) Counts() ring.TXCounts { return t.counts }

// Close implements ring.TX.
func (t *TX) Close() error {
	t.open("Close")
	t.closed = true
	return nil
}

// Closed says that Close was called.
func (t *TX) Closed() bool { return t.closed }

func (t *TX) open(operation string) {
	if t.closed {
		panic("ringtest: " + operation + " after Close")
	}
}

// RX is a receiver. Its frames come in blocks of those that have arrived. It
// implements ring.RX, and overwrites a block that is released.
type RX struct {
	wire  *Wire
	woken chan struct{} // holds a token when something has changed for Next

	// Guarded by the wire's lock.
	mem   []byte // what has arrived and was not yet read
	count int
	open  bool
	drops ring.KernelDrops
	fault error

	block  ring.Block
	lent   []byte
	closed bool
}

var _ ring.RX = (*RX)(nil)

// RX makes the next receiver.
func (w *Wire) RX() *RX {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &RX{wire: w, woken: make(chan struct{}, 1)}
	w.rxs = append(w.rxs, r)
	return r
}

// Start implements ring.RX.
func (r *RX) Start() error {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	r.open = true
	return nil
}

// Started says that Start was called. Safe from any goroutine.
func (r *RX) Started() bool {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	return r.open
}

// Fail has Next return err once what has arrived is read. Safe from any goroutine.
func (r *RX) Fail(err error) {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	r.fault = err
	r.wake()
}

func (r *RX) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// The layout of a block's frames: length, time, removed tag, octets.
const header = 4 + 8 + 4

func (r *RX) receive(frame []byte, now int64) {
	if !r.open {
		return
	}
	r.drops.Packets++
	if r.count == r.wire.capacity {
		r.drops.Drops++
		return
	}
	r.count++
	head, tag, tail := frame, []byte{0, 0, 0, 0}, []byte(nil)
	if len(frame) >= 16 {
		switch binary.BigEndian.Uint16(frame[12:]) {
		case unix.ETH_P_8021Q, unix.ETH_P_8021AD: // as the kernel does (skb_vlan_untag)
			head, tag, tail = frame[:12], frame[12:16], frame[16:]
		}
	}
	r.mem = binary.NativeEndian.AppendUint32(r.mem, uint32(len(head)+len(tail)))
	r.mem = binary.NativeEndian.AppendUint64(r.mem, uint64(now))
	r.mem = append(r.mem, tag...)
	r.mem = append(r.mem, head...)
	r.mem = append(r.mem, tail...)
	r.wake()
}

// Next implements ring.RX.
func (r *RX) Next(wait time.Duration) (*ring.Block, error) {
	if r.closed {
		panic("ringtest: Next after Close")
	}
	var expired <-chan time.Time
	for {
		r.wire.mu.Lock()
		mem, count, fault := r.mem, r.count, r.fault
		r.mem, r.count = nil, 0
		r.wire.mu.Unlock()
		if count > 0 {
			r.lent = mem
			r.block.Load(walker{}, mem, 0, count)
			return &r.block, nil
		}
		if fault != nil {
			return nil, fault
		}
		if wait <= 0 {
			return nil, ring.ErrTimeout
		}
		if expired == nil {
			expired = time.After(wait)
		}
		select {
		case <-r.woken:
		case <-expired:
			wait = 0 // and one last look
		}
	}
}

// Release implements ring.RX.
func (r *RX) Release(b *ring.Block) {
	if b != &r.block || r.lent == nil {
		panic("ringtest: Release of a block that is not lent")
	}
	for i := range r.lent {
		r.lent[i] = 0xdb
	}
	r.lent = nil
}

// Drops implements ring.RX.
func (r *RX) Drops() (ring.KernelDrops, error) {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	return r.drops, nil
}

// Close implements ring.RX.
func (r *RX) Close() error {
	if r.closed {
		panic("ringtest: Close after Close")
	}
	if r.lent != nil {
		panic("ringtest: Close with a block that was not released")
	}
	r.closed = true
	return nil
}

type walker struct{}

// Frame implements ring.Walker.
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
		TPID:   binary.BigEndian.Uint16(block[off+12:]), VLAN: binary.BigEndian.Uint16(block[off+14:]),
	}
	if f.TPID != 0 {
		f.WireLen += 4
	}
	return off + header + n, true
}
