package gen

import (
	"math"
	"time"
)

// Pacer says how many frames are due. It follows a schedule by the time since
// the start and by the frames already sent: no token bucket that forgets, so
// that over any duration frames sent = rate x time.
//
// The frames of a run are numbered k = 0, 1, ... over all its workers; worker i
// of n takes those with k mod n = i, so that n workers together keep the same
// spacing as one.
//
// Owned by the queue goroutine.
type Pacer struct {
	schedule Schedule // nil: as fast as it goes
	index    uint64   // this worker
	workers  uint64
	limit    uint64 // frames of this worker in all
	startNs  int64
	sent     uint64 // frames of this worker
}

// noLimit is a limit that is never reached.
const noLimit = math.MaxUint64

// newPacer paces worker index of workers by a pattern for the whole run. total
// is the number of frames of the whole run, 0 = no limit.
func newPacer(pattern Pattern, index, workers int, total uint64) Pacer {
	p := Pacer{index: uint64(index), workers: uint64(workers), limit: noLimit}
	if total != 0 {
		p.limit = p.share(total)
	}
	if pattern.Unlimited() {
		return p
	}
	p.schedule = pattern.schedule(index, workers)
	if pattern.Poisson {
		p.index, p.workers = 0, 1 // the schedule is this worker's alone
	}
	return p
}

// Start sets the instant at which the schedule begins.
func (p *Pacer) Start(nowNs int64) { p.startNs = nowNs }

// Due says how many frames, up to max, are to be sent now; if none, when the
// next one is due (monotonic ns; math.MaxInt64 when all are sent).
func (p *Pacer) Due(nowNs int64, max int) (n int, nextNs int64) {
	left := p.limit - p.sent
	if left == 0 {
		return 0, math.MaxInt64
	}
	if p.schedule == nil {
		return int(min(left, uint64(max))), 0
	}
	if due := p.dueBy(nowNs); due > p.sent {
		return int(min(due-p.sent, left, uint64(max))), 0
	}
	return 0, p.next()
}

// Behind is the number of frames that are due and not yet sent.
func (p *Pacer) Behind(nowNs int64) uint64 {
	if p.schedule == nil {
		return 0
	}
	due := min(p.dueBy(nowNs), p.limit)
	return due - min(due, p.sent)
}

// Sent notes n frames as sent.
func (p *Pacer) Sent(n int) { p.sent += uint64(n) }

// Done says that the limit is reached.
func (p *Pacer) Done() bool { return p.sent == p.limit }

// dueBy is the number of this worker's frames that are due by now.
func (p *Pacer) dueBy(nowNs int64) uint64 {
	if nowNs < p.startNs {
		return 0
	}
	return p.share(p.schedule.Due(uint64(nowNs - p.startNs)))
}

// next is the instant at which this worker's next frame is due.
func (p *Pacer) next() int64 {
	if p.sent > never/p.workers {
		return math.MaxInt64
	}
	at := p.schedule.At(p.sent*p.workers + p.index)
	if at > uint64(math.MaxInt64-p.startNs) {
		return math.MaxInt64
	}
	return p.startNs + int64(at)
}

// share is how many of the first total frames of the run are this worker's.
func (p *Pacer) share(total uint64) uint64 {
	if total <= p.index {
		return 0
	}
	return (total - p.index + p.workers - 1) / p.workers
}

// Frames is the number of frames that the pattern has due in a run of a
// duration, its end excluded; 0 stands for no limit: where there is none, and
// for random times, which no number tells beforehand.
func (p Pattern) Frames(duration time.Duration) uint64 {
	if p.Unlimited() || p.Poisson || duration <= 0 {
		return 0
	}
	n := p.schedule(0, 1).Due(uint64(duration) - 1)
	if n >= never {
		return 0
	}
	return n
}
