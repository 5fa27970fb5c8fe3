package gen

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pktgen/units"
)

func pps(n uint64) units.FrameRate { return units.FrameRate{Num: n, Den: 1e9} }

// TestSchedulesAgree: of every schedule, At is the first instant at which Due
// counts the frame, and Due never falls.
func TestSchedulesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := pps(rapid.Uint64Range(1, 10_000_000).Draw(t, "rate"))
		p := rapid.SampledFrom([]Pattern{
			{Rate: rate},
			{Rate: rate, Burst: rapid.Uint64Range(2, 1000).Draw(t, "burst")},
			{Rate: rate, On: time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "on")), Off: time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "off"))},
			{Rate: rate, RampTo: pps(rapid.Uint64Range(1, 10_000_000).Draw(t, "to")), Ramp: time.Duration(rapid.Int64Range(1, 1e10).Draw(t, "ramp"))},
			{Rate: rate, Burst: 7, On: time.Millisecond, Off: 3 * time.Millisecond},
			{Steps: []Step{{rate, time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "first"))}, {units.FrameRate{}, time.Second}, {pps(1000), 1e15}}},
		}).Draw(t, "pattern")
		s := p.schedule(0, 1)
		k := rapid.Uint64Range(0, 1e9).Draw(t, "k")
		at := s.At(k)
		if at == never {
			if p.Off == 0 && len(p.Steps) == 0 { // a plan ends; a second on in 30 years off may be beyond 64 bits
				t.Fatalf("frame %d is never due", k)
			}
			return
		}
		if n := s.Due(at); n <= k {
			t.Fatalf("at %d ns only %d are due, not frame %d", at, n, k)
		}
		if at > 0 {
			if n := s.Due(at - 1); n > k {
				t.Fatalf("a ns before its time frame %d is due: %d are", k, n)
			}
		}
	})
}

// TestPatterns: what each pattern sends in known times, counted by hand.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		name    string
		pattern Pattern
		want    map[time.Duration]uint64
	}{
		{"even", Pattern{Rate: pps(1000)}, map[time.Duration]uint64{0: 1, time.Millisecond - 1: 1, time.Millisecond: 2, time.Second: 1001}},
		{"burst", Pattern{Rate: pps(1000), Burst: 10}, map[time.Duration]uint64{0: 10, 10*time.Millisecond - 1: 10, 10 * time.Millisecond: 20, time.Second: 1010}},
		{"on off", Pattern{Rate: pps(1000), On: 100 * time.Millisecond, Off: 900 * time.Millisecond},
			map[time.Duration]uint64{0: 1, 99 * time.Millisecond: 100, 100 * time.Millisecond: 100, 999 * time.Millisecond: 100, time.Second: 101, 2 * time.Second: 201}},
		// From 0+ to 1000/s in 2 s: a triangle of 1000 frames; 1000 a second from then on.
		{"ramp up", Pattern{Rate: pps(1), RampTo: pps(1000), Ramp: 2 * time.Second}, map[time.Duration]uint64{0: 1, 2 * time.Second: 1002, 3 * time.Second: 2002}},
		{"steps", Pattern{Steps: []Step{{pps(1000), 10 * time.Millisecond}, {units.FrameRate{}, 5 * time.Millisecond}, {pps(100), 25 * time.Millisecond}}},
			map[time.Duration]uint64{0: 1, 9 * time.Millisecond: 10, 14 * time.Millisecond: 10, 15 * time.Millisecond: 11, 25 * time.Millisecond: 12, 35 * time.Millisecond: 13, time.Second: 13}},
		{"ramp down", Pattern{Rate: pps(1000), RampTo: pps(500), Ramp: time.Second}, map[time.Duration]uint64{time.Second: 751, 3 * time.Second: 1751}},
	} {
		for at, want := range c.want {
			if got := c.pattern.schedule(0, 1).Due(uint64(at)); got != want {
				t.Errorf("%s: %d due after %v, want %d", c.name, got, at, want)
			}
		}
	}
}

