package gen

import (
	"math"
	"math/bits"
)

// Pacer says how many frames are due. It is a pure function of the time since
// the start and of the frames already sent: no token bucket that forgets, no
// floating point, so that over any duration frames sent = rate x time.
//
// The frames of a run are numbered k = 0, 1, ... over all its workers; frame k
// is due k/rate after the start. Worker i of n takes those with k mod n = i,
// so that n workers together keep the same even spacing as one.
//
// Owned by the queue goroutine.
type Pacer struct {
	num, den uint64 // num frames every den ns; num 0: as fast as it goes
	index    uint64 // this worker
	workers  uint64
	limit    uint64 // frames of this worker in all
	startNs  int64
	sent     uint64 // frames of this worker
}

// noLimit is a limit that is never reached.
const noLimit = math.MaxUint64

// newPacer paces worker index of workers at num frames every den ns for the
// whole run. total is the number of frames of the whole run, 0 = no limit.
func newPacer(num, den uint64, index, workers int, total uint64) Pacer {
	p := Pacer{num: num, den: den, index: uint64(index), workers: uint64(workers), limit: noLimit}
	if total != 0 {
		p.limit = p.share(total)
	}
	return p
}

// Start sets the instant at which frame 0 is due.
func (p *Pacer) Start(nowNs int64) { p.startNs = nowNs }

// Due says how many frames, up to max, are to be sent now; if none, when the
// next one is due (monotonic ns; math.MaxInt64 when all are sent).
func (p *Pacer) Due(nowNs int64, max int) (n int, nextNs int64) {
	left := p.limit - p.sent
	if left == 0 {
		return 0, math.MaxInt64
	}
	if p.num == 0 {
		return int(min(left, uint64(max))), 0
	}
	if nowNs < p.startNs {
		return 0, p.dueAt(p.sent)
	}
	due := p.share(p.dueBy(uint64(nowNs - p.startNs)))
	if due <= p.sent {
		return 0, p.dueAt(p.sent)
	}
	return int(min(due-p.sent, left, uint64(max))), 0
}

// Behind is the number of frames that are due and not yet sent.
func (p *Pacer) Behind(nowNs int64) uint64 {
	if p.num == 0 || nowNs < p.startNs {
		return 0
	}
	due := min(p.share(p.dueBy(uint64(nowNs-p.startNs))), p.limit)
	return due - min(due, p.sent)
}

// Sent notes n frames as sent.
func (p *Pacer) Sent(n int) { p.sent += uint64(n) }

// Done says that the limit is reached.
func (p *Pacer) Done() bool { return p.sent == p.limit }

// dueBy is the number of frames of the whole run that are due within
// elapsedNs of the start: those with k*den/num <= elapsed.
func (p *Pacer) dueBy(elapsedNs uint64) uint64 {
	hi, lo := bits.Mul64(elapsedNs, p.num)
	if hi >= p.den { // beyond 64 bits: centuries at the rates of any link
		return noLimit - p.workers
	}
	q, _ := bits.Div64(hi, lo, p.den)
	return min(q, noLimit-p.workers-1) + 1
}

// dueAt is the instant, rounded up to a ns, at which this worker's frame j is due.
func (p *Pacer) dueAt(j uint64) int64 {
	k := j*p.workers + p.index
	hi, lo := bits.Mul64(k, p.den)
	lo, carry := bits.Add64(lo, p.num-1, 0)
	hi += carry
	if hi >= p.num {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, p.num)
	if q > uint64(math.MaxInt64-p.startNs) {
		return math.MaxInt64
	}
	return p.startNs + int64(q)
}

// share is how many of the first total frames of the run are this worker's.
func (p *Pacer) share(total uint64) uint64 {
	if total <= p.index {
		return 0
	}
	return (total - p.index + p.workers - 1) / p.workers
}

// framesWithin is the number of frames due in a run of duration ns, its end
// excluded: ceil(duration * num / den); 0 stands for no limit.
func framesWithin(num, den uint64, durationNs int64) uint64 {
	if num == 0 || durationNs <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(durationNs), num)
	lo, carry := bits.Add64(lo, den-1, 0)
	hi += carry
	if hi >= den {
		return 0
	}
	q, _ := bits.Div64(hi, lo, den)
	return q
}
