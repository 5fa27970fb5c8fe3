package stats

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// path is two clocks and the two ways between them, ns.
type path struct {
	local, remote int64   // where the clocks stand at time 0
	drift         float64 // of the remote clock, ppm
	there, back   float64 // least delays
	queue         float64 // mean of the exponential delay on top
	loss, stall   float64 // of all; a stall is up to 50 ms
	turn          float64 // most that the far end takes

	stepAt                float64 // when a clock is set
	localStep, remoteStep int64   // by how much
}

// stamps of one round trip.
type stamps struct {
	t1, t2, t3, t4 int64
	there, back    float64 // what it took
}

// run sends a frame each interval, and has the round trips in the order in which
// they came back.
func (p path) run(seed uint64, frames int, interval float64) []stamps {
	r := rand.New(rand.NewPCG(seed, 1))
	delay := func(least float64) float64 {
		d := least + p.queue*r.ExpFloat64()
		if r.Float64() < p.stall {
			d += 50e6 * r.Float64()
		}
		return d
	}
	local := func(t float64) int64 {
		if p.localStep != 0 && t >= p.stepAt {
			return p.local + int64(math.Floor(t)) + p.localStep
		}
		return p.local + int64(math.Floor(t))
	}
	remote := func(t float64) int64 {
		at := p.remote + int64(math.Floor(t+p.drift*1e-6*t))
		if p.remoteStep != 0 && t >= p.stepAt {
			return at + p.remoteStep
		}
		return at
	}
	type arrival struct {
		at float64
		stamps
	}
	var all []arrival
	for i := range frames {
		sent := float64(i) * interval
		there, back := delay(p.there), delay(p.back)
		returned := sent + there + p.turn*r.Float64()
		if r.Float64() < p.loss {
			continue
		}
		all = append(all, arrival{returned + back, stamps{
			local(sent), remote(sent + there), remote(returned), local(returned + back), there, back}})
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	trips := make([]stamps, len(all))
	for i, a := range all {
		trips[i] = a.stamps
	}
	return trips
}

func offsetOf(trips []stamps) *ClockOffset {
	c := new(ClockOffset)
	for _, s := range trips {
		c.Observe(s.t1, s.t2, s.t3, s.t4)
	}
	return c
}

// worst is the greatest error of an estimate between its First and Last: both are
// straight lines, so that it is at an end.
func (p path) worst(o Offset) float64 {
	off := func(at int64) float64 {
		return math.Abs(float64(o.At(at)-(p.remote-p.local)) - p.drift*1e-6*float64(at-p.local))
	}
	return max(off(o.First), off(o.Last))
}

// Where both ways have the same least delay, the estimate is far better than the
// bound.
func TestClockOffsetSymmetric(t *testing.T) {
	for _, c := range []struct {
		frames   int
		interval float64 // ns
		within   float64 // of the least delay
	}{
		{100, 1e9, 0.02}, {3600 * 10, 1e9, 0.001}, // 1 frame/s, up to ten hours
		{1000, 1e6, 0.005}, {300_000, 1e5, 0.001},
		{1_000_000, 1e3, 0.001}, // 1 M frames/s
	} {
		p := path{local: 1 << 60, remote: -1 << 50, drift: 37, there: 50e3, back: 50e3, turn: 1000, queue: 20e3, loss: 0.01, stall: 0.001}
		o, err := offsetOf(p.run(1, c.frames, c.interval)).Estimate()
		if err != nil {
			t.Fatal(err)
		}
		if worst := p.worst(o); worst > c.within*p.there || worst > float64(o.Bound) {
			t.Errorf("%d frames, one each %g ns: off by %.0f ns: %+v", c.frames, c.interval, worst, o)
		}
		// No bound can be less than half of the shortest round trip, and a good one is little more.
		if o.Bound < 50e3 || o.Bound > 65e3 {
			t.Errorf("%d frames, one each %g ns: bound %d ns", c.frames, c.interval, o.Bound)
		}
	}
}

// One round trip that is far faster than all others says nothing of the drift: the
// slow ones do, and they leave the same room on both sides.
func TestClockOffsetOneFast(t *testing.T) {
	var c ClockOffset
	for i := range int64(201) {
		at, delay := i*100_000_000, int64(1_000_000)
		if i == 100 {
			delay = 50_000
		}
		c.Observe(at, at+at/1_000_000*40+delay, at+at/1_000_000*40+delay, at+2*delay)
	}
	// 2 x 1 ms of room in 20 s, either way: some 100 ppm.
	if o, err := c.Estimate(); err != nil || math.Abs(o.Drift-40) > 1 || o.DriftBound < 80 || o.DriftBound > 120 {
		t.Errorf("%+v, %v", o, err)
	}
}

func drawPath(t *rapid.T) (p path, frames int, interval float64) {
	delay := rapid.OneOf(rapid.SampledFrom([]float64{0, 1, 5e3, 50e3}), rapid.Float64Range(0, 200e6))
	clock := rapid.OneOf(rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1_700_000_000e9, math.MaxInt64 - 2e14}),
		rapid.Int64Range(math.MinInt64, math.MaxInt64-2e14))
	p = path{
		local: clock.Draw(t, "local"), remote: clock.Draw(t, "remote"),
		drift: rapid.OneOf(rapid.SampledFrom([]float64{0, -1000, -500, 0.01, 500, 1000}),
			rapid.Float64Range(-MaxDrift, MaxDrift)).Draw(t, "drift"),
		there: delay.Draw(t, "there"), back: delay.Draw(t, "back"),
		queue: rapid.SampledFrom([]float64{0, 100, 20e3, 5e6}).Draw(t, "queue"),
		loss:  rapid.SampledFrom([]float64{0, 0.01, 0.9}).Draw(t, "loss"),
		stall: rapid.SampledFrom([]float64{0, 0.001, 0.5}).Draw(t, "stall"),
		turn:  rapid.SampledFrom([]float64{0, 1000, 1e9}).Draw(t, "turn"),
	}
	return p, rapid.IntRange(1, 3000).Draw(t, "frames"), rapid.SampledFrom([]float64{1, 1e3, 1e6, 1e9, 30e9}).Draw(t, "interval")
}

