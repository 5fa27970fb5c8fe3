package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// path is two clocks and the two ways between them, ns.
type path struct {
	local, remote int64   // where the clocks stand at time 0
	drift         float64 // of the remote clock, ppm
	there, back   float64 // least delays
	queue         float64 // mean of the exponential delay on top
	loss, stall   float64 // of all; a stall is up to 50 ms
}

// offset is remote - local, ns, a time t after 0 of the local clock, from
// remote - local at 0 on.
func (p path) offset(t float64) float64 { return p.drift * 1e-6 * t }

// run sends a frame each interval.
func (p path) run(seed uint64, frames int, interval float64, observe func(t1, t2, t3, t4 int64)) {
	r := rand.New(rand.NewPCG(seed, 1))
	delay := func(least float64) float64 {
		d := least + p.queue*r.ExpFloat64()
		if r.Float64() < p.stall {
			d += 50e6 * r.Float64()
		}
		return d
	}
	for i := range frames {
		t := float64(i) * interval
		arrived := t + delay(p.there)
		returned := arrived + 500 + 500*r.Float64()
		back := returned + delay(p.back)
		if r.Float64() < p.loss {
			continue
		}
		floor := func(t float64) int64 { return int64(math.Floor(t)) }
		remote := func(t float64) int64 { return p.remote + floor(t+p.offset(t)) }
		observe(p.local+floor(t), remote(arrived), remote(returned), p.local+floor(back))
	}
}

// worst is the greatest error of an estimate between its First and Last: both are
// straight lines, so that it is at an end.
func (p path) worst(o Offset) float64 {
	off := func(at int64) float64 {
		return math.Abs(float64(o.At(at)-(p.remote-p.local)) - p.offset(float64(at-p.local)))
	}
	return max(off(o.First), off(o.Last))
}

// Where both ways have the same least delay, the estimate is far better than the
// bound.
func TestOffsetSymmetric(t *testing.T) {
	for _, c := range []struct {
		frames   int
		interval float64 // ns
		within   float64 // of the least delay
	}{
		{100, 1e9, 0.05}, {3600 * 3, 1e9, 0.01}, // 1 frame/s
		{1000, 1e6, 0.02}, {300_000, 1e5, 0.01},
		{10_000, 1e3, 0.02}, {2_000_000, 1e3, 0.01}, // 1 M frames/s
	} {
		p := path{local: 1 << 60, remote: -1 << 50, drift: 37, there: 50e3, back: 50e3, queue: 20e3, loss: 0.01, stall: 0.001}
		var co ClockOffset
		p.run(1, c.frames, c.interval, co.Observe)
		o, err := co.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		if worst := p.worst(o); worst > c.within*p.there || worst > float64(o.Bound) {
			t.Errorf("%d frames, one each %g ns: off by %.0f ns: %+v", c.frames, c.interval, worst, o)
		}
	}
}
