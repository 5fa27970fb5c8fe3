package sink

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pktgen/ring"
	"pktgen/stats"
)

// DefaultMaxStreams bounds the streams of one worker; each costs some 700 KB,
// mostly its histograms.
const DefaultMaxStreams = 256

// Config describes the receiving of one interface.
type Config struct {
	Workers    int
	CPUs       []int                             // one a worker; nil: not pinned
	Enter      func() error                      // moves the calling thread into the interface's network namespace; may be nil
	Open       func(worker int) (ring.RX, error) // called on the worker's thread
	Own        *Own                              // count these streams only, all others as stale; nil: all are ours
	MaxStreams int                               // 0: DefaultMaxStreams
	System     func(nicNs int64) int64           // the system's time of a NIC's; nil: no frame has a NIC's time
	NoVerify   bool                              // take checksums as right: no corrupt frame is found
}

// Own names the streams of one sender: Count ids from First on, of one run, and
// the frames of them whose arrival is kept.
type Own struct {
	RunID, First, Count uint16
	Sampling            stats.Sampling
}

// Sink is a set of workers. Its methods are safe from any goroutine.
type Sink struct {
	cfg     Config
	workers []*worker
	counts  *stats.Set[stats.RxCounts]

	start   chan struct{}
	starts  sync.Once
	stop    atomic.Bool
	cuts    atomic.Uint64 // times that Cut was called
	stopped sync.WaitGroup
	failed  chan struct{} // closed when a worker ends by an error
	fails   sync.Once
}

// Result is what arrived, exact.
type Result struct {
	Streams   []*Stream // by run and id; merged over the workers
	Counts    stats.RxCounts
	Overflow  uint64 // stamped frames of streams beyond MaxStreams
	Malformed uint64 // blocks whose offsets led out of them
	FirstNs   int64  // receive time of the first of our frames, ns since the Unix epoch
	LastNs    int64
	Hardware  uint64         // frames whose time was the NIC's
	Gaps      *stats.Latency // ns between consecutive arrivals of a stream, of all streams
	Rest      *stats.Latency // latencies since the last Cut
	Workers   []WorkerResult
	Err       error // what ended a worker early
}

// WorkerResult is one worker's share.
type WorkerResult struct {
	Worker, CPU int // CPU -1: not pinned
	Frames      uint64
	Drops       ring.KernelDrops
}

// Open starts the workers and returns when each has its ring. On an error all
// of them are closed again.
func Open(cfg Config) (*Sink, error) {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = DefaultMaxStreams
	}
	if cfg.CPUs != nil && len(cfg.CPUs) < cfg.Workers {
		return nil, fmt.Errorf("%d workers, but %d CPUs", cfg.Workers, len(cfg.CPUs))
	}
	s := &Sink{
		cfg: cfg, counts: stats.NewSet[stats.RxCounts](cfg.Workers),
		start: make(chan struct{}), failed: make(chan struct{}),
	}
	ready := make(chan error)
	var first error
	// One after the other: the rings join a fanout group in the order of their numbers.
	for i := range cfg.Workers {
		w := newWorker(s, i)
		s.workers = append(s.workers, w)
		s.stopped.Go(func() { w.run(ready) })
		if err := <-ready; err != nil {
			first = err
			break
		}
	}
	if first != nil {
		s.Stop()
		s.Wait()
		return nil, first
	}
	return s, nil
}

// Start begins to count: frames that arrive after its return, and none that
// arrived before its call.
func (s *Sink) Start() {
	s.starts.Do(func() { close(s.start) })
	for _, w := range s.workers {
		<-w.started
	}
}

// Stop asks the workers to end, once they have counted what has arrived.
func (s *Sink) Stop() { s.stop.Store(true); s.starts.Do(func() { close(s.start) }) }

// Cut returns the latencies observed since the last Cut, of all streams. Each is
// in one Cut, or in the Result's Rest. It waits until every worker has handed over
// what it has, or has ended: some 20 ms at most. For one goroutine.
func (s *Sink) Cut() *stats.Latency {
	n := s.cuts.Add(1)
	for _, w := range s.workers {
		for w.cut.Load() != n && !w.ended.Load() {
			time.Sleep(cutPoll)
		}
	}
	return s.gather()
}

// cutPoll is how often Cut looks.
const cutPoll = time.Millisecond

// gather merges what the workers have handed over, and gives it back to be used again.
func (s *Sink) gather() *stats.Latency {
	total := stats.NewLatency()
	for _, w := range s.workers {
		if l := w.handed.Swap(nil); l != nil {
			total.Merge(l)
			l.Reset()
			w.spare.Store(l)
		}
	}
	return total
}

// Failed is closed when a worker has ended by an error, such as a lost link.
func (s *Sink) Failed() <-chan struct{} { return s.failed }

// Stats are the counters that the workers publish once a block.
func (s *Sink) Stats() *stats.Set[stats.RxCounts] { return s.counts }

// Streams says how many streams have been seen so far, and of how many of them
// the closing frame.
func (s *Sink) Streams() (seen, closed int) {
	for _, w := range s.workers {
		seen += int(w.seen.Load())
		closed += int(w.closed.Load())
	}
	return seen, closed
}

// Wait returns when every worker has ended.
func (s *Sink) Wait() *Result {
	s.stopped.Wait()
	r := &Result{Gaps: stats.NewLatency(), Rest: s.gather()}
	byKey := map[key]*Stream{}
	var errs []error
	for _, w := range s.workers {
		r.Rest.Merge(w.latency)
		r.Gaps.Merge(w.gaps)
		r.Overflow += w.overflow
		r.Hardware += w.hardware
		r.Malformed += w.malformed
		r.Counts = stats.Add(r.Counts, w.counts)
		r.Workers = append(r.Workers, WorkerResult{Worker: w.index, CPU: w.cpu, Frames: w.counts.Frames, Drops: w.drops})
		errs = append(errs, w.err)
		for _, st := range w.streams.list {
			if have := byKey[st.key]; have != nil {
				have.merge(st)
				continue
			}
			byKey[st.key] = st
			r.Streams = append(r.Streams, st)
		}
	}
	for _, st := range r.Streams {
		if st.Frames == 0 {
			continue
		}
		if r.FirstNs == 0 || st.FirstNs < r.FirstNs {
			r.FirstNs = st.FirstNs
		}
		r.LastNs = max(r.LastNs, st.LastNs)
	}
	slices.SortFunc(r.Streams, Order)
	r.Err = errors.Join(errs...)
	return r
}