// However the two ways differ, the truth is within the bounds.
func TestClockOffsetBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, frames, interval := drawPath(t)
		trips := p.run(rapid.Uint64().Draw(t, "seed"), frames, interval)
		o, err := offsetOf(trips).Estimate()
		if len(trips) == 0 {
			if !errors.Is(err, ErrNoRoundTrips) {
				t.Fatalf("no round trips: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if worst := p.worst(o); worst > float64(o.Bound) {
			t.Errorf("off by %.1f: %+v", worst, o)
		}
		if math.Abs(o.Drift-p.drift) > o.DriftBound*(1+1e-9)+1e-9 {
			t.Errorf("drift %v: %+v", p.drift, o)
		}
		for _, s := range trips {
			there, back := o.OneWay(s.t1, s.t2, s.t3, s.t4)
			for _, d := range []float64{float64(there) - s.there, float64(back) - s.back} {
				if math.Abs(d) > float64(o.Bound)+2+MaxDrift*1e-6*(s.there+s.back) {
					t.Fatalf("one way off by %.0f ns: %+v: %+v", d, s, o)
				}
			}
		}
	})
}

func TestClockOffsetShortRuns(t *testing.T) {
	var c ClockOffset
	if _, err := c.Estimate(); !errors.Is(err, ErrNoRoundTrips) {
		t.Errorf("of nothing: %v", err)
	}
	// RFC 5905, section 8: theta = ((t2-t1) + (t3-t4)) / 2, delta = (t4-t1) - (t3-t2).
	c.Observe(1_000_000, 5_040_000, 5_050_000, 1_070_000)
	o, err := c.Estimate()
	if err != nil || o.At(1_035_000) != 4_010_000 || o.Drift != 0 || o.DriftBound != MaxDrift || o.Bound < 30_000 || o.Bound > 30_100 {
		t.Errorf("one round trip: %+v, %v", o, err)
	}
	if there, back := o.OneWay(1_000_000, 5_040_000, 5_050_000, 1_070_000); there != 30_000 || back != 30_000 {
		t.Errorf("its ways: %d and %d", there, back)
	}
	// A second one that is too near to say anything of the drift.
	c.Observe(2_000_000, 6_040_300, 6_050_300, 2_070_000)
	if o, err := c.Estimate(); err != nil || o.Drift != 0 || o.DriftBound != MaxDrift {
		t.Errorf("two near each other: %+v, %v", o, err)
	}
	// And one that is far enough: 300 ppm, +-60 us in 10 s.
	c.Observe(10_001_000_000, 10_008_040_000, 10_008_050_000, 10_001_070_000)
	if o, err := c.Estimate(); err != nil || math.Abs(o.Drift-300) > 0.1 || o.DriftBound < 5.9 || o.DriftBound > 6.2 {
		t.Errorf("far: %+v, %v", o, err)
	}
}

