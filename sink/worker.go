package sink

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"pktgen/frames"
	"pktgen/internal/clock"
	"pktgen/internal/pin"
	"pktgen/ring"
	"pktgen/stats"
	"pktgen/units"
)

const (
	// waitBlock bounds the wait for a block, so that the stop flag is seen.
	waitBlock = 20 * time.Millisecond
	// lastWait is longer than the kernel keeps a block that is not full.
	lastWait = 12 * time.Millisecond
	// lastNs bounds the counting after Stop while frames still come in.
	lastNs = 300_000_000
	// dropsNs is how often the kernel is asked for its drops.
	dropsNs = 100_000_000
)

// worker is one queue's receiver. All but the atomics is owned by its
// goroutine until the sink's stopped group says that it has ended.
type worker struct {
	s       *Sink
	index   int
	cpu     int
	rx      ring.RX
	streams table
	parsed  frames.Parsed
	frame   ring.Frame
	counts  stats.RxCounts
	shard   *stats.Shard[stats.RxCounts]

	overflow  uint64
	hardware  uint64
	malformed uint64
	drops     ring.KernelDrops
	dropsAtNs int64
	err       error

	gaps    *stats.Latency
	latency *stats.Latency                // since the last cut
	handed  atomic.Pointer[stats.Latency] // to Cut
	spare   atomic.Pointer[stats.Latency] // back from it
	cut     atomic.Uint64                 // the last one that was answered
	ended   atomic.Bool

	started chan struct{}
	seen    atomic.Uint32 // streams
	closed  atomic.Uint32 // streams whose closing frame has come
}

func newWorker(s *Sink, index int) *worker {
	w := &worker{
		s: s, index: index, cpu: -1,
		streams: newTable(s.cfg.MaxStreams),
		shard:   s.counts.Shard(index),
		started: make(chan struct{}),
		gaps:    stats.NewLatency(), latency: stats.NewLatency(),
	}
	if s.cfg.CPUs != nil {
		w.cpu = s.cfg.CPUs[index]
	}
	return w
}

// run is the life of a worker, on a thread that dies with it: it has been
// pinned, and may stand in another network namespace.
func (w *worker) run(ready chan<- error) {
	runtime.LockOSThread()
	defer w.ended.Store(true)
	err := w.open()
	ready <- err
	if err != nil {
		close(w.started)
		return
	}
	<-w.s.start
	err = w.rx.Start()
	close(w.started)
	if err == nil {
		err = w.loop()
	}
	if err != nil {
		w.err = err
		w.s.fails.Do(func() { close(w.s.failed) })
	}
	for _, st := range w.streams.list {
		st.disbelieve(&w.counts)
	}
	w.readDrops()
	stats.Publish(w.shard, &w.counts)
	w.err = errors.Join(w.err, w.rx.Close())
}

func (w *worker) open() error {
	cfg := &w.s.cfg
	if err := pin.Worker(cfg.Enter, w.cpu); err != nil {
		return err
	}
	rx, err := cfg.Open(w.index)
	if err != nil {
		return err
	}
	w.rx = rx
	return nil
}

// loop counts until Stop, and then what has arrived by then.
func (w *worker) loop() error {
	wait, endNs := waitBlock, int64(0)
	for {
		b, err := w.rx.Next(wait)
		if err == nil {
			w.block(b)
			w.rx.Release(b)
		} else if !errors.Is(err, ring.ErrTimeout) {
			return err
		} else if endNs != 0 {
			return nil
		}
		now := clock.Mono()
		if now-w.dropsAtNs > dropsNs {
			w.dropsAtNs = now
			w.readDrops()
		}
		stats.Publish(w.shard, &w.counts)
		if cut := w.s.cuts.Load(); cut != w.cut.Load() {
			w.handOver(cut)
		}
		if endNs == 0 && w.s.stop.Load() {
			wait, endNs = lastWait, now+lastNs
		}
		if endNs != 0 && now > endNs {
			return nil
		}
	}
}

// handOver gives Cut the latencies since the last one.
func (w *worker) handOver(cut uint64) {
	fresh := w.spare.Swap(nil)
	if fresh == nil {
		fresh = stats.NewLatency()
	}
	w.handed.Store(w.latency)
	w.latency = fresh
	w.cut.Store(cut)
}

func (w *worker) readDrops() {
	d, err := w.rx.Drops()
	if err != nil {
		return // the link is lost, and Next says so; the last reading stands
	}
	w.drops = d
	w.counts.KernelDrops = w.drops.Drops
}

func (w *worker) block(b *ring.Block) {
	f := &w.frame
	for b.Next(f) {
		if f.Hardware && w.s.cfg.System != nil {
			w.hardware++
			f.TimeNs = w.s.cfg.System(f.TimeNs)
		}
		w.one(f)
	}
	if b.Malformed() {
		w.malformed++
	}
}

