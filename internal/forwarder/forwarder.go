// Package forwarder is a device under test in user space: it joins two interfaces
// frame by frame, and does known faults to known frames, so that tests can hold
// what pktgen says against what was done.
package forwarder

import (
	"container/heap"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pktgen/internal/clock"
	"pktgen/internal/netdev"
	"pktgen/internal/pin"
	"pktgen/ring"
	"pktgen/ring/tpacket"
	"pktgen/stats"
)

// Action is what to do to a frame. The zero value forwards it.
type Action struct {
	Drop   bool
	Copies int           // sent so often besides
	Hold   time.Duration // sent so long after its arrival; 8 ms or more: the receive ring's own delay is 4
	Behind int           // sent after so many later frames: reordered by that distance
	Flip   int           // octet to damage, counted from the destination MAC; 0: none
}

// Plan says what to do to frame n of a direction, from 0, of those that Match. It
// is called on the direction's own goroutine.
type Plan func(n uint64, frame []byte) Action

// Options describe both directions. A nil Plan forwards everything.
type Options struct {
	Match  func(frame []byte) bool // which frames Plan is asked about; nil: all
	AB, BA Plan
}

// Stats is what was done in one direction, exact once Close has returned.
type Stats struct {
	Received, Matched              uint64 // frames
	Dropped, Copied, Held, Swapped uint64
	Damaged, Sent                  uint64
	Lost                           uint64         // by the forwarder's own receive ring: not meant
	Hold                           *stats.Latency // ns from arrival to departure, of the frames held
}

// Forwarder is both directions. Its methods are safe from any goroutine.
type Forwarder struct {
	ways [2]*way
	stop atomic.Bool
	done sync.WaitGroup
}