// ratLine is a line of exact numbers.
type ratLine struct{ height, slope *big.Rat }

func (l ratLine) at(x *big.Rat) *big.Rat {
	return new(big.Rat).Add(l.height, new(big.Rat).Mul(l.slope, x))
}

type ratPoint struct{ x, y *big.Rat }

// slowBand has each line that goes through two points, or one with the slope of
// MaxDrift, and has no point on the wrong side: the corners of all lines there
// are. widest is the greatest width of a straight band between the points.
func slowBand(trips []stamps) (corners []ratLine, widest *big.Rat, width func(slope *big.Rat) (over, under *big.Rat)) {
	var above, below []ratPoint
	for _, s := range trips {
		above = append(above, ratPoint{big.NewRat(s.t1, 1), big.NewRat(s.t2-s.t1+1, 1)})
		below = append(below, ratPoint{big.NewRat(s.t4, 1), big.NewRat(s.t3-s.t4-1, 1)})
	}
	steepest := big.NewRat(MaxDrift, 1_000_000)
	through := func(p ratPoint, slope *big.Rat) ratLine {
		return ratLine{new(big.Rat).Sub(p.y, new(big.Rat).Mul(slope, p.x)), slope}
	}
	slopes := []*big.Rat{steepest, new(big.Rat).Neg(steepest)}
	all := slices.Concat(above, below)
	var lines []ratLine
	for i, p := range all {
		lines = append(lines, through(p, slopes[0]), through(p, slopes[1]))
		for _, q := range all[:i] {
			if p.x.Cmp(q.x) != 0 {
				slope := new(big.Rat).Quo(new(big.Rat).Sub(p.y, q.y), new(big.Rat).Sub(p.x, q.x))
				if new(big.Rat).Abs(slope).Cmp(steepest) <= 0 {
					lines, slopes = append(lines, through(p, slope)), append(slopes, slope)
				}
			}
		}
	}
	width = func(slope *big.Rat) (over, under *big.Rat) {
		for _, p := range above {
			if h := through(p, slope).height; over == nil || h.Cmp(over) < 0 {
				over = h
			}
		}
		for _, p := range below {
			if h := through(p, slope).height; under == nil || h.Cmp(under) > 0 {
				under = h
			}
		}
		return over, under
	}
	for _, slope := range slopes {
		over, under := width(slope)
		if w := new(big.Rat).Sub(over, under); widest == nil || w.Cmp(widest) > 0 {
			widest = w
		}
	}
	for _, l := range lines {
		right := func(p ratPoint, wrong int) bool { return l.at(p.x).Cmp(p.y) != wrong }
		if !slices.ContainsFunc(above, func(p ratPoint) bool { return !right(p, 1) }) &&
			!slices.ContainsFunc(below, func(p ratPoint) bool { return !right(p, -1) }) {
			corners = append(corners, l)
		}
	}
	return corners, widest, width
}

