package gen

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"time"

	"pktgen/units"
)

// Schedule says when the frames of a run are due. Frames are numbered k = 0, 1,
// ... over all workers; times are ns since the start. It is not safe for two
// goroutines: each worker makes its own.
type Schedule interface {
	// Due is the number of frames due within elapsedNs, that instant included.
	// It is not asked about a time before one it was asked about.
	Due(elapsedNs uint64) uint64
	// At is the time, rounded up, at which frame k is due; math.MaxUint64 when it
	// never is. It is not asked about a frame that is due already.
	At(k uint64) uint64
}

// Pattern makes a worker's schedule. The zero value is as fast as it goes.
type Pattern struct {
	Rate  units.FrameRate // of all workers together; zero: as fast as it goes
	Burst uint64          // frames back to back, then a pause that keeps the rate; 0 or 1: even
	// RampTo is the rate reached after Ramp, in a straight line from Rate; it stays.
	RampTo units.FrameRate
	Ramp   time.Duration
	// On and Off: frames are due for On, then none for Off, and so on. The rate
	// is that within On. Off 0: always on.
	On, Off time.Duration
	// Steps: one rate after the other, each for its time; then no more. Rate is the
	// first one's.
	Steps []Step
	// Poisson: independent gaps, exponentially distributed, of 1/Rate on average.
	// The same Seed gives the same times.
	Poisson bool
	Seed    uint64
}

// Step is one rate of a plan: that of all workers together, 0 for silence, and for
// how long.
type Step struct {
	Rate units.FrameRate
	For  time.Duration
}

// Unlimited says that the pattern is as fast as it goes.
func (p Pattern) Unlimited() bool { return p.Rate.Num == 0 && len(p.Steps) == 0 }

// Mean is the rate in frames/s that the pattern asks for on average over a run's
// duration; 0 where that is not known: as fast as it goes, or a rate that varies
// over no known duration.
func (p Pattern) Mean(duration time.Duration) float64 {
	if p.Unlimited() || (p.Ramp == 0 && p.Off == 0 && len(p.Steps) == 0) {
		return p.Rate.PerSecond()
	}
	n := p.Frames(duration)
	if n < 2 {
		return 0
	}
	s := p.schedule(0, 1)
	first, last := s.At(0), s.At(n-1)
	if first == last { // one burst has no rate
		return 0
	}
	return float64(n-1) / (float64(last-first) / 1e9)
}

// Span is the time from the first of n frames to the last as the pattern has
// them due; 0 where it tells nothing of that: as fast as it goes, random, or all
// at once.
func (p Pattern) Span(n uint64) time.Duration {
	if p.Unlimited() || p.Poisson || n < 2 {
		return 0
	}
	s := p.schedule(0, 1)
	if last := s.At(n - 1); last < never {
		return time.Duration(last - s.At(0))
	}
	return 0
}

// schedule is that of one of workers workers. A Poisson schedule is the worker's
// own, at its share of the rate: independent streams add up to one.
func (p Pattern) schedule(index, workers int) Schedule {
	var s Schedule
	switch {
	case p.Poisson:
		s = newPoisson(p.Rate, p.Seed, index, workers)
	case len(p.Steps) > 0:
		s = newSteps(p.Steps)
	case p.Ramp > 0:
		s = newRamp(p.Rate, p.RampTo, p.Ramp)
	default:
		s = even(p.Rate)
	}
	if p.Burst > 1 {
		s = burst{s, p.Burst}
	}
	if p.Off > 0 {
		s = onOff{s, uint64(p.On), uint64(p.Off)}
	}
	return s
}

// even: frame k is due at k/rate.
type even units.FrameRate

func (r even) Due(elapsedNs uint64) uint64 {
	hi, lo := bits.Mul64(elapsedNs, r.Num)
	if hi >= r.Den { // beyond 64 bits: centuries at the rates of any link
		return never
	}
	q, _ := bits.Div64(hi, lo, r.Den)
	return min(q, never-1) + 1
}

func (r even) At(k uint64) uint64 {
	hi, lo := bits.Mul64(k, r.Den)
	lo, carry := bits.Add64(lo, r.Num-1, 0)
	hi += carry
	if hi >= r.Num {
		return never
	}
	q, _ := bits.Div64(hi, lo, r.Num)
	return q
}

// never is later than any time, and more than any number of frames.
const never = math.MaxUint64 >> 1

// burst: the frames of each burst are due when its first one is.
type burst struct {
	Schedule
	size uint64
}

func (b burst) Due(elapsedNs uint64) uint64 {
	n := b.Schedule.Due(elapsedNs)
	if n == 0 || n >= never-b.size {
		return n
	}
	return ((n-1)/b.size + 1) * b.size
}

