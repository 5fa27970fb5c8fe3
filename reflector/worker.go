package reflector

import (
	"errors"
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
	// waitBlock bounds the wait for a block, so that the stop flag is seen.
	waitBlock = 20 * time.Millisecond
	// lastNs bounds the sending back after Stop while frames still come in.
	lastNs = 300_000_000
	// batch is how many frames one system call sends. All of them say the time
	// before that call, so that few is better.
	batch = 16
	// busyWait and busyTries: how often a device that takes no more is asked
	// again before its frames are left to the next batch.
	busyWait  = 10 * time.Microsecond
	busyTries = 100
)

// worker is one queue's reflector. All of it is owned by its goroutine until the
// reflector's stopped group says that it has ended.
type worker struct {
	r     *Reflector
	index int
	cpu   int
	rx    ring.RX
	tx    ring.TX

	parsed frames.Parsed
	frame  ring.Frame
	slots  [][]byte // reserved and not yet committed
	back   [batch]frames.Reflection
	at     [batch]int64 // their receive times
	n      int          // of back: how many wait for their time

	Counts
	residence *stats.Latency
	err       error
}

func newWorker(r *Reflector, index int) *worker {
	w := &worker{r: r, index: index, cpu: -1, residence: stats.NewLatency()}
	if r.cfg.CPUs != nil {
		w.cpu = r.cfg.CPUs[index]
	}
	return w
}

// run is the life of a worker, on a thread that dies with it: it has been pinned,
// and may stand in another network namespace.
func (w *worker) run(ready chan<- error) {
	runtime.LockOSThread()
	err := w.open()
	ready <- err
	if err == nil {
		<-w.r.start
		if err = w.rx.Start(); err == nil {
			err = w.loop()
		}
		if err != nil {
			w.err = err
			w.r.fails.Do(func() { close(w.r.failed) })
		}
		w.drain()
	}
	if w.rx != nil {
		if d, err := w.rx.Drops(); err == nil {
			w.Drops = d.Drops
		}
		w.err = errors.Join(w.err, w.rx.Close())
	}
	if w.tx != nil {
		w.err = errors.Join(w.err, w.tx.Close())
	}
}

func (w *worker) open() (err error) {
	cfg := &w.r.cfg
	if err := pin.Worker(cfg.Enter, w.cpu); err != nil {
		return err
	}
	if w.rx, err = cfg.OpenRX(w.index); err != nil {
		w.rx = nil
		return err
	}
	if w.tx, err = cfg.OpenTX(w.index); err != nil {
		w.tx = nil
	}
	return err
}

// loop sends back until Stop, and then what has arrived by then.
func (w *worker) loop() error {
	endNs := int64(0)
	for {
		b, err := w.rx.Next(waitBlock)
		if err == nil {
			err = w.block(b)
			w.rx.Release(b)
		} else if errors.Is(err, ring.ErrTimeout) {
			if endNs != 0 {
				return nil
			}
			err = nil
		}
		if err != nil {
			return err
		}
		now := clock.Mono()
		if endNs == 0 && w.r.stop.Load() {
			endNs = now + lastNs
		}
		if endNs != 0 && now > endNs {
			return nil
		}
	}
}

func (w *worker) block(b *ring.Block) error {
	f := &w.frame
	for b.Next(f) {
		w.one(f)
		if w.n == len(w.slots) && w.n > 0 {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return w.flush()
}

// one prepares the way back of a frame, or counts it as what it is.
func (w *worker) one(f *ring.Frame) {
	cfg, p := &w.r.cfg, &w.parsed
	switch frames.ParseStamp(f.Data, p) {
	case frames.KindTest, frames.KindClosing:
		if !f.ChecksumPartial && !frames.VerifyChecksums(f.Data, p) {
			w.Corrupt++
			return
		}
		slot := w.slot()
		if slot == nil {
			return
		}
		back, short, ok := frames.Reflect(slot, f.Data, p, f.TPID, f.VLAN, f.ChecksumPartial, cfg.Clock(f.TimeNs))
		switch {
		case short:
			w.Short++
		case !ok:
			w.Other++
		default:
			w.Returned++
			w.add(back, f)
		}
		return
	}
	if cfg.STAMPPort == 0 || !frames.ParseSTAMP(f.Data, cfg.STAMPPort, p) {
		w.Other++
		return
	}
	if !f.ChecksumPartial && !frames.VerifyChecksums(f.Data, p) {
		w.Corrupt++
		return
	}
	slot := w.slot()
	if slot == nil {
		return
	}
	back, ok := frames.ReflectSTAMP(slot, f.Data, p, f.TPID, f.VLAN, f.ChecksumPartial, cfg.Clock(f.TimeNs), cfg.Synchronised)
	if !ok {
		w.Other++
		return
	}
	w.STAMP++
	w.add(back, f)
}

// slot is the next free one; nil, and the frame counted, where the device takes
// no more.
func (w *worker) slot() []byte {
	if w.n == len(w.slots) {
		w.slots = w.tx.Reserve(batch)
		w.n = 0
		if len(w.slots) == 0 {
			_ = w.tx.Kick() // the next flush tells its error
			if w.slots = w.tx.Reserve(batch); len(w.slots) == 0 {
				w.NoRoom++
				return nil
			}
		}
	}
	return w.slots[w.n]
}

func (w *worker) add(r frames.Reflection, f *ring.Frame) {
	w.back[w.n], w.at[w.n] = r, f.TimeNs
	w.n++
}

// flush sends what has been prepared, at the time that it says.
func (w *worker) flush() error {
	n := w.n
	w.n = 0
	slots := w.slots
	w.slots = nil
	if n == 0 {
		return nil
	}
	_, now := clock.Both()
	told := w.r.cfg.Clock(now)
	for i := range n {
		slots[i] = w.back[i].Sent(told)
		w.Bytes += uint64(units.FromSocket(len(slots[i])))
		w.residence.Observe(now - w.at[i])
	}
	w.tx.Commit(slots[:n])
	return w.kick()
}

// kick has the kernel take what is committed. What a busy device leaves goes
// with the next.
func (w *worker) kick() error {
	for range busyTries {
		err := w.tx.Kick()
		if err == nil || !errors.Is(err, ring.ErrBusy) {
			return err
		}
		clock.Sleep(int64(busyWait))
	}
	return nil
}

// drain waits until the kernel has finished with all that was committed.
func (w *worker) drain() {
	for end := clock.Mono() + lastNs; w.tx.Outstanding() > 0 && clock.Mono() < end; {
		if w.kick() != nil || w.tx.Wait(time.Millisecond) != nil {
			break
		}
	}
	w.Unsent = uint64(w.tx.Outstanding())
}
