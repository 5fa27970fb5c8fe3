package gen

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"pktgen/frames"
	"pktgen/internal/clock"
	"pktgen/internal/pin"
	"pktgen/ring"
	"pktgen/stats"
	"pktgen/units"
)

const (
	// spinNs: nearer than this to its time a frame is waited for by reading the
	// clock; farther off the thread sleeps. A sleep ends up to some 50 us late
	// on a virtual machine.
	spinNs = 100_000
	// sleepNs bounds one sleep, so that the stop flag is seen.
	sleepNs = 20_000_000
	// busyWait is the pause after the device took no more: a NIC's ring of 512
	// drains in some 30 us at 10 Gbit/s.
	busyWait = 10 * time.Microsecond
	// busyTries: a device that is busy for longer than so many waits is not
	// draining a full ring; it is asked less often.
	busyTries = 200
	// fullWait bounds the wait for a free slot, so that the stop flag is seen.
	fullWait = time.Millisecond
	// stallNs: a device that takes no frame for so long has failed.
	stallNs = 2_000_000_000
	// drainNs is how long the last frames may stay in the ring; stoppedNs is that
	// of a run that was told to end.
	drainNs   = 2_000_000_000
	stoppedNs = 300_000_000
	// lateNs: sending that is later than this is an event to report. A batch of
	// 256 frames takes 0.2 ms.
	lateNs = 1_000_000
	// graceNs is how long after its duration a paced run may catch up with what
	// was due within it: a thread that did not run for a moment is no reason to
	// send less than rate x time.
	graceNs = 100_000_000
	// closingGapNs lies between the repeats of a closing frame, so that one
	// short outage does not take them all.
	closingGapNs = 10_000_000
)

// ErrStalled: the device took no frame for two seconds, though its link is up.
var ErrStalled = errors.New("the device takes no frames")

// worker is one queue's sender. All of it is owned by its goroutine until the
// generator's drained group says that result is final.
type worker struct {
	g     *Generator
	index int
	cpu   int
	pacer Pacer
	tx    ring.TX
	tmpl  *frames.Template
	proto []byte // the template's octets, for refill
	left  departures

	launcher ring.Launcher // nil: the kernel sends at once
	aheadNs  int64         // by which the worker's clock goes before the host's
	launchNs int64         // when the batch is to leave

	seq    uint64 // frames given to the kernel: the next sequence number
	counts stats.TxCounts
	shard  *stats.Shard[stats.TxCounts]

	progressed uint64 // tx.Counts().Sent when it was last seen to move
	progressNs int64  // and when that was

	result   Result
	closeErr error
}

func newWorker(g *Generator, index int, total uint64) *worker {
	w := &worker{
		g: g, index: index, cpu: -1,
		pacer: newPacer(g.cfg.Pattern, index, g.cfg.Workers, total),
		shard: g.counts.Shard(index),
	}
	if g.cfg.CPUs != nil {
		w.cpu = g.cfg.CPUs[index]
	}
	return w
}

// run is the life of a worker, on a thread that dies with it: it has been
// pinned, and may stand in another network namespace.
func (w *worker) run(ready chan<- error) {
	runtime.LockOSThread()
	err := w.open()
	ready <- err
	<-w.g.start
	if err == nil {
		if w.result.Err = w.loop(); w.result.Err == nil {
			w.result.Err = w.drainSent()
		}
	}
	w.finishResult()
	w.g.drained.Done()
	<-w.g.finish
	if w.tx == nil {
		return
	}
	if w.result.Err == nil {
		w.closeErr = SendClosing(w.tx, w.tmpl, w.seq, w.g.repeats)
	}
	w.closeErr = errors.Join(w.closeErr, w.tx.Close())
}

