package gen

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pktgen/frames"
	"pktgen/internal/clock"
	"pktgen/ring"
	"pktgen/stats"
)

// The most frames that one system call carries. Measured on a TPACKET_V2 ring,
// 60 octets, where the call itself costs 1.3 us: batch 1 2.4 us a frame, 8 0.72,
// 64 0.51, 256 0.48, 1024 0.475. A paced sender is to stamp its frames when they
// leave, and sends what is due, so that only one that is late fills a batch.
const (
	DefaultBatch = 64  // of a paced sender
	FullBatch    = 256 // of one that goes as fast as it can
)

// Config describes a run of one interface.
type Config struct {
	Workers  int
	CPUs     []int                             // one a worker; nil: not pinned
	Enter    func() error                      // moves the calling thread into the interface's network namespace; may be nil
	Open     func(worker int) (ring.TX, error) // called on the worker's thread
	Template func(worker int) *frames.Template // of the worker's own stream
	Pattern  Pattern                           // when frames are due; zero: as fast as it goes
	Count    uint64                            // frames of all workers together; 0: no limit
	Duration time.Duration                     // 0: no limit
	Batch    int                               // 0: DefaultBatch or FullBatch
	Sampling stats.Sampling                    // the frames of a paced run whose leaving is asked about; zero: none
	Launch   Launch                            // have the kernel hold each frame until its time; zero: send it then
	Refill   bool                              // copy the whole template into the slot for each frame
}

// Launch has the kernel let go of frames at their times (SO_TXTIME): the ring is a
// ring.Launcher. It takes a paced pattern that is not random.
type Launch struct {
	Ahead time.Duration            // how long before its time a frame is handed over; 0: no launch times
	At    func(monoNs int64) int64 // the launch clock, ns, at an instant of clock.Mono
}

// startLead is how far ahead of Start's call the first frame is due, so that
// every worker has been woken by then.
const startLead = 2 * time.Millisecond

// Generator is a set of workers. Its methods are safe from any goroutine.
type Generator struct {
	cfg     Config
	workers []*worker
	counts  *stats.Set[stats.TxCounts]

	startNs  int64 // set before the start channel is closed
	start    chan struct{}
	starts   sync.Once
	finish   chan struct{}
	finishes sync.Once
	repeats  int // closing frames a stream; set before finish is closed
	stop     atomic.Bool
	drained  sync.WaitGroup
	closed   sync.WaitGroup
}

// Result is what one worker did, exact once Wait has returned.
type Result struct {
	Worker, CPU int    // CPU -1: not pinned
	Offered     uint64 // frames given to the kernel
	Sent        uint64 // of these, taken by the driver
	Rejected    uint64 // of these, refused by the kernel for their form
	Unsent      uint64 // of these, still in the ring when its drain was given up; they may leave later
	Missed      uint64 // frames due within the duration that were not offered in time
	Bytes       uint64 // octets of the frames sent, FCS included
	Batches     uint64 // batches of frames given to it
	Busy        uint64 // times the device took no more for a while
	Late        uint64 // times a paced worker was more than a millisecond late
	LateMaxNs   int64  // and by how much at most
	FirstNs     int64  // first frame handed over, monotonic
	LastNs      int64  // last frame handed over or, where the ring drained afterwards, taken
	Err         error  // what ended the worker early

	// Of the frames sampled; nil where the kernel keeps no such times.
	Gaps    *stats.Latency // ns between consecutive frames as they left
	Lag     *stats.Latency // ns from a frame's stamp to its leaving the driver
	Samples []stats.Sample // the first of them: when they left
}

// Open starts the workers and returns when each has its ring. On an error all
// of them are closed again.
func Open(cfg Config) (*Generator, error) {
	if cfg.Batch == 0 {
		cfg.Batch = DefaultBatch
		if cfg.Pattern.Unlimited() {
			cfg.Batch = FullBatch
		}
	}
	if cfg.Launch.Ahead > 0 {
		cfg.Batch = 1 // all frames of a call would have one time
	}
	if cfg.CPUs != nil && len(cfg.CPUs) < cfg.Workers {
		return nil, fmt.Errorf("%d workers, but %d CPUs", cfg.Workers, len(cfg.CPUs))
	}
	g := &Generator{
		cfg: cfg, counts: stats.NewSet[stats.TxCounts](cfg.Workers),
		start: make(chan struct{}), finish: make(chan struct{}),
	}
	total := cfg.Pattern.Frames(cfg.Duration)
	if cfg.Count != 0 && (total == 0 || cfg.Count < total) {
		total = cfg.Count
	}
	ready := make(chan error)
	for i := range cfg.Workers {
		w := newWorker(g, i, total)
		g.workers = append(g.workers, w)
		g.drained.Add(1)
		g.closed.Go(func() { w.run(ready) })
	}
	var errs []error
	for range cfg.Workers {
		if err := <-ready; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		g.Close(0)
		return nil, errs[0] // the others say the same of other queues
	}
	return g, nil
}

// Start lets every worker begin, at one instant. Later calls do nothing.
func (g *Generator) Start() {
	g.starts.Do(func() {
		g.startNs = clock.Mono() + int64(startLead)
		close(g.start)
	})
}

// Stop asks the workers to end; Wait waits until they have.
func (g *Generator) Stop() { g.stop.Store(true) }

// Wait returns when every worker has ended and drained its ring.
func (g *Generator) Wait() []Result {
	g.drained.Wait()
	rs := make([]Result, len(g.workers))
	for i, w := range g.workers {
		rs[i] = w.result
	}
	return rs
}

// Close has each worker send its closing frames, repeats times, and close its
// ring. It stops the run first if that still goes on, or has never been started.
// Later calls do nothing.
func (g *Generator) Close(repeats int) error {
	g.Stop()
	g.Start()
	g.finishes.Do(func() {
		g.repeats = repeats
		close(g.finish)
	})
	g.closed.Wait()
	var errs []error
	for _, w := range g.workers {
		errs = append(errs, w.closeErr)
	}
	return errors.Join(errs...)
}

// Stats are the counters that the workers publish once a batch.
func (g *Generator) Stats() *stats.Set[stats.TxCounts] { return g.counts }