func float(r *big.Rat) float64 {
	f, _ := r.Float64()
	return f
}

// The bounds are those of all lines that fit, and no wider; where none fits there
// is an error; and the estimate is the middle of the widest band.
func TestClockOffsetAgainstAllPairs(t *testing.T) {
	fitted, empty := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		// Each round trip is in a stretch of its own: they are at least 1/20 of the run apart.
		interval := rapid.SampledFrom([]int64{100, 1e6, 1e9}).Draw(t, "interval")
		slope := rapid.Int64Range(-1200, 1200).Draw(t, "drift")
		noise := rapid.Int64Range(-3, rapid.SampledFrom([]int64{4, 300, 100_000}).Draw(t, "delays"))
		if rapid.Bool().Draw(t, "late ones only") {
			noise = rapid.Int64Range(0, rapid.SampledFrom([]int64{4, 300, 100_000}).Draw(t, "late delays"))
		}
		var trips []stamps
		at := int64(0)
		for range rapid.IntRange(1, 8).Draw(t, "trips") {
			there, back := noise.Draw(t, "there"), noise.Draw(t, "back")
			t4 := at + max(0, there+back)
			trips = append(trips, stamps{t1: at, t2: at + at/1e6*slope + there, t3: t4 + t4/1e6*slope - back, t4: t4})
			at += interval + rapid.Int64Range(0, interval).Draw(t, "pause")
		}
		slices.SortStableFunc(trips, func(a, b stamps) int { return cmp.Compare(a.t4, b.t4) })

		o, err := offsetOf(trips).Estimate()
		corners, widest, width := slowBand(trips)
		if w := float(widest); math.Abs(w) < 1e-3 {
			return // on the edge, either is right
		}
		if widest.Sign() < 0 {
			empty++
			var step *StepError
			if !errors.As(err, &step) || len(corners) > 0 {
				t.Fatalf("nothing fits: %+v, %v", o, err)
			}
			return
		}
		fitted++
		if err != nil || len(corners) == 0 {
			t.Fatalf("%d corners: %v", len(corners), err)
		}
		bound, drift := 0., 0.
		for _, l := range corners {
			for _, x := range []int64{o.First, o.Last} {
				bound = max(bound, math.Abs(float(l.at(big.NewRat(x, 1)))-float64(o.At(x))))
			}
			drift = max(drift, math.Abs(float(l.slope)*1e6-o.Drift))
		}
		if b := float64(o.Bound); b < bound || b > bound+3 {
			t.Errorf("bound %d, want %.2f", o.Bound, bound)
		}
		if math.Abs(drift-o.DriftBound) > 1e-6 {
			t.Errorf("bound of drift %v, want %v", o.DriftBound, drift)
		}
		best := new(big.Rat).SetFloat64(o.Drift)
		best.Mul(best, big.NewRat(1, 1_000_000))
		over, under := width(best)
		middle := new(big.Rat).Add(over, under)
		middle = ratLine{middle.Mul(middle, big.NewRat(1, 2)), best}.at(big.NewRat(o.Reference, 1))
		if math.Abs(float(middle)-float64(o.Ns)) > 0.51 {
			t.Errorf("offset %d, and the middle of the band is %.2f", o.Ns, float(middle))
		}
		if w := float(over) - float(under); o.DriftBound != MaxDrift && w < nearlyWidest*float(widest)-1e-3 {
			t.Errorf("a band of %.2f, and the widest is %.2f", w, float(widest))
		}
	})
	if fitted == 0 || empty == 0 {
		t.Errorf("%d fitted, %d did not: the test shows nothing", fitted, empty)
	}
}

