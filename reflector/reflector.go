package reflector

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"pktgen/ring"
	"pktgen/stats"
)

// Config describes the reflecting of one interface.
type Config struct {
	Workers      int
	CPUs         []int                             // one a worker; nil: not pinned
	Enter        func() error                      // moves the calling thread into the interface's network namespace; may be nil
	OpenRX       func(worker int) (ring.RX, error) // called on the worker's thread
	OpenTX       func(worker int) (ring.TX, error)
	STAMPPort    uint16                   // UDP port of STAMP Session-Senders; 0: none is answered
	Synchronised bool                     // this host's clock is that of UTC: what a STAMP answer says of it
	Clock        func(realNs int64) int64 // the reflector's clock by the host's, ns since the Unix epoch; nil: the host's own
}

// Reflector is a set of workers. Its methods are safe from any goroutine.
type Reflector struct {
	cfg     Config
	workers []*worker
	start   chan struct{}
	starts  sync.Once
	stop    atomic.Bool
	stopped sync.WaitGroup
	failed  chan struct{}
	fails   sync.Once
}

// Counts are totals, in frames unless said otherwise.
type Counts struct {
	Returned uint64 // test and closing frames, given to the kernel on their way back
	STAMP    uint64 // STAMP packets answered, likewise
	Bytes    uint64 // frame sizes of Returned and STAMP
	Short    uint64 // test frames too short for the times: not sent back
	Corrupt  uint64 // not sent back
	NoRoom   uint64 // not sent back: the device took no more
	Other    uint64 // not ours, or come back already
	Unsent   uint64 // of Returned and STAMP, still in the ring at the end
	Drops    uint64 // frames that the receive ring had no room for
}

// Result is what was done, exact.
type Result struct {
	Counts
	Residence *stats.Latency // ns from the kernel's receive time to the time sent back
	Err       error          // what ended a worker early
}

// Open starts the workers and returns when each has its rings. On an error all of
// them are closed again.
func Open(cfg Config) (*Reflector, error) {
	if cfg.CPUs != nil && len(cfg.CPUs) < cfg.Workers {
		return nil, fmt.Errorf("%d workers, but %d CPUs", cfg.Workers, len(cfg.CPUs))
	}
	if cfg.Clock == nil {
		cfg.Clock = func(realNs int64) int64 { return realNs }
	}
	r := &Reflector{cfg: cfg, start: make(chan struct{}), failed: make(chan struct{})}
	ready := make(chan error)
	for i := range cfg.Workers { // in order, as they join a fanout group
		w := newWorker(r, i)
		r.workers = append(r.workers, w)
		r.stopped.Go(func() { w.run(ready) })
		if err := <-ready; err != nil {
			r.Stop()
			r.Wait()
			return nil, err
		}
	}
	return r, nil
}

// Start begins to send back what arrives. Later calls do nothing.
func (r *Reflector) Start() { r.starts.Do(func() { close(r.start) }) }

// Stop asks the workers to end, once they have sent back what has arrived.
func (r *Reflector) Stop() { r.stop.Store(true); r.Start() }

// Failed is closed when a worker has ended by an error, such as a lost link.
func (r *Reflector) Failed() <-chan struct{} { return r.failed }

// Wait returns when every worker has ended.
func (r *Reflector) Wait() *Result {
	r.stopped.Wait()
	res := &Result{Residence: stats.NewLatency()}
	var errs []error
	for _, w := range r.workers {
		res.Returned += w.Returned
		res.STAMP += w.STAMP
		res.Bytes += w.Bytes
		res.Short += w.Short
		res.Corrupt += w.Corrupt
		res.NoRoom += w.NoRoom
		res.Other += w.Other
		res.Unsent += w.Unsent
		res.Drops += w.Drops
		res.Residence.Merge(w.residence)
		errs = append(errs, w.err)
	}
	res.Err = errors.Join(errs...)
	return res
}
