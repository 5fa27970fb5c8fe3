package count

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pktgen/internal/clock"
	"pktgen/internal/xdp"
	"pktgen/sink"
	"pktgen/stats"
)

// Config describes the receiving of one interface.
type Config struct {
	Name       string // of the interface, for errors
	Index      int    // in the namespace that Enter enters
	MTU        int
	Enter      func() error // moves the calling thread into the interface's network namespace; may be nil
	Own        *sink.Own    // count these streams only, all others as stale; nil: all are ours
	MaxStreams int          // 0: sink.DefaultMaxStreams
	NoVerify   bool         // take checksums as right: no corrupt frame is found
}

// ErrUnable: this backend cannot be had here; what it wraps says why.
var ErrUnable = errors.New("no sink in the driver")

func unable(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrUnable, fmt.Errorf(format, a...))
}

// publishEvery is how often the counters are made seen outside.
const publishEvery = 10 * time.Millisecond

// settle is how long programs that run while counting ends may go on.
const settle = 2 * time.Millisecond

// onePiece is the largest MTU whose frames every driver hands over in one piece.
const onePiece = 3000

// Sink is an XDP program on a port. It is used as sink.Sink is; its methods are
// safe from any goroutine.
type Sink struct {
	cfg      Config
	objects  countObjects
	attached *xdp.Attached
	memory   *ebpf.Memory // of by_cpu
	cpus     int
	counts   *stats.Set[stats.RxCounts]
	cut      []snapshot // of each stream, at the last Cut

	stop, stopped chan struct{}
	starts, stops sync.Once
	waits         sync.Once
	result        *sink.Result
}

// snapshot is what Cut needs of a stream.
type snapshot struct {
	buckets             [buckets]uint64
	sum, negative, over uint64
}

// Open attaches the program. Errors: xdp.ErrTaken, ErrUnable.
func Open(cfg Config) (*Sink, error) {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = sink.DefaultMaxStreams
	}
	s := &Sink{cfg: cfg, stop: make(chan struct{}), stopped: make(chan struct{})}
	loaded := make(chan error)
	go func() {
		runtime.LockOSThread() // it has entered another namespace, and dies
		loaded <- s.load()
	}()
	if err := <-loaded; err != nil {
		return nil, errors.Join(err, s.objects.Close())
	}
	return s, nil
}

func (s *Sink) load() error {
	cfg := &s.cfg
	if cfg.Enter != nil {
		if err := cfg.Enter(); err != nil {
			return err
		}
	}
	spec, err := loadCount()
	if err != nil {
		return err
	}
	if s.cpus, err = ebpf.PossibleCPU(); err != nil {
		return err
	}
	s.counts = stats.NewSet[stats.RxCounts](s.cpus)
	spec.Maps[countMapByCpu].MaxEntries = uint32(s.cpus)
	spec.Maps[countMapStreams].MaxEntries = uint32(cfg.MaxStreams)
	spec.Maps[countMapIndexOf].MaxEntries = uint32(cfg.MaxStreams)
	constants := map[string]any{
		countVarEpochNs: clock.Epoch(), countVarMaxStreams: uint32(cfg.MaxStreams),
		countVarVerify: number(!cfg.NoVerify), countVarFrags: number(cfg.MTU > onePiece),
	}
	if o := cfg.Own; o != nil {
		constants[countVarOwn], constants[countVarOwnRun] = uint32(1), o.RunID
		constants[countVarOwnFirst], constants[countVarOwnCount] = o.First, o.Count
	}
	for name, v := range constants {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("BPF variable %s: %w", name, err)
		}
	}
	if cfg.MTU > onePiece {
		spec.Programs[countProgCount].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: load BPF program: %w", cfg.Name, err)
		}
		return unable("the kernel does not load the program: %w", err)
	}
	if s.memory, err = s.objects.ByCpu.Memory(); err != nil {
		return unable("the kernel does not share the program's counters (Linux 5.5): %w", err)
	}
	if s.attached, err = xdp.Attach(cfg.Name, cfg.Index, s.objects.Count); err != nil {
		return fmt.Errorf("%w: %w", ErrUnable, err)
	}
	return nil
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Mode says where the program sits, xdp.Native or xdp.Generic, and why not native.
func (s *Sink) Mode() (mode, reason string) { return s.attached.Mode, s.attached.Reason }

// Start begins to count.
func (s *Sink) Start() {
	s.starts.Do(func() {
		_ = s.objects.Counting.Set(uint32(1)) // the memory is mapped: no error can come of it
		go s.publish()
	})
}

