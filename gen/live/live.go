package live

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/internal/clock"
	"pktgen/stats"
	"pktgen/units"
)

// batch is BATCH of live.bpf.c.
const batch = 16

const (
	// watchEvery is how often the counters are read.
	watchEvery = 2 * time.Millisecond
	// entryNs bounds the wait for every worker's thread to be in the kernel.
	entryNs = 5_000_000_000
	// startLead is how far ahead the start is set, once all are.
	startLead = 200 * time.Microsecond
	// firstNs is how long a port may take no frame at all at the start; stallNs,
	// later.
	firstNs = 100_000_000
	stallNs = 2_000_000_000
	// graceNs is how long after its duration a paced run may catch up.
	graceNs = 100_000_000
)

// ErrUnable: this backend cannot do what is asked, here; what it wraps says why.
var ErrUnable = errors.New("no XDP live frames")

// ErrLoad: an ErrUnable that no other port or kernel would mend.
var ErrLoad = errors.New("not for this load")

// ErrRefused: the port takes no redirected frames now. A veth does while its peer
// has an XDP program or GRO; some drivers, only while the port itself has a
// program; some, never.
var ErrRefused = errors.New("the port takes no redirected frames")

func badLoad(format string, a ...any) error {
	return unable("%w: %w", ErrLoad, fmt.Errorf(format, a...))
}

func unable(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrUnable, fmt.Errorf(format, a...))
}

// Port is where the frames leave.
type Port struct {
	Name  string
	Index int // in the namespace that gen.Config.Enter enters
}

// Able says what of a configuration is not for this backend, as an ErrLoad; nil
// where all is, but for CPUs, which are not looked at.
func Able(cfg gen.Config) error {
	p := cfg.Pattern
	switch {
	case p.Burst > 1 || p.Off > 0 || p.Ramp > 0 || len(p.Steps) > 0 || p.Poisson:
		return badLoad("they are paced evenly or not at all")
	case cfg.Launch.Ahead > 0:
		return badLoad("they have no launch times")
	case cfg.Refill:
		return badLoad("the payload is not copied for each of them")
	}
	_, _, err := pace(p.Rate)
	return err
}

// bound says whether each worker has a CPU of its own.
func bound(cfg gen.Config) error {
	if len(cfg.CPUs) < cfg.Workers {
		return unable("the workers are not bound to CPUs, and each needs its own")
	}
	for i, cpu := range cfg.CPUs[:cfg.Workers] {
		if slices.Contains(cfg.CPUs[:i], cpu) {
			return unable("two workers are bound to CPU %d, and each needs its own", cpu)
		}
	}
	return nil
}

// pace is a rate as frames every so many ns, such that the program's numbers of 64
// bits hold over a pause of a quarter of an hour; 0 frames: as fast as it goes.
func pace(r units.FrameRate) (frames, ns uint64, err error) {
	if r.Num == 0 {
		return 0, 0, nil
	}
	k := max(1, 1_000_000_000/r.Den)
	hold := uint64(1_000_000_000_000) // ns
	if r.Num > math.MaxUint64/hold/k/2 || r.Den > hold {
		return 0, 0, badLoad("this rate is too fine for its arithmetic")
	}
	return r.Num * k, r.Den * k, nil
}

// Sender is a set of workers. Its methods, but Close, are safe from any goroutine.
// It is used as gen.Generator is.
type Sender struct {
	cfg     gen.Config
	port    Port
	objects liveObjects
	memory  *ebpf.Memory // of by_cpu
	heard   link.Link    // the tracepoint
	workers []*worker
	counts  *stats.Set[stats.TxCounts]
	kernel  int64 // CLOCK_MONOTONIC less clock.Mono
	total   uint64
	startNs int64 // monotonic, of the first frame due; set by the watcher

	start, finish    chan struct{}
	starts, finishes sync.Once
	repeats          int // closing frames a stream; set before finish is closed
	stop             atomic.Bool
	inside           atomic.Int32  // workers that have not left the kernel for good
	watched          chan struct{} // closed when the watcher is done: the results are final
	err              error         // what ended the run early; the watcher's
	closed           sync.WaitGroup
}