// Of each stretch the fastest round trip is kept, and there are 128 stretches or
// more in a run, whatever its length and order.
func TestClockOffsetKeepsFastest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c ClockOffset
		scale := rapid.SampledFrom([]int64{1, 300, 1e5, 1e12, math.MaxInt64>>1 - 50}).Draw(t, "scale")
		t1 := rapid.Int64Range(-scale, scale)
		fastest := map[int64]int64{}
		var xs, delays []int64
		base := int64(0)
		for i := range rapid.IntRange(1, 400).Draw(t, "trips") {
			at, delay := t1.Draw(t, "t1"), rapid.Int64Range(0, 50).Draw(t, "delay")
			if i == 0 {
				base = at
			}
			c.Observe(at, at, at, at+delay)
			xs, delays = append(xs, at-base), append(delays, delay)
		}
		if c.from != slices.Min(xs) || c.to < slices.Max(xs) {
			t.Errorf("from %d to %d, want %d to %d or later", c.from, c.to, slices.Min(xs), slices.Max(xs))
		}
		for i, x := range xs {
			k := x >> c.shift
			if d, ok := fastest[k]; !ok || delays[i] < d {
				fastest[k] = delays[i]
			}
		}
		for i := range c.fastest {
			s := &c.fastest[i]
			d, ok := fastest[int64(i)-stretches/2]
			if ok != s.any || ok && d != s.delay() {
				t.Fatalf("stretch %d: %+v, want %d, %v", i, s, d, ok)
			}
			delete(fastest, int64(i)-stretches/2)
		}
		if len(fastest) > 0 {
			t.Errorf("outside: %v", fastest)
		}
		if half := c.shift - 1; c.shift > 0 && slices.Max(xs)>>half < 256 && slices.Min(xs)>>half >= -256 {
			t.Errorf("stretches of 2^%d ns are longer than need be: up to %d ns", c.shift, slices.Max(xs))
		}
	})
}

// A clock that is set within the run is an error that says when, whichever clock
// and direction, and however close to an end.
func TestClockOffsetStep(t *testing.T) {
	for _, c := range []struct {
		name          string
		local, remote int64
		at            float64 // of the run
		within        float64 // of the run
	}{
		{"remote ahead 1 ms", 0, 1e6, 0.5, 0.3},
		{"remote back 1 ms", 0, -1e6, 0.5, 0.3},
		{"remote ahead an hour", 0, 3600e9, 0.3, 0.02},
		{"remote back an hour", 0, -3600e9, 0.7, 0.02},
		{"local ahead 1 s", 1e9, 0, 0.5, 0.05},
		{"local ahead an hour", 3600e9, 0, 0.5, -1},
		{"local back 1 s", -1e9, 0, 0.5, -1},
		{"local back an hour", -3600e9, 0, 0.5, -1},
		{"remote right at the end", 0, 1e9, 0.9999, 0.02},
		{"remote right after the start", 0, 1e9, 0.0001, 0.02},
	} {
		t.Run(c.name, func(t *testing.T) {
			const frames, interval = 100_000, 1e6 // 100 s
			p := path{local: 1 << 60, remote: -1 << 50, drift: -80, there: 50e3, back: 20e3, queue: 20e3, turn: 1000, stall: 0.001,
				stepAt: c.at * frames * interval, localStep: c.local, remoteStep: c.remote}
			o, err := offsetOf(p.run(2, frames, interval)).Estimate()
			var step *StepError
			if !errors.As(err, &step) {
				t.Fatalf("%+v, %v", o, err)
			}
			// The step as the local clock has it, before or after it was set.
			before := p.local + int64(p.stepAt)
			after := before + p.localStep
			if max(before, after) < step.From || min(before, after) > step.To {
				t.Errorf("from %d to %d, and it was at %d to %d", step.From, step.To, before, after)
			}
			if got := float64(step.To-step.From) / (frames * interval); c.within > 0 && got > c.within {
				t.Errorf("told to %.4f of the run only", got)
			}
			if !strings.Contains(err.Error(), "a clock was set") {
				t.Error(err)
			}
		})
	}
}