// Start joins a and b, which are up. Errors: those of the rings.
func Start(a, b netdev.Ref, o Options) (*Forwarder, error) {
	f := &Forwarder{}
	ready := make(chan error)
	for i, w := range []*way{{from: a, to: b, plan: o.AB}, {from: b, to: a, plan: o.BA}} {
		w.f, w.match, w.Hold = f, o.Match, stats.NewLatency()
		f.ways[i] = w
		f.done.Go(func() { w.run(ready) })
	}
	err := errors.Join(<-ready, <-ready)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close sends what is held, ends, and returns what went wrong. The counts of both
// directions, a to b and back, are in Stats.
func (f *Forwarder) Close() error {
	f.stop.Store(true)
	f.done.Wait()
	return errors.Join(f.ways[0].err, f.ways[1].err)
}

// Stats are for after Close.
func (f *Forwarder) Stats() (ab, ba Stats) { return f.ways[0].Stats, f.ways[1].Stats }

// frame is one that waits to be sent.
type frame struct {
	octets  []byte
	arrived int64 // ns since the Unix epoch
	dueNs   int64
	behind  int // later frames that go first
}

// way is one direction, owned by its goroutine until done.
type way struct {
	f        *Forwarder
	from, to netdev.Ref
	match    func([]byte) bool
	plan     Plan
	rx       *tpacket.RX
	tx       *tpacket.TX
	n        uint64
	held     byTime
	behind   []frame
	err      error
	Stats
}

func (w *way) run(ready chan<- error) {
	runtime.LockOSThread() // it moves to other namespaces, and dies there
	err := w.open()
	ready <- err
	if err == nil {
		w.err = w.loop()
	}
	if w.rx != nil {
		if d, err := w.rx.Drops(); err == nil {
			w.Lost = d.Drops
		}
		w.err = errors.Join(w.err, w.rx.Close())
	}
	if w.tx != nil {
		w.err = errors.Join(w.err, w.tx.Close())
	}
}

func (w *way) open() error {
	from, err := netdev.Lookup(w.from)
	if err != nil {
		return err
	}
	to, err := netdev.Lookup(w.to)
	if err != nil {
		return err
	}
	clock.FineSleep()
	if err := pin.Worker(w.to.Enter, -1); err != nil {
		return err
	}
	if w.tx, err = tpacket.OpenTX(tpacket.TXOptions{Interface: w.to.String(), Index: to.Index, MaxFrame: to.MTU + 18}); err != nil {
		return err
	}
	if err := pin.Worker(w.from.Enter, -1); err != nil {
		return err
	}
	w.rx, err = tpacket.OpenRX(tpacket.RXOptions{Interface: w.from.String(), Index: from.Index, Promisc: true})
	if err != nil {
		return err
	}
	return w.rx.Start()
}

const (
	waitNs = 5_000_000
	spinNs = 100_000
)

func (w *way) loop() error {
	for !w.f.stop.Load() {
		wait := int64(waitNs)
		if len(w.held) > 0 {
			wait = min(wait, w.held[0].dueNs-time.Now().UnixNano()-spinNs)
		}
		b, err := w.rx.Next(time.Duration(max(wait, 0)))
		switch {
		case err == nil:
			var f ring.Frame
			for b.Next(&f) && err == nil {
				err = w.one(&f)
			}
			w.rx.Release(b)
		case errors.Is(err, ring.ErrTimeout):
			err = nil
		}
		if err == nil {
			err = w.due(false)
		}
		if err != nil {
			return err
		}
	}
	for _, f := range w.behind {
		if err := w.send(&f); err != nil {
			return err
		}
	}
	return w.due(true)
}

// one does to a frame what the plan says.
func (w *way) one(f *ring.Frame) error {
	w.Received++
	var a Action
	if w.match == nil || w.match(f.Data) {
		w.Matched++
		if w.plan != nil {
			a = w.plan(w.n, f.Data)
		}
		w.n++
	}
	if a.Drop {
		w.Dropped++
		return nil
	}
	out := frame{octets: whole(f), arrived: f.TimeNs}
	if a.Flip > 0 {
		w.Damaged++
		out.octets[a.Flip] ^= 0x10
	}
	switch {
	case a.Behind > 0:
		w.Swapped++
		out.behind = a.Behind
		w.behind = append(w.behind, out)
		return nil
	case a.Hold > 0:
		w.Held++
		out.dueNs = f.TimeNs + int64(a.Hold)
		heap.Push(&w.held, out)
		return nil
	}
	for range a.Copies + 1 {
		if err := w.send(&out); err != nil {
			return err
		}
	}
	w.Copied += uint64(a.Copies)
	return w.overtaken()
}

// overtaken sends the frames that were to let so many others go first.
func (w *way) overtaken() error {
	for i := range w.behind {
		w.behind[i].behind--
	}
	for len(w.behind) > 0 {
		i := slices.IndexFunc(w.behind, func(f frame) bool { return f.behind <= 0 })
		if i < 0 {
			break
		}
		f := w.behind[i]
		w.behind = slices.Delete(w.behind, i, i+1)
		if err := w.send(&f); err != nil {
			return err
		}
	}
	return nil
}

// due sends the held frames whose time has come, or all of them.
func (w *way) due(all bool) error {
	for len(w.held) > 0 {
		left := w.held[0].dueNs - time.Now().UnixNano()
		if left > spinNs && !all {
			return nil
		}
		if left > 0 && !all {
			continue
		}
		f, _ := heap.Pop(&w.held).(frame)
		if err := w.send(&f); err != nil {
			return err
		}
		w.Hold.Observe(time.Now().UnixNano() - f.arrived)
	}
	return nil
}

func (w *way) send(f *frame) error {
	for {
		slots := w.tx.Reserve(1)
		if len(slots) == 1 {
			if cap(slots[0]) < len(f.octets) {
				return fmt.Errorf("%v: a frame of %d octets is too large", w.to, len(f.octets))
			}
			slots[0] = slots[0][:copy(slots[0][:cap(slots[0])], f.octets)]
			w.tx.Commit(slots)
			w.Sent++
		}
		err := w.tx.Kick()
		if err == nil && len(slots) == 1 {
			return nil
		}
		if err != nil && !errors.Is(err, ring.ErrBusy) || w.f.stop.Load() {
			return err
		}
		clock.Sleep(10_000)
	}
}

// whole is a copy of a frame with its tag in it again.
func whole(f *ring.Frame) []byte {
	if f.TPID == 0 {
		return slices.Clone(f.Data)
	}
	b := append(make([]byte, 0, len(f.Data)+4), f.Data[:12]...)
	b = append(b, byte(f.TPID>>8), byte(f.TPID), byte(f.VLAN>>8), byte(f.VLAN))
	return append(b, f.Data[12:]...)
}

// byTime is a heap of held frames.
type byTime []frame

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].dueNs < h[j].dueNs }
func (h byTime) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byTime) Push(v any)        { *h = append(*h, v.(frame)) }
func (h *byTime) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