// Open loads the programs, starts the workers and tries one frame, which carries no
// stamp. On an error everything is closed again; ErrUnable says that the kernel,
// the port or the configuration does not allow these frames.
func Open(cfg gen.Config, port Port) (*Sender, error) {
	if err := errors.Join(Able(cfg), bound(cfg)); err != nil {
		return nil, err
	}
	s := &Sender{
		cfg: cfg, port: port, counts: stats.NewSet[stats.TxCounts](cfg.Workers), kernel: clock.Kernel(),
		start: make(chan struct{}), finish: make(chan struct{}), watched: make(chan struct{}),
	}
	s.total = cfg.Pattern.Frames(cfg.Duration)
	if cfg.Count != 0 && (s.total == 0 || cfg.Count < s.total) {
		s.total = cfg.Count
	}
	loaded := make(chan error)
	go func() {
		runtime.LockOSThread() // it has entered another namespace, and dies
		loaded <- s.load()
	}()
	if err := <-loaded; err != nil {
		return nil, errors.Join(err, s.unload())
	}
	ready := make(chan error)
	s.inside.Store(int32(cfg.Workers))
	for i := range cfg.Workers {
		w := &worker{s: s, index: i, cpu: cfg.CPUs[i], tmpl: cfg.Template(i)}
		s.workers = append(s.workers, w)
		s.closed.Go(func() { w.run(ready) })
	}
	var first error
	for range cfg.Workers {
		if err := <-ready; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		s.stop.Store(true)
		close(s.watched)
		return nil, errors.Join(first, s.Close(0))
	}
	go s.watch()
	return s, nil
}

// load loads the programs, and binds them to the port.
func (s *Sender) load() error {
	if s.cfg.Enter != nil {
		if err := s.cfg.Enter(); err != nil {
			return err
		}
	}
	spec, err := loadLive()
	if err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	spec.Maps[liveMapByCpu].MaxEntries = uint32(cpus)
	if err := s.constants(spec); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: load BPF program: %w", s.port.Name, err)
		}
		return unable("the kernel does not load the program: %w", err)
	}
	if s.memory, err = s.objects.ByCpu.Memory(); err != nil {
		return unable("the kernel does not share the program's counters (Linux 5.5): %w", err)
	}
	if err := s.objects.Port.Put(uint32(0), uint32(s.port.Index)); err != nil {
		return unable("the port takes no redirected frames: %w", err)
	}
	s.heard, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "xdp_devmap_xmit", Program: s.objects.Sent})
	if err != nil {
		return unable("the kernel does not say what the driver took (tracepoint xdp_devmap_xmit): %w", err)
	}
	return nil
}

// constants writes what all frames have in common into the program.
func (s *Sender) constants(spec *ebpf.CollectionSpec) error {
	tmpl := s.cfg.Template(0)
	f, proto := tmpl.Fields(), tmpl.Bytes()
	end := max(f.Stamp+frames.StampLen, f.Checksum+2)
	if f.Stamp == 0 {
		end = 64 // what routers and hosts rewrite is within these
	}
	words := min(end, len(proto)) / 8
	var header [128]byte
	if words*8 > len(header) || f.Stamp+8 > len(header) {
		return unable("headers of %d octets", end)
	}
	copy(header[:], proto)
	var header64 [len(header) / 8]uint64
	for i := range header64 {
		header64[i] = binary.NativeEndian.Uint64(header[i*8:])
	}
	num, den, err := pace(s.cfg.Pattern.Rate)
	if err != nil {
		return err
	}
	for name, v := range map[string]any{
		liveVarLength: uint32(len(proto)), liveVarHeaderWords: uint32(words), liveVarHeader: header64,
		liveVarStampAt: uint32(f.Stamp), liveVarPortAt: uint32(f.Port), liveVarChecksumAt: uint32(f.Checksum),
		liveVarFirstPort: uint32(f.FirstPort), liveVarPorts: f.Ports,
		liveVarEpochNs:    clock.Epoch(),
		liveVarPaceFrames: num, liveVarPaceNs: den, liveVarWorkers: uint32(s.cfg.Workers),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("BPF variable %s: %w", name, err)
		}
	}
	return nil
}

func (s *Sender) unload() error {
	var errs []error
	if s.heard != nil {
		errs = append(errs, s.heard.Close())
	}
	return errors.Join(append(errs, s.objects.Close())...)
}

// state reads a worker's counters. They are one reading only while its thread is
// not in the kernel.
func (s *Sender) state(w *worker) (st liveWorker) {
	b := make([]byte, binary.Size(st))
	if _, err := s.memory.ReadAt(b, int64(w.cpu*len(b))); err == nil {
		_, _ = binary.Decode(b, binary.NativeEndian, &st) // of its own size
	}
	return st
}

// limit is how many frames worker i of the run sends.
func (s *Sender) limit(i int) uint64 {
	if s.total == 0 {
		return math.MaxUint64
	}
	n := uint64(s.cfg.Workers)
	return (s.total + n - 1 - uint64(i)) / n
}

// Start lets every worker begin, at one instant. Later calls do nothing.
func (s *Sender) Start() { s.starts.Do(func() { close(s.start) }) }

// Stop asks the workers to end; Wait waits until they have.
func (s *Sender) Stop() { s.stop.Store(true) }

// Wait returns when every worker has ended, with exact results.
func (s *Sender) Wait() []gen.Result {
	<-s.watched
	rs := make([]gen.Result, len(s.workers))
	for i, w := range s.workers {
		rs[i] = w.result
	}
	return rs
}

