package live

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/internal/pin"
	"pktgen/internal/xdp"
	"pktgen/ring"
	"pktgen/stats"
	"pktgen/units"
)

// experimental is the EtherType for local experiments (IEEE 802, clause 9).
const experimental = 0x88b5

// worker is one CPU's sender: a thread that is in the kernel for the whole run.
type worker struct {
	s       *Sender
	index   int
	cpu     int
	tmpl    *frames.Template
	closing ring.TX      // sends the closing frames
	tid     atomic.Int32 // its thread while that may be in the kernel; 0: not

	// The watcher's:
	seen    liveWorker // the last reading
	counts  stats.TxCounts
	moved   uint64 // frames sent when that last changed, attempts refused then, and when
	tried   uint64
	movedNs int64

	err      error // of the thread; read after it has left the kernel
	result   gen.Result
	closeErr error
}

// run is the life of a worker, on a thread that dies with it: it has been pinned,
// and may stand in another network namespace.
func (w *worker) run(ready chan<- error) {
	runtime.LockOSThread()
	err := w.open()
	ready <- err
	<-w.s.start
	if err == nil {
		w.tid.Store(int32(unix.Gettid()))
		w.err = w.loop()
		w.tid.Store(0)
	}
	w.s.inside.Add(-1)
	<-w.s.finish
	if w.closing == nil {
		return
	}
	if w.err == nil && w.s.err == nil {
		w.closeErr = gen.SendClosing(w.closing, w.tmpl, w.result.Sent, w.s.repeats)
	}
	w.closeErr = errors.Join(w.closeErr, w.closing.Close())
}

func (w *worker) open() error {
	if err := pin.Worker(w.s.cfg.Enter, w.cpu); err != nil {
		return err
	}
	closing, err := w.s.cfg.Open(w.index)
	if err != nil {
		return err
	}
	w.closing = closing
	proto := w.tmpl.Bytes()
	closing.Prefill(func(slot []byte) int { return copy(slot, proto) })
	if err := w.try(); err != nil {
		return err
	}
	return w.put(w.s.limit(w.index))
}

// put gives the programs a worker that has sent nothing.
func (w *worker) put(limit uint64) error {
	st := liveWorker{Limit: limit, Sum: w.tmpl.Fields().Sum, Index: uint32(w.index)}
	if f := w.tmpl.Fields(); f.Stamp != 0 {
		st.Stream = binary.NativeEndian.Uint16(w.tmpl.Bytes()[f.Stamp+4:])
	}
	if err := w.s.objects.ByCpu.Put(uint32(w.cpu), &st); err != nil {
		return fmt.Errorf("%s queue %d: BPF map: %w", w.s.port.Name, w.index, err)
	}
	return nil
}

// loop is in the kernel until the run is over.
func (w *worker) loop() error {
	frame := w.tmpl.Bytes()
	for !w.s.stop.Load() {
		err := xdp.RunLive(w.s.objects.Send, frame, xdp.MaxRepeat, batch)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return w.failed(err)
		}
	}
	return nil
}

func (w *worker) failed(err error) error {
	return fmt.Errorf("%s queue %d: BPF_PROG_RUN: %w", w.s.port.Name, w.index, err)
}

// finish makes the result. The thread has left the kernel.
func (w *worker) finish() {
	s, st := w.s, w.seen
	r := gen.Result{
		Worker: w.index, CPU: w.cpu, Offered: st.Sent, Sent: st.Sent, Bytes: st.Sent * uint64(units.FromSocket(w.tmpl.Len())),
		Batches: st.Batches, Busy: st.Full, Late: st.Late, LateMaxNs: int64(st.LateMaxNs), Err: errors.Join(w.err, s.err),
	}
	if st.Sent > 0 {
		r.FirstNs, r.LastNs = int64(st.FirstNs)-s.kernel, int64(st.LastNs)-s.kernel
	}
	if limit := s.limit(w.index); !s.cfg.Pattern.Unlimited() && s.cfg.Duration > 0 && s.cfg.Count == 0 && st.Sent < limit {
		r.Missed = limit - st.Sent
	}
	w.result = r
}

// try sends one frame that is nobody's, to see whether the port takes such frames.
func (w *worker) try() error {
	if err := w.put(0); err != nil {
		return err
	}
	frame := w.tmpl.Bytes()
	clear(frame[12:])
	binary.BigEndian.PutUint16(frame[12:], experimental)
	err := xdp.RunLive(w.s.objects.Try, frame, 1, 1)
	st := w.s.state(w)
	switch {
	case errors.Is(err, unix.EINVAL):
		return unable("the kernel makes none of %d octets (Linux 5.18, up to some 3400)", len(frame))
	case err != nil && !errors.Is(err, unix.EINTR):
		return w.failed(err)
	case st.Sent == 1:
		return nil
	}
	return unable("%s: %w%s", w.s.port.Name, ErrRefused, because(st.Error))
}
