package sink

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"pktgen/frames"
	"pktgen/ring"
	"pktgen/ring/ringtest"
	"pktgen/stats"
)

const runID = 0x4242

func template(t testing.TB, stream int) *frames.Template {
	t.Helper()
	tm, err := frames.Spec{
		Size: 80, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Stamp: true, RunID: runID, StreamID: uint16(stream),
	}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// bed is a sink on a wire of memory.
type bed struct {
	t    testing.TB
	wire *ringtest.Wire
	rxs  []*ringtest.RX
	sink *Sink
	tmpl map[int]*frames.Template
}

func newBed(t testing.TB, workers, capacity int, change func(*Config)) *bed {
	b := &bed{t: t, wire: ringtest.NewWire(capacity), tmpl: map[int]*frames.Template{}}
	for range workers {
		b.rxs = append(b.rxs, b.wire.RX())
	}
	cfg := Config{Workers: workers, Open: func(i int) (ring.RX, error) { return b.rxs[i], nil }}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.sink = s
	t.Cleanup(func() { s.Stop(); s.Wait() })
	return b
}

// frame is frame n of a stream, sent at sentNs.
func (b *bed) frame(stream int, n uint64, sentNs int64) []byte {
	tm := b.tmpl[stream]
	if tm == nil {
		tm = template(b.t, stream)
		b.tmpl[stream] = tm
	}
	f := tm.Bytes()
	tm.Apply(f, n, sentNs)
	return f
}

func (b *bed) closing(stream int, count uint64) []byte {
	f := b.frame(stream, 0, 0)
	b.tmpl[stream].ApplyClosing(f, 0, count)
	return f
}

func (b *bed) end() *Result {
	b.sink.Stop()
	return b.sink.Wait()
}

// TestAccount: loss, duplicates, reordering and corruption, made at known
// places, are found by count, and the identity holds.
func TestAccount(t *testing.T) {
	b := newBed(t, 1, 1<<20, nil)
	b.sink.Start()
	put := func(f []byte) { b.wire.Inject(0, f) }
	now := time.Now().UnixNano()
	b.wire.Now = func() int64 { return now }
	const n = 1000
	for i := uint64(0); i < n; i++ {
		f := b.frame(0, i, now-int64(i+1)*1000)
		switch {
		case i >= 990: // the tail is lost, too: the closing frame knows
		case i%100 == 7: // 10 lost, one of them in the tail's hundred
		case i%100 == 20: // 10 twice
			put(f)
			put(f)
		case i%100 == 30: // 10 come after the next one
		case i%100 == 31:
			put(f)
			put(b.frame(0, i-1, now-1000))
		case i%100 == 50: // 10 damaged behind the stamp
			f[len(f)-1] ^= 0x40
			put(f)
		default:
			put(f)
		}
	}
	put(b.closing(0, n))
	put(b.closing(0, n))
	put([]byte("not a frame of ours, but long enough to be looked at, is it not?"))
	r := b.end()
	if len(r.Streams) != 1 {
		t.Fatalf("%d streams", len(r.Streams))
	}
	s := r.Streams[0]
	const lost, duplicates, reordered, corrupt = 10 + 10, 10, 10, 10
	if s.Lost() != lost || s.Duplicates != duplicates || s.Reordered != reordered || s.Corrupt != corrupt {
		t.Errorf("lost %d, duplicates %d, reordered %d, corrupt %d", s.Lost(), s.Duplicates, s.Reordered, s.Corrupt)
	}
	if n != s.Frames-s.Duplicates+s.Lost() {
		t.Errorf("%d sent, %d received, %d of them twice, %d lost", n, s.Frames, s.Duplicates, s.Lost())
	}
	c := r.Counts
	if c.Frames != s.Frames || c.Bytes != 80*s.Frames || c.Unique != s.Unique() || c.Duplicates != duplicates || c.Reordered != reordered ||
		c.Corrupt != corrupt || c.Other != 1 || c.Closing != 2 || c.Stale != 0 {
		t.Errorf("counts %+v", c)
	}
	if sum := stats.Sum(b.sink.Stats()); sum != c {
		t.Errorf("published %+v, counted %+v", sum, c)
	}
	if got := s.Latency.Summary(); got.Count != s.Frames-corrupt || got.Min != 1000 {
		t.Errorf("latency %+v of %d frames", got, s.Frames)
	}
}

// TestCorruptStamp: a damaged frame whose number cannot be believed changes
// neither the sequence nor the streams.
func TestCorruptStamp(t *testing.T) {
	b := newBed(t, 1, 1<<20, nil)
	b.sink.Start()
	for i := uint64(0); i < 100; i++ {
		f := b.frame(0, i, 1)
		switch i {
		case 40:
			f[42+6] ^= 0x40 // the number's high octet
		case 41:
			f[42+4] ^= 0x01 // the stream
		case 42:
			f[42+2] ^= 0x80 // the run
		case 43:
			f[14+8] ^= 0x01 // TTL, not in the UDP checksum
		}
		b.wire.Inject(0, f)
	}
	b.wire.Inject(0, b.closing(0, 100))
	broken := b.closing(0, 7)
	broken[42+17] ^= 1
	b.wire.Inject(0, broken)
	r := b.end()
	if len(r.Streams) != 1 {
		t.Fatalf("%d streams", len(r.Streams))
	}
	if s := r.Streams[0]; s.Frames != 97 || s.Lost() != 3 || s.Corrupt != 2 || r.Counts.Corrupt != 4 || s.Expected != 100 {
		t.Errorf("frames %d, lost %d, corrupt %d, in all %d, expected %d", s.Frames, s.Lost(), s.Corrupt, r.Counts.Corrupt, s.Expected)
	}
}

// TestDamagedNumber: one bit of a frame's number, any of them, changes one frame
// and nothing else.
func TestDamagedNumber(t *testing.T) {
	for bit := range 32 {
		for _, at := range []uint64{0, 50, 99} {
			b := newBed(t, 1, 1<<20, nil)
			b.sink.Start()
			for i := uint64(0); i < 100; i++ {
				f := b.frame(0, i, 1)
				if i == at {
					f[42+6+bit/8] ^= 1 << (bit % 8)
				}
				b.wire.Inject(0, f)
			}
			b.wire.Inject(0, b.closing(0, 100))
			s := b.end().Streams[0]
			if s.Frames != 99 || s.Lost() != 1 || s.Corrupt > 1 || s.Reordered != 0 || s.Duplicates != 0 {
				t.Errorf("bit %d of frame %d: frames %d, lost %d, corrupt %d, reordered %d, duplicates %d", bit, at, s.Frames, s.Lost(), s.Corrupt, s.Reordered, s.Duplicates)
			}
		}
	}
}

// TestRuns: with streams of its own, all others are stale; without, each is apart.
func TestRuns(t *testing.T) {
	for _, own := range []*Own{{RunID: runID, First: 2, Count: 3}, nil} {
		b := newBed(t, 1, 1<<20, func(c *Config) { c.Own = own })
		b.sink.Start()
		other := b.frame(2, 0, 1)
		binary.BigEndian.PutUint16(other[42+2:], runID+1)
		binary.BigEndian.PutUint16(other[40:], 0) // no UDP checksum
		for range 5 {
			b.wire.Inject(0, other)
		}
		for _, stream := range []int{1, 2, 4, 5} { // those of other pairs are at both ends
			b.wire.Inject(0, b.frame(stream, 0, 1))
		}
		r := b.end()
		if own != nil && (r.Counts.Stale != 7 || r.Counts.Frames != 2 || len(r.Streams) != 2) {
			t.Errorf("own run: %+v, %d streams", r.Counts, len(r.Streams))
		}
		if own == nil && (r.Counts.Stale != 0 || r.Counts.Frames != 9 || len(r.Streams) != 5) {
			t.Errorf("any run: %+v, %d streams", r.Counts, len(r.Streams))
		}
	}
}

// TestKernelPktgen: the kernel's own generator is a stream, numbered from
// wherever it began.
func TestKernelPktgen(t *testing.T) {
	b := newBed(t, 1, 1<<20, func(c *Config) { id := uint16(1); c.Own = &Own{RunID: id, Count: 1} })
	b.sink.Start()
	for seq := uint32(500); seq < 600; seq++ {
		if seq == 550 {
			continue
		}
		f := b.frame(0, 0, 1)
		binary.BigEndian.PutUint16(f[40:], 0)
		binary.BigEndian.PutUint32(f[42:], frames.MagicKernel)
		binary.BigEndian.PutUint32(f[46:], seq)
		binary.BigEndian.PutUint64(f[50:], 0)
		b.wire.Inject(0, f)
	}
	r := b.end()
	if len(r.Streams) != 1 || !r.Streams[0].KernelGen || r.Streams[0].Frames != 99 || r.Streams[0].Lost() != 1 || r.Streams[0].Latency.Count() != 0 {
		t.Errorf("%+v", r.Streams)
	}
}

// TestBoundedStreams: any number of unknown streams leaves memory bounded, and
// those beyond the bound are counted.
func TestBoundedStreams(t *testing.T) {
	b := newBed(t, 1, 1<<20, func(c *Config) { c.MaxStreams = 8 })
	b.sink.Start()
	for stream := range 100 {
		b.wire.Inject(0, b.frame(stream, 0, 1))
	}
	b.wire.Inject(0, b.frame(3, 1, 1))
	r := b.end()
	if len(r.Streams) != 8 || r.Overflow != 92 || r.Counts.Frames != 9 {
		t.Errorf("%d streams, %d beyond, %d frames", len(r.Streams), r.Overflow, r.Counts.Frames)
	}
}

// TestMoved: a stream that moves from one worker to another is one stream.
func TestMoved(t *testing.T) {
	b := newBed(t, 2, 1<<20, nil)
	b.sink.Start()
	for i := uint64(0); i < 100; i++ {
		b.wire.Inject(int(i/60), b.frame(0, i, 1))
	}
	b.wire.Inject(1, b.closing(0, 100))
	r := b.end()
	if len(r.Streams) != 1 || r.Streams[0].Frames != 100 || r.Streams[0].Lost() != 0 || !r.Streams[0].Closed || r.Streams[0].Latency.Count() != 100 {
		t.Errorf("%d streams: %+v", len(r.Streams), r.Counts)
	}
}

// TestUncheckedNumber: where no checksum vouches for the numbers, one that is
// damaged is one frame lost, not a million; a real outage of any length is told
// from it by the frames after it; a closing frame is believed when two agree.
func TestUncheckedNumber(t *testing.T) {
	run := func(alter func(i uint64, f []byte), from uint64) *Result {
		b := newBed(t, 1, 1<<20, nil)
		b.sink.cfg.NoVerify = true
		b.sink.Start()
		for i := range uint64(100) {
			n := i
			if i >= 50 {
				n += from
			}
			f := b.frame(0, n, 1)
			alter(i, f)
			b.wire.Inject(0, f)
		}
		lie := b.closing(0, 1<<40)
		b.wire.Inject(0, lie)
		for range 2 {
			b.wire.Inject(0, b.closing(0, 100+from))
		}
		return b.end()
	}
	for bit := range 32 {
		for _, at := range []uint64{0, 1, 50, 98, 99} {
			r := run(func(i uint64, f []byte) {
				if i == at {
					f[42+6+bit/8] ^= 1 << (bit % 8)
				}
			}, 0)
			s := r.Streams[0]
			if s.Lost() > 1 || s.Unique()+s.Corrupt < 99 || s.Frames+s.Corrupt != 100 || r.Counts.Corrupt != s.Corrupt || r.Counts.Frames != s.Frames {
				t.Errorf("bit %d of frame %d: frames %d, lost %d, corrupt %d, duplicates %d", bit, at, s.Frames, s.Lost(), s.Corrupt, s.Duplicates)
			}
		}
	}
	for _, outage := range []uint64{1, 1 << 16, 1<<20 - 1, 1 << 20, 1<<20 + 1, 1 << 28} {
		r := run(func(uint64, []byte) {}, outage)
		if s := r.Streams[0]; s.Frames != 100 || s.Lost() != outage || s.Corrupt != 0 || r.Counts.Unique != 100 {
			t.Errorf("an outage of %d frames: %d received, %d lost, %d corrupt", outage, s.Frames, s.Lost(), s.Corrupt)
		}
	}
}

// TestStartDiscards: what arrived before the start is not counted, nor are its drops.
func TestStartDiscards(t *testing.T) {
	b := newBed(t, 1, 10, nil)
	for i := uint64(0); i < 50; i++ {
		b.wire.Inject(0, b.frame(0, i, 1))
	}
	b.sink.Start()
	b.wire.Inject(0, b.frame(0, 50, 1))
	r := b.end()
	if r.Counts.Frames != 1 || r.Counts.KernelDrops != 0 || r.Streams[0].First() != 50 {
		t.Errorf("%+v", r.Counts)
	}
}

// TestDrops: what the ring had no room for is counted as the kernel counts it.
func TestDrops(t *testing.T) {
	b := newBed(t, 1, 10, nil)
	b.sink.Start()
	sent := uint64(0)
	for range 100_000 {
		b.wire.Inject(0, b.frame(0, sent, 1))
		sent++
	}
	b.wire.Alter = nil
	r := b.end()
	d, _ := b.rxs[0].Drops()
	if d.Drops == 0 || r.Counts.KernelDrops != d.Drops || r.Counts.Frames+d.Drops != sent {
		t.Errorf("%d sent, %d received, %d dropped by the ring, %d reported", sent, r.Counts.Frames, d.Drops, r.Counts.KernelDrops)
	}
}

// TestLinkDown: the workers end, Failed tells, and the counts are there.
func TestLinkDown(t *testing.T) {
	b := newBed(t, 2, 1<<20, nil)
	b.sink.Start()
	b.wire.Inject(0, b.frame(0, 0, 1))
	b.rxs[0].Fail(ring.ErrLinkDown)
	b.rxs[1].Fail(ring.ErrLinkDown)
	select {
	case <-b.sink.Failed():
	case <-time.After(5 * time.Second):
		t.Fatal("not told")
	}
	if r := b.end(); !errors.Is(r.Err, ring.ErrLinkDown) || r.Counts.Frames != 1 {
		t.Errorf("error %v, %d frames", r.Err, r.Counts.Frames)
	}
}

// TestOpenFails: one ring that cannot be had closes the others.
func TestOpenFails(t *testing.T) {
	bad := errors.New("no ring")
	w := ringtest.NewWire(10)
	rx := w.RX()
	_, err := Open(Config{Workers: 3, Open: func(i int) (ring.RX, error) {
		if i == 1 {
			return nil, bad
		}
		return rx, nil
	}})
	if !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
}

// TestNoAllocation: neither frames of ours nor garbage allocate anything.
func TestNoAllocation(t *testing.T) {
	w, block := benchWorker(t, 1)
	if n := testing.AllocsPerRun(100, func() { w.block(block()) }); n != 0 {
		t.Errorf("%v allocations a block of ours", n)
	}
	var f ring.Frame
	rnd := rand.New(rand.NewPCG(1, 2))
	garbage := make([][]byte, 1000)
	for i := range garbage {
		garbage[i] = make([]byte, rnd.IntN(200))
		for j := range garbage[i] {
			garbage[i][j] = byte(rnd.Uint32())
		}
		if len(garbage[i]) > 60 && i%2 == 0 { // stamped garbage, of ever new runs and streams
			copy(garbage[i], template(t, 0).Bytes()[:60])
			binary.BigEndian.PutUint16(garbage[i][40:], 0)
			binary.BigEndian.PutUint32(garbage[i][44:], rnd.Uint32())
		}
	}
	w.streams.max = len(w.streams.list)
	if n := testing.AllocsPerRun(10, func() {
		for _, g := range garbage {
			f = ring.Frame{Data: g, WireLen: len(g)}
			w.frame = f
			w.one(&w.frame)
		}
	}); n != 0 {
		t.Errorf("%v allocations for garbage", n)
	}
}

// benchWorker is a worker, and blocks of 256 frames of some streams for it.
func benchWorker(t testing.TB, streams int) (*worker, func() *ring.Block) {
	s := &Sink{cfg: Config{Workers: 1, MaxStreams: max(streams, 8)}, counts: stats.NewSet[stats.RxCounts](1)}
	w := newWorker(s, 0)
	b := &bed{t: t, wire: ringtest.NewWire(1 << 20), tmpl: map[int]*frames.Template{}}
	rx := b.wire.RX()
	_ = rx.Start() // it never fails
	for i := range 256 {
		b.wire.Inject(0, b.frame(i%streams, uint64(i/streams), time.Now().UnixNano()-1000))
	}
	first, err := rx.Next(0)
	if err != nil {
		t.Fatal(err)
	}
	saved := *first
	block := &ring.Block{}
	return w, func() *ring.Block { *block = saved; return block }
}

// BenchmarkBlock is all that pktgen itself does for a received frame.
func BenchmarkBlock(b *testing.B) {
	for _, c := range []struct {
		name    string
		streams int
	}{{"size=80/streams=1", 1}, {"size=80/streams=64", 64}} {
		b.Run(c.name, func(b *testing.B) {
			w, block := benchWorker(b, c.streams)
			n := 0
			for b.Loop() {
				if n%256 == 0 {
					w.block(block())
				}
				n++
			}
		})
	}
}