// Close sends each stream's closing frames, repeats times, and unloads the
// programs. It stops the run first if that still goes on, or has never been
// started. Later calls do nothing.
func (s *Sender) Close(repeats int) error {
	s.Stop()
	s.Start()
	var err error
	s.finishes.Do(func() {
		<-s.watched
		s.repeats = repeats
		close(s.finish)
		s.closed.Wait()
		errs := []error{s.unload()}
		for _, w := range s.workers {
			errs = append(errs, w.closeErr)
		}
		err = errors.Join(errs...)
	})
	return err
}

// Stats are the counters, published every few milliseconds.
func (s *Sender) Stats() *stats.Set[stats.TxCounts] { return s.counts }

// watch starts the workers, ends them, and makes the results.
func (s *Sender) watch() {
	defer close(s.watched)
	<-s.start
	s.err = s.begin()
	for s.err == nil && !s.over() {
		time.Sleep(watchEvery)
		s.publish()
		s.err = s.moving()
	}
	s.recall()
	s.publish()
	for _, w := range s.workers {
		w.finish()
	}
}

// begin sets the start, once every worker is in the kernel.
func (s *Sender) begin() error {
	for end := clock.Mono() + entryNs; ; time.Sleep(100 * time.Microsecond) {
		in := 0
		for _, w := range s.workers {
			if s.state(w).Batches > 0 {
				in++
			}
		}
		if in == len(s.workers) {
			break
		}
		if s.stop.Load() || int(s.inside.Load()) < len(s.workers) { // one failed, and says why
			return nil
		}
		if clock.Mono() > end {
			return fmt.Errorf("%s: BPF_PROG_RUN: %d of %d workers did not begin within %v", s.port.Name, len(s.workers)-in, len(s.workers), time.Duration(entryNs))
		}
	}
	s.startNs = clock.Mono() + int64(startLead)
	end := uint64(math.MaxInt64)
	if d := s.cfg.Duration; d > 0 {
		end = uint64(s.startNs + s.kernel + int64(d))
		if !s.cfg.Pattern.Unlimited() {
			end += uint64(min(graceNs, d))
		}
	}
	return errors.Join(s.objects.EndNs.Set(end), s.objects.StartNs.Set(uint64(s.startNs+s.kernel)))
}

// over says that nothing is left to send.
func (s *Sender) over() bool {
	if s.stop.Load() || int(s.inside.Load()) < len(s.workers) {
		return true
	}
	now := clock.Mono()
	if d := int64(s.cfg.Duration); d > 0 && s.startNs > 0 {
		grace := int64(0)
		if !s.cfg.Pattern.Unlimited() {
			grace = min(graceNs, d)
		}
		if now > s.startNs+d+grace {
			return true
		}
	}
	for i, w := range s.workers {
		if w.seen.Sent < s.limit(i) {
			return false
		}
	}
	return true
}

// publish reads the counters and makes them seen outside.
func (s *Sender) publish() {
	for i, w := range s.workers {
		w.seen = s.state(w)
		w.counts.Offered, w.counts.Sent, w.counts.Retries = w.seen.Sent, w.seen.Sent, w.seen.Full
		w.counts.Bytes = w.seen.Sent * uint64(units.FromSocket(w.tmpl.Len()))
		stats.Publish(s.counts.Shard(i), &w.counts)
	}
}

// moving says when a port has taken nothing for too long.
func (s *Sender) moving() error {
	now := clock.Mono()
	for _, w := range s.workers {
		if w.seen.Sent != w.moved || w.seen.Refused == w.tried || w.movedNs == 0 {
			w.moved, w.tried, w.movedNs = w.seen.Sent, w.seen.Refused, now
			continue
		}
		most := int64(stallNs)
		if w.seen.Sent == 0 {
			most = firstNs
		}
		if now-w.movedNs > most {
			return fmt.Errorf("queue %d: %w: it refused %d in the last %v%s",
				w.index, gen.ErrStalled, w.seen.Refused-w.tried, time.Duration(now-w.movedNs).Round(time.Millisecond), because(w.seen.Error))
		}
	}
	return nil
}

func because(driver int64) string {
	if driver >= 0 {
		return ""
	}
	return ": " + unix.Errno(-driver).Error()
}

// recall has every worker leave the kernel, which looks for signals after each
// batch. One that comes before a call has begun is not seen by it.
func (s *Sender) recall() {
	_ = s.objects.Stop.Set(uint32(1)) // the memory is mapped: no error can come of it
	s.stop.Store(true)
	for s.inside.Load() > 0 {
		for _, w := range s.workers {
			if tid := w.tid.Load(); tid != 0 {
				_ = unix.Tgkill(unix.Getpid(), int(tid), unix.SIGURG) // Go's own, for which it does nothing
			}
		}
		time.Sleep(watchEvery)
	}
}