func (w *worker) open() error {
	cfg := &w.g.cfg
	if err := pin.Worker(cfg.Enter, w.cpu); err != nil {
		return err
	}
	clock.FineSleep()
	w.tmpl = cfg.Template(w.index)
	w.proto = w.tmpl.Bytes()
	tx, err := cfg.Open(w.index)
	if err != nil {
		return err
	}
	w.tx = tx
	w.tx.Prefill(func(slot []byte) int { return copy(slot, w.proto) })
	if cfg.Launch.Ahead > 0 {
		w.launcher, _ = tx.(ring.Launcher)
		if w.launcher == nil {
			return errors.New("this backend has no launch times")
		}
		w.aheadNs = int64(cfg.Launch.Ahead)
	}
	if !cfg.Pattern.Unlimited() {
		w.left = newDepartures(tx, cfg.Sampling)
	}
	return nil
}

// loop sends until the limit, the end of the duration, Stop, or an error.
func (w *worker) loop() error {
	batch := w.g.cfg.Batch
	now := w.idle(w.g.startNs + w.aheadNs)
	// A worker that is woken late paces from then on, and has nothing to catch up.
	w.pacer.Start(now)
	w.progressNs = clock.Mono()
	lastNs, endNs := int64(math.MaxInt64), int64(math.MaxInt64)
	if d := int64(w.g.cfg.Duration); d > 0 {
		lastNs = now + d - 1
		endNs = now + d
		if w.pacer.limit != noLimit && !w.g.cfg.Pattern.Unlimited() && !w.g.cfg.Pattern.Poisson {
			endNs += min(graceNs, d)
		}
	}
	for !w.g.stop.Load() {
		w.left.read() // one a batch: a run of them at once would make the next frames late
		if now >= endNs {
			w.result.Missed = w.pacer.Behind(lastNs)
			return nil
		}
		n, next := w.pacer.Due(now, batch)
		if n == 0 {
			if w.pacer.Done() {
				return nil
			}
			now = w.idle(next)
			w.noteLate(now - next)
			continue
		}
		slots := w.tx.Reserve(n)
		if len(slots) == 0 {
			if err := w.full(); err != nil {
				return err
			}
			now = w.now()
			continue
		}
		if err := w.send(slots); err != nil {
			return err
		}
		before := now
		now = w.now()
		w.noteLate(now - before)
		w.result.LastNs = now
		w.publish()
	}
	return nil
}

// noteLate counts what a paced worker did late: it was woken after its time, or
// a batch took longer than any takes, because the thread did not run or the
// device took nothing. What was due meanwhile is caught up in batches.
func (w *worker) noteLate(byNs int64) {
	if byNs > lateNs && w.pacer.schedule != nil && !w.g.stop.Load() {
		w.result.Late++
		w.result.LateMaxNs = max(w.result.LateMaxNs, byNs)
	}
}

// send stamps and sends one batch.
func (w *worker) send(slots [][]byte) error {
	w.left.arm(w.seq, len(slots))
	mono, real := clock.Both()
	if w.launcher != nil {
		w.launchNs = w.pacer.next()
		mono, real = w.launchNs, real+w.launchNs-mono
	}
	if w.seq == 0 {
		w.result.FirstNs = mono
	}
	w.result.LastNs = mono // until the batch has been taken
	if w.g.cfg.Refill {
		for _, s := range slots {
			copy(s, w.proto)
		}
	}
	for i, s := range slots {
		w.tmpl.Apply(s, w.seq+uint64(i), real)
	}
	w.left.stamped(w.seq, len(slots), real)
	w.tx.Commit(slots)
	w.seq += uint64(len(slots))
	w.pacer.Sent(len(slots))
	w.result.Batches++
	return w.kick()
}

// kick has the kernel take all that is committed, waiting out a busy device.
func (w *worker) kick() error {
	for tries := 0; ; tries++ {
		var err error
		if w.launcher != nil {
			err = w.launcher.KickAt(w.g.cfg.Launch.At(w.launchNs))
		} else {
			err = w.tx.Kick()
		}
		if err == nil || !errors.Is(err, ring.ErrBusy) {
			return err
		}
		wait := busyWait
		if tries > busyTries {
			wait = fullWait
		}
		// Not Wait: the ring has room, and would say so at once.
		clock.Sleep(int64(wait))
		if err := w.checkStall(); err != nil || w.g.stop.Load() {
			return err
		}
	}
}