// one counts a frame as what it is.
func (w *worker) one(f *ring.Frame) {
	switch frames.ParseStamp(f.Data, &w.parsed) {
	case frames.KindTest, frames.KindReturned, frames.KindKernelPktgen:
		w.test(f)
	case frames.KindClosing:
		w.closing(f)
	default:
		w.counts.Other++
		w.counts.OtherBytes += uint64(units.FromSocket(f.WireLen))
	}
}

// test counts a frame with a stamp.
func (w *worker) test(f *ring.Frame) {
	stamp := &w.parsed.Stamp
	corrupt := w.corrupt(f)
	st := w.stream(stamp, corrupt)
	if st == nil {
		return
	}
	if corrupt {
		w.counts.Corrupt++
		st.Corrupt++
		st.doubt(stamp.Seq, units.FromSocket(f.WireLen), f.TimeNs)
		return
	}
	if st.window.Ahead(stamp.Seq) > farAhead && w.unchecked(f) {
		if !st.believe(stamp.Seq, units.FromSocket(f.WireLen), f.TimeNs, &w.counts) {
			return
		}
	} else if st.holds {
		st.disbelieve(&w.counts)
	}
	if st.LastNs != 0 {
		w.gaps.Observe(f.TimeNs - st.LastNs)
	}
	fresh := st.observe(units.FromSocket(f.WireLen), f.TimeNs, stamp, &w.counts)
	if stamp.TimeNs != 0 {
		w.latency.Observe(st.time(f.TimeNs, stamp, fresh))
	}
}

// corrupt says that the frame's checksums are wrong.
func (w *worker) corrupt(f *ring.Frame) bool {
	return !w.s.cfg.NoVerify && !f.ChecksumPartial && !frames.VerifyChecksums(f.Data, &w.parsed)
}

// unchecked says that nothing shows whether the frame's stamp was damaged.
func (w *worker) unchecked(f *ring.Frame) bool {
	return w.s.cfg.NoVerify || f.ChecksumPartial || frames.Unchecked(f.Data, &w.parsed)
}

// closing notes how many frames its stream has.
func (w *worker) closing(f *ring.Frame) {
	stamp := &w.parsed.Stamp
	if w.corrupt(f) {
		w.counts.Other++ // not a word of it can be believed
		return
	}
	st := w.stream(stamp, false)
	if st == nil {
		return
	}
	w.counts.Closing++
	if !st.Closed && (!w.unchecked(f) || st.claim(stamp.Count)) {
		st.Closed, st.Expected = true, stamp.Count
		if st.doubtfuls > 0 { // the last frames of the stream
			st.settle(st.window.Next(), stamp.Count, &w.counts)
		}
		w.closed.Add(1)
	}
}

// stream finds or makes the stream of a stamp; nil, and the frame counted as
// what it is, where there is none. A corrupt frame makes no stream.
func (w *worker) stream(stamp *frames.Stamp, corrupt bool) *Stream {
	own := w.s.cfg.Own
	if own != nil && stamp.Kind != frames.KindKernelPktgen && (stamp.RunID != own.RunID || stamp.StreamID-own.First >= own.Count) {
		w.counts.Stale++
		return nil
	}
	k := makeKey(stamp)
	if st := w.streams.find(k); st != nil {
		return st
	}
	if corrupt {
		w.counts.Corrupt++
		return nil
	}
	st := w.streams.add(k)
	if st == nil {
		w.overflow++
		return nil
	}
	if own != nil && own.Sampling.Any() && !st.KernelGen {
		st.sampling, st.Samples = own.Sampling, make([]stats.Sample, 0, stats.MaxSamples)
	}
	w.seen.Add(1)
	return st
}

// merge adds what another worker has seen of the same stream: it was moved
// from one to the other, so that no frame is in both.
func (s *Stream) merge(o *Stream) {
	if o.Frames > s.Frames {
		s.Jitter = o.Jitter // jitter is of frames in a row: that of the longer part stands
	}
	s.Frames += o.Frames
	s.Bytes += o.Bytes
	s.Duplicates += o.Duplicates
	s.Reordered += o.Reordered
	s.TooOld += o.TooOld
	s.Corrupt += o.Corrupt
	if o.Frames > 0 && (s.FirstNs == 0 || o.FirstNs < s.FirstNs) {
		s.FirstNs = o.FirstNs
	}
	s.LastNs = max(s.LastNs, o.LastNs)
	if o.Closed {
		s.Closed, s.Expected = true, o.Expected
	}
	if o.window.Next() > s.window.Next() {
		s.window = o.window
	}
	s.Latency.Merge(o.Latency)
	s.Delay.Merge(o.Delay)
	s.Samples = append(s.Samples, o.Samples...)
	switch {
	case s.RoundTrip == nil:
		s.RoundTrip = o.RoundTrip
	case o.RoundTrip != nil:
		s.RoundTrip.Residence.Merge(o.RoundTrip.Residence) // of the clocks, what the first worker saw stands
	}
}
