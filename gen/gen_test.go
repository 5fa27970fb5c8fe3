package gen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"pktgen/frames"
	"pktgen/internal/clock"
	"pktgen/ring"
	"pktgen/ring/ringtest"
	"pktgen/stats"
	"pktgen/units"
)

func template(t testing.TB, stream int, flows uint32) *frames.Template {
	t.Helper()
	tm, err := frames.Spec{
		Size: 64, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Flows: flows, Stamp: true, RunID: 77, StreamID: uint16(stream),
	}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// bed is a generator on wires of memory, one a worker.
type bed struct {
	cfg   Config
	wires []*ringtest.Wire
	txs   []*ringtest.TX
	rxs   []*ringtest.RX
}

// started is a receiver that takes what arrives.
func started(w *ringtest.Wire) *ringtest.RX {
	rx := w.RX()
	_ = rx.Start() // it never fails
	return rx
}

func newBed(t testing.TB, workers, slots int) *bed {
	b := &bed{}
	templates := make([]*frames.Template, workers)
	for i := range workers {
		w := ringtest.NewWire(1 << 24)
		b.wires, b.rxs, b.txs = append(b.wires, w), append(b.rxs, started(w)), append(b.txs, w.TX(slots, 60))
		templates[i] = template(t, i, 0)
	}
	b.cfg = Config{
		Workers:  workers,
		Open:     func(i int) (ring.TX, error) { return b.txs[i], nil },
		Template: func(i int) *frames.Template { return templates[i] },
	}
	return b
}

// arrived reads what has come out of a wire: the sequence numbers, and the
// counts of the closing frames.
func (b *bed) arrived(t testing.TB, worker int) (seqs []uint32, closing []uint64) {
	t.Helper()
	for {
		block, err := b.rxs[worker].Next(0)
		if err != nil {
			return seqs, closing
		}
		var f ring.Frame
		var p frames.Parsed
		for block.Next(&f) {
			kind := frames.ParseStamp(f.Data, &p)
			if p.Stamp.StreamID != uint16(worker) || p.Stamp.RunID != 77 || !frames.VerifyChecksums(f.Data, &p) {
				t.Fatalf("frame %+v of stream %d", p, worker)
			}
			switch kind {
			case frames.KindTest:
				seqs = append(seqs, p.Stamp.Seq)
			case frames.KindClosing:
				closing = append(closing, p.Stamp.Count)
			default:
				t.Fatalf("kind %d", kind)
			}
		}
	}
}

// TestCountIsExact: all workers together send exactly what was asked for, in
// order, and then say so.
func TestCountIsExact(t *testing.T) {
	for _, c := range []struct {
		workers, slots, batch int
		count                 uint64
		rate                  units.FrameRate
		refill                bool
	}{
		{1, 512, 0, 1, units.FrameRate{}, false},
		{1, 512, 0, 100_000, units.FrameRate{}, false},
		{3, 7, 64, 10_001, units.FrameRate{}, false},
		{2, 512, 1, 5_000, units.FrameRate{Num: 1_000_000, Den: 1e9}, false},
		{4, 100, 64, 2_003, units.FrameRate{Num: 100_000, Den: 1e9}, true},
		{5, 100, 64, 3, units.FrameRate{Num: 1000, Den: 1e9}, false},
	} {
		b := newBed(t, c.workers, c.slots)
		b.cfg.Count, b.cfg.Pattern.Rate, b.cfg.Batch, b.cfg.Refill = c.count, c.rate, c.batch, c.refill
		g, err := Open(b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		results := g.Wait()
		if err := g.Close(3); err != nil {
			t.Fatal(err)
		}
		var sum uint64
		for i, r := range results {
			if r.Err != nil || r.Sent != r.Offered || r.Unsent != 0 || r.Bytes != 64*r.Sent {
				t.Errorf("%+v: result %+v", c, r)
			}
			seqs, closing := b.arrived(t, i)
			for n, s := range seqs {
				if s != uint32(n) {
					t.Fatalf("%+v: worker %d: frame %d has number %d", c, i, n, s)
				}
			}
			if uint64(len(seqs)) != r.Sent {
				t.Errorf("%+v: worker %d: %d arrived of %d", c, i, len(seqs), r.Sent)
			}
			if len(closing) != 3 || closing[0] != r.Sent || closing[2] != r.Sent {
				t.Errorf("%+v: worker %d: closing frames say %v, sent %d", c, i, closing, r.Sent)
			}
			if !b.txs[i].Closed() {
				t.Errorf("%+v: ring %d is still open", c, i)
			}
			sum += r.Sent
		}
		if sum != c.count {
			t.Errorf("%+v: %d sent", c, sum)
		}
		if s := stats.Sum(g.Stats()); s.Sent != c.count || s.Offered != c.count {
			t.Errorf("%+v: the counters say %+v", c, s)
		}
	}
}

// TestDurationSendsRateTimesTime: with a rate, a duration is a number of frames.
func TestDurationSendsRateTimesTime(t *testing.T) {
	b := newBed(t, 2, 1024)
	b.cfg.Pattern.Rate, b.cfg.Duration = units.FrameRate{Num: 20_000, Den: 1e9}, 200*time.Millisecond
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	var sent, late uint64
	for _, r := range g.Wait() {
		sent += r.Sent
		late += r.Late
	}
	g.Close(0)
	// A machine that did not let it run for the last tenths of a second may keep
	// it from sending all; it says so.
	if sent > 4000 || (sent < 4000 && late == 0) {
		t.Errorf("%d sent in 200 ms at 20,000 a second, late %d times", sent, late)
	}
}

// TestStop ends a run at any rate soon, with what was sent so far.
func TestStop(t *testing.T) {
	for _, rate := range []units.FrameRate{{}, {Num: 1, Den: 3600e9}, {Num: 1000, Den: 1e9}} {
		b := newBed(t, 2, 64)
		b.cfg.Pattern.Rate = rate
		g, err := Open(b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		for stats.Sum(g.Stats()).Sent == 0 {
			time.Sleep(time.Millisecond)
		}
		g.Stop()
		done := make(chan []Result)
		go func() { done <- g.Wait() }()
		select {
		case rs := <-done:
			for i, r := range rs {
				if seqs, _ := b.arrived(t, i); uint64(len(seqs)) != r.Sent || r.Err != nil {
					t.Errorf("rate %v: %d arrived, result %+v", rate, len(seqs), r)
				}
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("rate %v: no end", rate)
		}
		g.Close(0)
	}
}

// TestFaults: a busy device is waited for; any other error ends the worker,
// with its counts, and the rings are closed.
func TestFaults(t *testing.T) {
	t.Run("busy", func(t *testing.T) {
		b := newBed(t, 1, 64)
		var n atomic.Int64
		b.txs[0].Fault = func() error {
			if n.Add(1)%3 != 0 {
				return ring.ErrBusy
			}
			return nil
		}
		b.cfg.Count = 1000
		g, err := Open(b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		if r := g.Wait()[0]; r.Err != nil || r.Sent != 1000 || r.Busy == 0 {
			t.Errorf("%+v", r)
		}
		g.Close(0)
	})
	t.Run("link down", func(t *testing.T) {
		b := newBed(t, 1, 64)
		var n atomic.Int64
		b.txs[0].Fault = func() error {
			if n.Add(1) > 5 {
				return ring.ErrLinkDown
			}
			return nil
		}
		b.cfg.Batch = 10
		g, err := Open(b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		if r := g.Wait()[0]; !errors.Is(r.Err, ring.ErrLinkDown) || r.Sent != 50 || r.Offered != 60 || r.Unsent != 10 {
			t.Errorf("%+v", r)
		}
		if err := g.Close(5); err != nil {
			t.Error(err)
		}
		if _, closing := b.arrived(t, 0); len(closing) != 0 {
			t.Error("closing frames on a link that is down")
		}
	})
	t.Run("stalled", func(t *testing.T) {
		b := newBed(t, 1, 64)
		b.txs[0].Stopped = true
		g, err := Open(b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		if r := g.Wait()[0]; !errors.Is(r.Err, ErrStalled) || r.Sent != 0 || r.Unsent != 64 {
			t.Errorf("%+v", r)
		}
		g.Close(0)
	})
	t.Run("open", func(t *testing.T) {
		b := newBed(t, 3, 64)
		bad := errors.New("no ring")
		open := b.cfg.Open
		b.cfg.Open = func(i int) (ring.TX, error) {
			if i == 1 {
				return nil, bad
			}
			return open(i)
		}
		if _, err := Open(b.cfg); !errors.Is(err, bad) {
			t.Errorf("error %v", err)
		}
		if !b.txs[0].Closed() || !b.txs[2].Closed() {
			t.Error("the other rings are still open")
		}
	})
}

// TestCloseWithoutStart: a generator that is opened and never started, because
// something else failed, ends and sends nothing.
func TestCloseWithoutStart(t *testing.T) {
	b := newBed(t, 2, 64)
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- g.Close(0) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not return")
	}
	for i, tx := range b.txs {
		if seqs, closing := b.arrived(t, i); len(seqs) != 0 || len(closing) != 0 || !tx.Closed() {
			t.Errorf("worker %d: %d frames, %d closing frames, closed: %v", i, len(seqs), len(closing), tx.Closed())
		}
	}
}

// TestDepartures: what the kernel says of the sampled frames is put to their
// sequence numbers; a device that tells nothing, or ends telling, does no harm.
func TestDepartures(t *testing.T) {
	b := newBed(t, 1, 1024)
	b.cfg.Pattern.Rate, b.cfg.Count = units.FrameRate{Num: 20_000, Den: 1e9}, 3000
	b.cfg.Sampling = stats.NewSampling(25_600, 0) // runs of 16 in 256
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	r := g.Wait()[0]
	g.Close(0)
	want := 0
	for seq := range uint64(3000) {
		if b.cfg.Sampling.Has(seq) {
			want++
		}
	}
	if want == 0 || want == 3000 {
		t.Fatalf("%d of 3000 sampled", want)
	}
	if len(r.Samples) != want || r.Lag.Count() != uint64(want) {
		t.Errorf("%d times, %d lags, want %d", len(r.Samples), r.Lag.Count(), want)
	}
	if runs := uint64(want) / stats.SampleRun; r.Gaps.Count() != uint64(want)-runs-1 && r.Gaps.Count() != uint64(want)-runs {
		t.Errorf("%d gaps in %d runs of %d", r.Gaps.Count(), runs, want)
	}
	for i, s := range r.Samples {
		if !b.cfg.Sampling.Has(s.Seq) || (i > 0 && (s.Seq <= r.Samples[i-1].Seq || s.TimeNs < r.Samples[i-1].TimeNs)) {
			t.Fatalf("sample %d: %+v", i, s)
		}
	}
	if l := r.Lag.Summary(); l.Min <= 0 || l.Negative != 0 {
		t.Errorf("%+v", l)
	}

	b = newBed(t, 1, 1024)
	b.cfg.Pattern.Rate, b.cfg.Count = units.FrameRate{Num: 20_000, Den: 1e9}, 300
	b.cfg.Sampling = stats.NewSampling(1, 0)
	b.txs[0].NoStamp = errors.New("not here")
	if g, err = Open(b.cfg); err != nil {
		t.Fatal(err)
	}
	g.Start()
	if r := g.Wait()[0]; r.Sent != 300 || r.Gaps != nil && r.Gaps.Count() != 0 {
		t.Errorf("%d sent, of 300", r.Sent)
	}
	g.Close(0)
}

// TestLaunchTimes: each frame is handed over before its time, with the time that
// the schedule has for it, which its stamp says too.
func TestLaunchTimes(t *testing.T) {
	const ahead, step, offset = 20 * time.Millisecond, int64(time.Millisecond), int64(1e18)
	b := newBed(t, 1, 64)
	b.cfg.Pattern.Rate, b.cfg.Count = units.FrameRate{Num: 1000, Den: 1e9}, 100
	b.cfg.Launch = Launch{Ahead: ahead, At: func(monoNs int64) int64 { return monoNs + offset }}
	var early []int64
	b.txs[0].Fault = func() error { // on the worker's own thread
		early = append(early, b.txs[0].Launched[len(b.txs[0].Launched)-1]-offset-clock.Mono())
		return nil
	}
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	r := g.Wait()[0]
	launched := b.txs[0].Launched
	g.Close(0)
	if r.Sent != 100 || len(launched) != 100 {
		t.Fatalf("%d sent, %d times", r.Sent, len(launched))
	}
	for i, at := range launched {
		if i > 0 && at-launched[i-1] != step {
			t.Errorf("frame %d leaves %d ns after the one before, want %d", i, at-launched[i-1], step)
		}
		if early[i] > int64(ahead) {
			t.Errorf("frame %d was handed over %v before its time, want at most %v", i, time.Duration(early[i]), ahead)
		}
	}
	if took := r.LastNs - r.FirstNs; took < 99*step {
		t.Errorf("from the first to the last %v", time.Duration(took))
	}
	blk, err := b.rxs[0].Next(0)
	if err != nil {
		t.Fatal(err)
	}
	var f ring.Frame
	var last int64
	for n := 0; blk.Next(&f); n++ {
		var p frames.Parsed
		if frames.ParseStamp(f.Data, &p) != frames.KindTest {
			continue
		}
		if d := p.Stamp.TimeNs - last; n > 0 && (d < step-10_000 || d > step+10_000) { // two clocks are read
			t.Errorf("frame %d: stamped %d ns after the one before", n, d)
		}
		last = p.Stamp.TimeNs
	}
	b.rxs[0].Release(blk)
}

// TestSlowDrain: frames leave the ring long after they were handed over; the
// time of sending includes that.
func TestSlowDrain(t *testing.T) {
	b := newBed(t, 1, 1024)
	b.cfg.Count = 100
	b.txs[0].Stopped = true
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	const slow = 50 * time.Millisecond
	var first atomic.Int64
	b.txs[0].Fault = func() error { // on the worker's own thread, as Stopped is
		now := time.Now().UnixNano()
		first.CompareAndSwap(0, now)
		b.txs[0].Stopped = now-first.Load() < int64(slow)
		return nil
	}
	g.Start()
	r := g.Wait()[0]
	g.Close(0)
	if took := time.Duration(r.LastNs - r.FirstNs); r.Sent != 100 || r.Unsent != 0 || took < slow {
		t.Errorf("%d sent in %v, want 100 in more than %v", r.Sent, took, slow)
	}
}

// TestMissed: a random pattern has no number of frames to hold the run to; what
// was due and not sent is counted.
func TestMissed(t *testing.T) {
	b := newBed(t, 1, 1024)
	b.cfg.Pattern = Pattern{Rate: units.FrameRate{Num: 10_000, Den: 1e9}, Poisson: true}
	b.cfg.Duration = 50 * time.Millisecond
	var n atomic.Int64
	b.txs[0].Fault = func() error {
		if n.Add(1) == 10 {
			time.Sleep(100 * time.Millisecond) // beyond the end
		}
		return nil
	}
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	r := g.Wait()[0]
	g.Close(0)
	// Some 500 were due: 22 is their standard deviation.
	if total := r.Offered + r.Missed; r.Missed == 0 || total < 350 || total > 650 {
		t.Errorf("%d offered, %d missed, of some 500", r.Offered, r.Missed)
	}
}

// TestLate: a device that takes nothing for a while makes a paced sender late,
// which is counted, and caught up with: rate x time is sent all the same.
func TestLate(t *testing.T) {
	b := newBed(t, 1, 1024)
	b.cfg.Pattern.Rate, b.cfg.Duration = units.FrameRate{Num: 10_000, Den: 1e9}, 300*time.Millisecond
	var n atomic.Int64
	b.txs[0].Fault = func() error {
		if n.Add(1) == 100 {
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	g, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	r := g.Wait()[0]
	g.Close(0)
	if r.Late == 0 || r.LateMaxNs < 20_000_000 {
		t.Errorf("late %d times, at most %v", r.Late, time.Duration(r.LateMaxNs))
	}
	if r.Sent > 3000 || (r.Sent < 3000 && r.Late < 2) {
		t.Errorf("%d sent, want 3000; late %d times", r.Sent, r.Late)
	}
}

// TestRefillIsTheSame: copying the whole frame sends the same octets as editing
// what differs.
func TestRefillIsTheSame(t *testing.T) {
	tm := template(t, 0, 100)
	var got [2][]byte
	for i, refill := range []bool{false, true} {
		w := ringtest.NewWire(1 << 16)
		rx, tx := started(w), w.TX(32, 60)
		g, err := Open(Config{
			Workers: 1, Count: 1000, Refill: refill,
			Open:     func(int) (ring.TX, error) { return tx, nil },
			Template: func(int) *frames.Template { return tm },
		})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		g.Wait()
		g.Close(0)
		for {
			block, err := rx.Next(0)
			if err != nil {
				break
			}
			var f ring.Frame
			var p frames.Parsed
			for block.Next(&f) {
				frames.ParseStamp(f.Data, &p)
				if !frames.VerifyChecksums(f.Data, &p) {
					t.Fatal("checksum")
				}
				binary.BigEndian.PutUint64(f.Data[p.Payload+10:], 0) // the time differs from run to run
				binary.BigEndian.PutUint16(f.Data[p.L4+6:], 0)       // and so does the checksum
				got[i] = append(got[i], f.Data...)
			}
		}
	}
	if len(got[0]) != 60*1000 || string(got[0]) != string(got[1]) {
		t.Errorf("%d and %d octets, alike: %v", len(got[0]), len(got[1]), string(got[0]) == string(got[1]))
	}
}

// nullTX takes every frame at once.
type nullTX struct {
	slots [][]byte
	sent  uint64
}

func (n *nullTX) Prefill(fill func([]byte) int) {
	n.slots = make([][]byte, 256)
	for i := range n.slots {
		n.slots[i] = make([]byte, 60)
		fill(n.slots[i])
	}
}
func (n *nullTX) Reserve(max int) [][]byte { return n.slots[:min(max, len(n.slots))] }
func (n *nullTX) Commit(f [][]byte)        { n.sent += uint64(len(f)) }
func (n *nullTX) Kick() error              { return nil }
func (n *nullTX) Wait(time.Duration) error { return nil }
func (n *nullTX) Outstanding() int         { return 0 }
func (n *nullTX) Counts() ring.TXCounts    { return ring.TXCounts{Sent: n.sent} }
func (n *nullTX) Close() error             { return nil }

// TestNoAllocation: a batch allocates nothing.
func TestNoAllocation(t *testing.T) {
	w := benchWorker(t)
	if n := testing.AllocsPerRun(1000, func() {
		if err := w.send(w.tx.Reserve(64)); err != nil {
			t.Fatal(err)
		}
		w.publish()
	}); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

func benchWorker(t testing.TB) *worker {
	g := &Generator{cfg: Config{Workers: 1}, counts: stats.NewSet[stats.TxCounts](1)}
	w := newWorker(g, 0, 0)
	w.tmpl = template(t, 0, 0)
	tx := &nullTX{}
	tx.Prefill(func(b []byte) int { return copy(b, w.tmpl.Bytes()) })
	w.tx = tx
	return w
}

// BenchmarkSend is all that pktgen itself does for a frame, in ns a frame.
func BenchmarkSend(b *testing.B) {
	for _, batch := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			w := benchWorker(b)
			n := 0
			for b.Loop() {
				if n%batch == 0 {
					_ = w.send(w.tx.Reserve(batch))
					w.publish()
				}
				n++
			}
		})
	}
}