// TestMeanAndSpan: both by hand.
func TestMeanAndSpan(t *testing.T) {
	onOff := Pattern{Rate: pps(1000), On: 50 * time.Millisecond, Off: 950 * time.Millisecond}
	oneBurst := onOff
	oneBurst.Burst = 1000
	for _, c := range []struct {
		name    string
		pattern Pattern
		d       time.Duration
		mean    float64
		n       uint64
		span    time.Duration
	}{
		{"even", Pattern{Rate: pps(1000)}, time.Second, 1000, 1000, 999 * time.Millisecond},
		{"bursts", Pattern{Rate: pps(1000), Burst: 10}, time.Second, 1000, 1000, 990 * time.Millisecond},
		{"on off", onOff, 2 * time.Second, 99 / 1.049, 100, 1049 * time.Millisecond},
		{"one burst", oneBurst, 500 * time.Millisecond, 0, 1000, 0},
		{"steps", Pattern{Steps: []Step{{pps(1000), 10 * time.Millisecond}, {units.FrameRate{}, 5 * time.Millisecond}, {pps(100), 25 * time.Millisecond}}}, 40 * time.Millisecond, 12 / 0.035, 13, 35 * time.Millisecond},
		{"one frame", Pattern{Rate: pps(1000)}, time.Millisecond, 1000, 1, 0},
		{"full speed", Pattern{}, time.Second, 0, 1000, 0},
		{"random", Pattern{Rate: pps(1000), Poisson: true}, time.Second, 1000, 1000, 0},
	} {
		if got := c.pattern.Mean(c.d); math.Abs(got-c.mean) > 1e-9*c.mean {
			t.Errorf("%s: mean %v, want %v", c.name, got, c.mean)
		}
		if got := c.pattern.Span(c.n); got != c.span {
			t.Errorf("%s: span of %d frames %v, want %v", c.name, c.n, got, c.span)
		}
	}
}

// TestPoisson: the gaps of all workers together have the mean and the spread of
// a Poisson process, the same seed gives the same times, another does not.
func TestPoisson(t *testing.T) {
	const rate, seconds = 10_000, 20
	for _, workers := range []int{1, 3} {
		p := Pattern{Rate: pps(rate), Poisson: true, Seed: 42}
		var total uint64
		perMs := make([]float64, seconds*1000)
		for i := range workers {
			s, again := p.schedule(i, workers), p.schedule(i, workers)
			var before uint64
			for ms := range perMs {
				n := s.Due(uint64(ms+1) * 1e6)
				if m := again.Due(uint64(ms+1) * 1e6); m != n {
					t.Fatalf("the same seed gives %d and %d", n, m)
				}
				if at := s.At(n); at <= uint64(ms+1)*1e6 {
					t.Fatalf("the next frame, at %d ns, is due already", at)
				}
				perMs[ms] += float64(n - before)
				before = n
			}
			total += before
		}
		mean := float64(total) / float64(len(perMs))
		var variance float64
		for _, n := range perMs {
			variance += (n - mean) * (n - mean) / float64(len(perMs))
		}
		// The count in a ms has mean and variance 10; of 20,000 ms the mean is
		// within 5 sigma, 0.11, the variance within 5 %.
		if math.Abs(mean-10) > 0.12 || math.Abs(variance-10) > 0.6 {
			t.Errorf("%d workers: frames a ms: mean %.3f, variance %.3f, want 10 and 10", workers, mean, variance)
		}
	}
	a, b := Pattern{Rate: pps(rate), Poisson: true, Seed: 1}.schedule(0, 1), Pattern{Rate: pps(rate), Poisson: true, Seed: 2}.schedule(0, 1)
	if a.At(0) == b.At(0) {
		t.Error("two seeds give the same time")
	}
}