// publish makes the counters seen outside until Stop.
func (s *Sink) publish() {
	defer close(s.stopped)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for {
		for i, c := range s.totals() {
			stats.Publish(s.counts.Shard(i), &c)
		}
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
	}
}

// totals reads the counters of each CPU.
func (s *Sink) totals() []stats.RxCounts {
	all := make([]stats.RxCounts, s.cpus)
	var t countTotals
	b := make([]byte, binary.Size(t))
	for i := range all {
		if _, err := s.memory.ReadAt(b, int64(i*len(b))); err != nil {
			continue // it is as large as there are CPUs
		}
		_, _ = binary.Decode(b, binary.NativeEndian, &t) // of its own size
		all[i] = stats.RxCounts{
			Frames: t.Frames, Bytes: t.Bytes, Unique: t.Unique, Duplicates: t.Duplicates, Reordered: t.Reordered,
			Corrupt: t.Corrupt, TooOld: t.TooOld, Stale: t.Stale, Closing: t.Closing, Other: t.Other, OtherBytes: t.OtherBytes,
		}
	}
	return all
}

// Stop ends the counting.
func (s *Sink) Stop() {
	s.Start() // so that there is a publisher to end
	s.stops.Do(func() {
		_ = s.objects.Counting.Set(uint32(0))
		close(s.stop)
	})
}

// Failed is never closed: a program does not fail.
func (s *Sink) Failed() <-chan struct{} { return nil }

// Stats are the counters, published every few milliseconds.
func (s *Sink) Stats() *stats.Set[stats.RxCounts] { return s.counts }

// Streams says how many streams have been seen so far, and of how many of them the
// closing frame.
func (s *Sink) Streams() (seen, closed int) {
	var n, c uint32
	if s.objects.StreamsSeen.Get(&n) != nil || s.objects.StreamsClosed.Get(&c) != nil {
		return 0, 0
	}
	return min(int(n), s.cfg.MaxStreams), int(c)
}

// Cut returns the latencies observed since the last Cut, of all streams.
func (s *Sink) Cut() *stats.Latency {
	total := stats.NewLatency()
	seen, _ := s.Streams()
	for i := range seen {
		if st, err := s.stream(i); err == nil {
			s.since(total, i, st)
		}
	}
	return total
}

// since adds what a stream's latencies are beyond the last Cut.
func (s *Sink) since(total *stats.Latency, i int, st *countStream) {
	for len(s.cut) <= i {
		s.cut = append(s.cut, snapshot{})
	}
	last := &s.cut[i]
	var d [buckets]uint64
	least, most := int64(math.MaxInt64), int64(0)
	for j := range d {
		if d[j] = st.Buckets[j] - last.buckets[j]; d[j] > 0 {
			least, most = min(least, bucketStart(j)), bucketEnd(j)
		}
	}
	total.Merge(latency(&d, st.SumNs-last.sum, max(least, st.MinNs), min(most, st.MaxNs), st.Negative-last.negative, st.Over-last.over))
	*last = snapshot{st.Buckets, st.SumNs, st.Negative, st.Over}
}

// stream reads one stream, as it is between two frames.
func (s *Sink) stream(i int) (*countStream, error) {
	var st countStream
	b := make([]byte, binary.Size(st))
	if err := s.objects.Streams.LookupWithFlags(uint32(i), &b, ebpf.LookupLock); err != nil {
		return nil, fmt.Errorf("%s: BPF map of streams: %w", s.cfg.Name, err)
	}
	if _, err := binary.Decode(b, binary.NativeEndian, &st); err != nil {
		return nil, err
	}
	return &st, nil
}

// Wait takes the program off, once counting has been stopped, and returns what was
// counted.
func (s *Sink) Wait() *sink.Result {
	s.waits.Do(func() {
		<-s.stopped
		time.Sleep(settle)
		s.result = s.gather()
		s.result.Err = errors.Join(s.result.Err, s.attached.Close(), s.objects.Close())
	})
	return s.result
}