// full waits for a free slot.
func (w *worker) full() error {
	if err := w.kick(); err != nil {
		return err
	}
	if err := w.tx.Wait(fullWait); err != nil {
		return err
	}
	return w.checkStall()
}

func (w *worker) checkStall() error {
	now := clock.Mono()
	if sent := w.tx.Counts().Sent; sent != w.progressed || w.tx.Outstanding() == 0 {
		w.progressed, w.progressNs = sent, now
	}
	if now-w.progressNs > stallNs {
		return fmt.Errorf("queue %d: %w: none of %d in the ring was taken in the last %v",
			w.index, ErrStalled, w.tx.Outstanding(), time.Duration(stallNs))
	}
	return nil
}

// now is the worker's clock: clock.Mono, or ahead of it by as much as frames are
// handed over before their times.
func (w *worker) now() int64 { return clock.Mono() + w.aheadNs }

// idle waits until an instant of the worker's clock, or for the stop flag, and
// returns the time.
func (w *worker) idle(untilNs int64) int64 {
	for {
		now := w.now()
		left := untilNs - now
		if left <= 0 || w.g.stop.Load() {
			return now
		}
		if left > spinNs {
			clock.Sleep(min(left-spinNs, sleepNs))
		}
	}
}

// drainSent drains the ring of the frames that were counted: they have left when
// it is empty, not when they were handed over.
func (w *worker) drainSent() error {
	if w.tx.Outstanding() == 0 {
		return nil
	}
	err := w.drain()
	w.result.LastNs = clock.Mono()
	return err
}

// drain waits until the kernel has finished with all that was committed, or for
// as long as the run allows.
func (w *worker) drain() error {
	wait := int64(drainNs)
	if w.g.stop.Load() {
		wait = stoppedNs
	}
	return drain(w.tx, wait)
}

func drain(tx ring.TX, waitNs int64) error {
	end := clock.Mono() + waitNs
	for tx.Outstanding() > 0 && clock.Mono() < end {
		err := tx.Kick()
		if err != nil && !errors.Is(err, ring.ErrBusy) {
			return err
		}
		if err != nil {
			clock.Sleep(int64(busyWait) * 10)
		} else if tx.Outstanding() > 0 {
			if err := tx.Wait(fullWait); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) finishResult() {
	r := &w.result
	r.Worker, r.CPU = w.index, w.cpu
	if w.tx == nil {
		return
	}
	w.publish()
	c := w.tx.Counts()
	r.Offered, r.Sent, r.Rejected, r.Busy = w.seq, c.Sent, c.Rejected, c.Busy
	r.Unsent = w.seq - c.Sent - c.Rejected
	r.Bytes = w.counts.Bytes
	for w.left.read() {
	}
	r.Gaps, r.Lag, r.Samples = w.left.gaps, w.left.lag, w.left.samples
}

// publish makes the counters seen outside.
func (w *worker) publish() {
	c := w.tx.Counts()
	w.counts.Offered = w.seq
	w.counts.Sent = c.Sent
	w.counts.Bytes = c.Sent * uint64(units.FromSocket(w.tmpl.Len()))
	w.counts.Errors = c.Rejected
	w.counts.Retries = c.Busy
	stats.Publish(w.shard, &w.counts)
}

// SendClosing tells the receiver that a template's stream has sent frames,
// repeats times. For the goroutine that owns the ring.
func SendClosing(tx ring.TX, tmpl *frames.Template, sent uint64, repeats int) error {
	for i := range repeats {
		if i > 0 {
			clock.Sleep(closingGapNs)
		}
		slots := tx.Reserve(1)
		if len(slots) == 0 {
			continue
		}
		tmpl.ApplyClosing(slots[0], uint32(i), sent)
		tx.Commit(slots)
		_ = tx.Kick() // best effort: the repeats are what it relies on
	}
	return drain(tx, stoppedNs)
}