func (b burst) At(k uint64) uint64 { return b.Schedule.At(k / b.size * b.size) }

// onOff stops the clock of a schedule for off after each on.
type onOff struct {
	Schedule
	on, off uint64
}

func (o onOff) Due(elapsedNs uint64) uint64 {
	cycle, within := elapsedNs/(o.on+o.off), elapsedNs%(o.on+o.off)
	active := cycle*o.on + min(within, o.on)
	if within >= o.on { // what is due just when it stops is of the next period
		active--
	}
	return o.Schedule.Due(active)
}

func (o onOff) At(k uint64) uint64 {
	active := o.Schedule.At(k)
	if active == never {
		return never
	}
	hi, lo := bits.Mul64(active/o.on, o.on+o.off)
	if hi != 0 || lo >= never {
		return never
	}
	return lo + active%o.on
}

// ramp: the rate goes from one to another in a straight line, and stays there.
// By elapsed time t < over, frames = from*t + (to-from)*t*t / (2*over).
type ramp struct {
	from, to float64 // frames/ns
	overNs   uint64
	within   float64 // frames of the ramp itself
}

func newRamp(from, to units.FrameRate, over time.Duration) ramp {
	r := ramp{from: from.PerSecond() / 1e9, to: to.PerSecond() / 1e9, overNs: uint64(over)}
	r.within = r.count(r.overNs)
	return r
}

// count is the exact number of frames due, not rounded. Its error stays below a
// frame up to 2^52 frames: an hour at 10^12 frames/s.
func (r ramp) count(elapsedNs uint64) float64 {
	if elapsedNs > r.overNs {
		return r.within + r.to*float64(elapsedNs-r.overNs)
	}
	t := float64(elapsedNs)
	return r.from*t + (r.to-r.from)*t*t/(2*float64(r.overNs))
}

// Due takes a frame as due a billionth of it early, so that rounding moves none
// from the ns at which it is due by hand.
func (r ramp) Due(elapsedNs uint64) uint64 { return uint64(r.count(elapsedNs)+1e-9) + 1 }

// At searches for the first ns at which Due counts the frame, so that the two agree.
func (r ramp) At(k uint64) uint64 {
	lo, hi := uint64(0), uint64(1)
	for r.Due(hi) <= k {
		if hi >= never/2 {
			return never
		}
		lo, hi = hi, hi*2
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		if r.Due(mid) > k {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// steps: within each step its frames are due evenly, from its beginning on.
type steps []step

// step is one of them, from startNs to endNs, with count frames after before
// earlier ones.
type step struct {
	even
	startNs, endNs uint64
	before, count  uint64
}

func newSteps(plan []Step) (all steps) {
	var at, frames uint64
	for _, p := range plan {
		s := step{even: even(p.Rate), startNs: at, endNs: at + uint64(p.For), before: frames}
		if p.Rate.Num > 0 && p.For > 0 {
			s.count = s.even.Due(uint64(p.For) - 1)
		}
		all = append(all, s)
		at, frames = s.endNs, frames+s.count
	}
	return all
}

func (s steps) Due(elapsedNs uint64) uint64 {
	last := s[0]
	for _, one := range s {
		if elapsedNs < one.startNs {
			break
		}
		last = one
	}
	if elapsedNs >= last.endNs || last.Num == 0 {
		return last.before + last.count
	}
	return last.before + min(last.count, last.even.Due(elapsedNs-last.startNs))
}

func (s steps) At(k uint64) uint64 {
	for _, one := range s {
		if k < one.before+one.count {
			return one.startNs + one.even.At(k-one.before)
		}
	}
	return never
}

// poisson draws the gap to each next frame. It remembers one frame only.
type poisson struct {
	rnd  *rand.Rand
	mean float64 // ns
	k    uint64  // the frame that is next
	at   float64 // and its time, ns
}

func newPoisson(r units.FrameRate, seed uint64, index, workers int) *poisson {
	p := &poisson{
		rnd:  rand.New(rand.NewPCG(seed, uint64(index))),
		mean: 1e9 / r.PerSecond() * float64(workers),
	}
	p.at = p.rnd.ExpFloat64() * p.mean
	return p
}

func (p *poisson) Due(elapsedNs uint64) uint64 {
	for p.at <= float64(elapsedNs) {
		p.k++
		p.at += p.rnd.ExpFloat64() * p.mean
	}
	return p.k
}

func (p *poisson) At(uint64) uint64 {
	if p.at >= never {
		return never
	}
	return uint64(math.Ceil(p.at))
}