// A rate that changes is no steady drift either.
func TestClockOffsetChangeOfRate(t *testing.T) {
	p := path{drift: 20, there: 50e3, back: 50e3, queue: 20e3}
	trips := p.run(1, 10_000, 1e6)
	for i := range trips {
		if s := &trips[i]; s.t1 > 5e9 {
			s.t2 += (s.t1 - 5e9) / 1000 * 200 / 1000
			s.t3 += (s.t1 - 5e9) / 1000 * 200 / 1000
		}
	}
	_, err := offsetOf(trips).Estimate()
	var step *StepError
	if !errors.As(err, &step) || step.From > 5e9 || step.To < 5e9 {
		t.Error(err)
	}
}

// Stamps of any kind neither panic nor hang.
func FuzzClockOffset(f *testing.F) {
	word := func(words ...int64) (b []byte) {
		for _, w := range words {
			b = binary.BigEndian.AppendUint64(b, uint64(w))
		}
		return b
	}
	f.Add(word(0, 10, 20, 30, 1000, 1010, 1020, 1030))
	f.Add(word(math.MinInt64, math.MaxInt64, math.MinInt64, math.MaxInt64, math.MaxInt64, math.MinInt64, math.MaxInt64, math.MinInt64))
	f.Add(word(0, 0, 0, 0, math.MinInt64, 0, 0, math.MinInt64))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c ClockOffset
		n := 0
		for ; len(data) >= 32; data = data[32:] {
			var w [4]int64
			for i := range w {
				w[i] = int64(binary.BigEndian.Uint64(data[8*i:]))
			}
			c.Observe(w[0], w[1], w[2], w[3])
			n++
		}
		o, err := c.Estimate()
		var step *StepError
		switch {
		case n == 0 && !errors.Is(err, ErrNoRoundTrips), n > 0 && err != nil && !errors.As(err, &step):
			t.Errorf("of %d: %v", n, err)
		case err == nil && (o.Bound <= 0 || !(math.Abs(o.Drift) <= MaxDrift) || !(o.DriftBound >= 0 && o.DriftBound <= 2*MaxDrift)):
			t.Errorf("%+v", o)
		}
	})
}

func TestClockOffsetAllocatesNothing(t *testing.T) {
	var c ClockOffset
	at := int64(0)
	if n := testing.AllocsPerRun(10_000, func() {
		c.Observe(at, at+5000, at+6000, at+10_000)
		at += 1_000_000
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Every round trip of trips=faster is the fastest so far of its stretch.
func BenchmarkClockOffsetObserve(b *testing.B) {
	for _, c := range []struct {
		name  string
		delay func(i int64) int64
	}{
		{"random", func(i int64) int64 { return 50_000 + int64(uint64(i)*0x9e3779b97f4a7c15>>50) }},
		{"faster", func(i int64) int64 { return 1<<40 - i }},
	} {
		b.Run("trips="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			var o ClockOffset
			i := int64(0)
			for b.Loop() {
				at, d := i*1000, c.delay(i)
				o.Observe(at, at+d, at+d+500, at+2*d)
				i++
			}
		})
	}
}

func BenchmarkClockOffsetEstimate(b *testing.B) {
	p := path{drift: 20, there: 50e3, back: 50e3, queue: 20e3}
	for _, c := range []struct {
		name string
		step int64
	}{{"none", 0}, {"middle", 1e6}} {
		b.Run("step="+c.name, func(b *testing.B) {
			p.remoteStep, p.stepAt = c.step, 5e9
			o := offsetOf(p.run(1, 10_000, 1e6))
			for b.Loop() {
				_, _ = o.Estimate()
			}
		})
	}
}