func (s *Sink) gather() *sink.Result {
	r := &sink.Result{Gaps: stats.NewLatency(), Rest: stats.NewLatency()}
	for cpu, c := range s.totals() {
		stats.Publish(s.counts.Shard(cpu), &c)
		r.Counts = stats.Add(r.Counts, c)
		if c.Frames > 0 {
			r.Workers = append(r.Workers, sink.WorkerResult{Worker: cpu, CPU: cpu, Frames: c.Frames})
		}
	}
	for cpu := range s.cpus {
		var t countTotals
		b := make([]byte, binary.Size(t))
		if _, err := s.memory.ReadAt(b, int64(cpu*len(b))); err == nil {
			_, _ = binary.Decode(b, binary.NativeEndian, &t)
			r.Overflow += t.Overflow
		}
	}
	seen, _ := s.Streams()
	for i := range seen {
		st, err := s.stream(i)
		if err != nil {
			r.Err = errors.Join(r.Err, err)
			continue
		}
		s.since(r.Rest, i, st)
		r.Counts.Corrupt += uint64(st.Holds) // a number that nothing has confirmed
		frames, octets := settleRest(st)
		r.Counts.Frames, r.Counts.Unique, r.Counts.Bytes = r.Counts.Frames+frames, r.Counts.Unique+frames, r.Counts.Bytes+octets
		r.Streams = append(r.Streams, known(st))
	}
	slices.SortFunc(r.Streams, sink.Order)
	for _, st := range r.Streams {
		if st.Frames == 0 {
			continue
		}
		if r.FirstNs == 0 || st.FirstNs < r.FirstNs {
			r.FirstNs = st.FirstNs
		}
		r.LastNs = max(r.LastNs, st.LastNs)
	}
	return r
}

// settleRest does what settle of count.bpf.c would with further frames: it takes the
// corrupt ones that are still in doubt for what is missing, where it fits.
func settleRest(st *countStream) (frames, octets uint64) {
	for ; st.Settled != st.Doubted; st.Settled++ {
		d := st.Doubtful[st.Settled%uint32(len(st.Doubtful))]
		seq := st.Next - uint64(uint32(st.Next)-d.From) + uint64(d.Seq-d.From)
		if seq >= st.Next {
			continue
		}
		word, tag, bit := &st.Window[seq/32%uint64(len(st.Window))], seq/32<<32, uint64(1)<<(seq%32)
		if *word>>32 > seq/32&0xffffffff {
			continue // older than the window
		}
		if *word&^0xffffffff != tag {
			*word = tag
		}
		if *word&bit != 0 {
			continue
		}
		*word |= bit
		frames, octets = frames+1, octets+uint64(d.Size)
	}
	st.Frames, st.Bytes = st.Frames+frames, st.Bytes+octets
	return frames, octets
}

// known makes the sink's stream of the program's.
func known(st *countStream) *sink.Stream {
	return sink.Counted(sink.Stream{
		RunID: uint16(st.Id >> 16), ID: uint16(st.Id), KernelGen: st.KernelGen != 0,
		Frames: st.Frames, Bytes: st.Bytes, Duplicates: st.Duplicates, Reordered: st.Reordered, TooOld: st.TooOld,
		Corrupt: st.Corrupt + uint64(st.Holds), FirstNs: st.FirstNs, LastNs: st.LastNs,
		Closed: st.Closed != 0, Expected: st.Expected,
		Latency: latency(&st.Buckets, st.SumNs, st.MinNs, st.MaxNs, st.Negative, st.Over),
		Jitter:  stats.JitterOf(st.J16, st.JitterSum, st.JitterMax, st.JitterCount),
		Delay:   stats.NewDelayVariation(),
	}, st.First, st.Next)
}

// The program's buckets of latency: of each power of two so many.
const (
	subBits = 5
	sub     = 1 << subBits
	buckets = (34 - subBits + 1) * sub
)

// bucketEnd is the greatest latency of a bucket, ns.
func bucketEnd(i int) int64 {
	if i < sub {
		return int64(i)
	}
	shift := i/sub - 1
	return int64(sub+i%sub+1)<<shift - 1
}

// bucketStart is the least.
func bucketStart(i int) int64 {
	if i == 0 {
		return 0
	}
	return bucketEnd(i-1) + 1
}

// latency makes a Latency of the buckets of the program, and of what it knows
// exactly.
func latency(b *[buckets]uint64, sum uint64, least, most int64, negative, over uint64) *stats.Latency {
	l := stats.NewLatency()
	n := uint64(0)
	for i, c := range b {
		if c > 0 {
			l.ObserveMany(min(bucketEnd(i), most), c)
			n += c
		}
	}
	if n == 0 {
		least, most = math.MaxInt64, 0
	}
	l.Known(sum, least, most, negative, over)
	return l
}
