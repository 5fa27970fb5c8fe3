package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// series makes n rates around what level says, with normal noise of 0.5 %.
func series(n int, level func(i int) float64) []float64 {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	rates := make([]float64, n)
	for i := range rates {
		rates[i] = level(i) * (1 + 0.005*r.NormFloat64())
	}
	return rates
}

// dipping is 10, and 6 in each of the intervals at.
func dipping(at ...int) func(int) float64 {
	return func(i int) float64 {
		if slices.Contains(at, i) {
			return 6
		}
		return 10
	}
}

func TestSteady(t *testing.T) {
	step := func(at int, before, after float64) func(int) float64 {
		return func(i int) float64 {
			if i < at {
				return before
			}
			return after
		}
	}
	every := func(n, first, period int) (at []int) {
		for i := first; i < n; i += period {
			at = append(at, i)
		}
		return at
	}
	type want struct {
		drift, step bool
		change      float64 // to 0.02
		changeAt    int     // to within
		within      int
		dips        []int
		period      float64
	}
	for _, c := range []struct {
		name  string
		n     int
		level func(int) float64
		want  want
	}{
		{"steady", 60, step(0, 0, 10), want{}},
		{"steady, the least number", 8, step(0, 0, 10), want{}},
		{"10 falls to 3.4", 60, step(40, 10, 3.4), want{drift: true, step: true, change: -0.66, changeAt: 40}},
		{"falls early", 60, step(5, 10, 3.4), want{drift: true, step: true, change: -0.393, changeAt: 5}},
		{"falls late", 60, step(55, 10, 3.4), want{drift: true, step: true, change: -0.22, changeAt: 55}},
		{"falls, the least number", 8, step(4, 10, 3.4), want{drift: true, step: true, change: -0.66, changeAt: 4}},
		{"rises", 60, step(20, 5, 10), want{drift: true, step: true, change: 1, changeAt: 20}},
		{"begins after nothing", 60, step(20, 0, 10), want{drift: true, step: true, change: 1, changeAt: 20}},
		{"ends in nothing", 60, step(20, 10, 0), want{drift: true, step: true, change: -1, changeAt: 20}},
		{"falls by less than the tolerance", 60, step(30, 10, 9.7), want{change: -0.03}},
		{"slow slope", 60, func(i int) float64 { return 10 - 3*float64(i)/60 }, want{drift: true, change: -0.233, changeAt: 30, within: 5}},
		{"slow slope of less than the tolerance", 60, func(i int) float64 { return 10 - 0.4*float64(i)/60 }, want{change: -0.03}},
		{"slope, the least number", 8, func(i int) float64 { return 10 - float64(i)/8 }, want{drift: true, change: -0.08, changeAt: 4, within: 1}},
		{"slope with a dip", 60, func(i int) float64 {
			return (10 - 3*float64(i)/60) * dipping(12)(i) / 10
		}, want{drift: true, change: -0.233, changeAt: 30, within: 5, dips: []int{12}}},
		{"one dip", 60, dipping(17), want{dips: []int{17}}},
		{"one dip of three intervals", 60, dipping(50, 51, 52), want{change: -0.08, dips: []int{50, 51, 52}}},
		{"two long dips, late", 60, dipping(46, 47, 48, 52, 53, 54), want{change: -0.16, dips: []int{46, 47, 48, 52, 53, 54}}},
		{"one dip, the least number", 8, dipping(3), want{dips: []int{3}}},
		{"a dip before the fall and one after", 60, func(i int) float64 {
			return step(40, 10, 3.4)(i) * dipping(20, 50)(i) / 10
		}, want{drift: true, step: true, change: -0.66, changeAt: 40, dips: []int{20, 50}}},
		{"falls within an interval", 60, func(i int) float64 {
			if i == 40 {
				return 6.7
			}
			return step(40, 10, 3.4)(i)
		}, want{drift: true, step: true, change: -0.66, changeAt: 40, within: 1}},
		{"a dip every ten", 60, dipping(every(60, 4, 10)...), want{dips: every(60, 4, 10), period: 10}},
		{"a dip every ten, one left out", 80, dipping(4, 14, 24, 44, 54, 64, 74), want{dips: []int{4, 14, 24, 44, 54, 64, 74}, period: 10}},
		{"a dip every seven and a half", 60, dipping(3, 10, 18, 25, 33, 40, 48, 55), want{dips: []int{3, 10, 18, 25, 33, 40, 48, 55}, period: 52. / 7}},
		{"each dip of two intervals", 60, dipping(5, 6, 17, 18, 29, 30, 41, 42, 53, 54), want{dips: []int{5, 6, 17, 18, 29, 30, 41, 42, 53, 54}, period: 12}},
		{"dips without a period", 60, dipping(4, 9, 25, 31, 52), want{dips: []int{4, 9, 25, 31, 52}}},
		{"three dips could be chance", 60, dipping(10, 20, 30), want{dips: []int{10, 20, 30}}},
		{"nothing at all", 60, step(0, 0, 0), want{}},
		{"odd first", 60, dipping(0), want{}},
		{"odd last", 60, dipping(59), want{}},
		{"odd ends, the least number", 8, dipping(0, 7), want{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rates := series(c.n, c.level)
			got := Steady(rates, 0.05)
			if !got.Known || got.Drift != c.want.drift || got.Step != c.want.step ||
				math.Abs(got.Change-c.want.change) > 0.02 ||
				got.ChangeAt < c.want.changeAt-c.want.within || got.ChangeAt > c.want.changeAt+c.want.within ||
				!slices.Equal(got.Dips, c.want.dips) || got.Period != c.want.period {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
			if steady := !c.want.drift && len(c.want.dips) == 0; got.Steady() != steady {
				t.Errorf("Steady %v, want %v", got.Steady(), steady)
			}
			if middle := median(rates); got.Median != middle {
				t.Errorf("median %v, want %v", got.Median, middle)
			}
		})
	}
}

func TestSteadyCannotTell(t *testing.T) {
	for n := range SteadyIntervals {
		got := Steady(series(n, dipping(1, 5)), 0.05)
		if got.Known || got.Steady() || got.Drift || got.Dips != nil {
			t.Errorf("of %d intervals: %+v", n, got)
		}
	}
}

// One first or last interval that is whatever it is changes no verdict.
func TestSteadyOddEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(SteadyIntervals, 100).Draw(t, "intervals")
		at := rapid.IntRange(n/4+1, n-n/4-1).Draw(t, "fall")
		after := rapid.SampledFrom([]float64{10, 3.4, 8, 15}).Draw(t, "after")
		rates := series(n, func(i int) float64 {
			if i < at {
				return 10
			}
			return after
		})
		before := Steady(rates, 0.05)
		rates[rapid.SampledFrom([]int{0, n - 1}).Draw(t, "end")] = rapid.Float64Range(0, 100).Draw(t, "odd")
		got := Steady(rates, 0.05)
		if before.Drift != (after != 10) || got.Drift != before.Drift || got.ChangeAt != before.ChangeAt ||
			got.Step != before.Step || len(got.Dips) > 0 || len(before.Dips) > 0 {
			t.Errorf("%+v, with an odd end %+v", before, got)
		}
	})
}

// The unit of the rates does not matter; backwards, what fell rises.
func TestSteadySymmetries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(SteadyIntervals, 60).Draw(t, "intervals")
		rates := rapid.SliceOfN(rapid.Float64Range(1, 20), n, n).Draw(t, "rates")
		got := Steady(rates, 0.05)
		scaled := slices.Clone(rates)
		for i := range scaled {
			scaled[i] *= 1 << 30 // exact
		}
		big := Steady(scaled, 0.05)
		if big.Drift != got.Drift || big.Change != got.Change || big.ChangeAt != got.ChangeAt ||
			!slices.Equal(big.Dips, got.Dips) || big.Period != got.Period {
			t.Errorf("%+v, times 2^30 %+v", got, big)
		}
		slices.Reverse(rates)
		back := Steady(rates, 0.05)
		if math.Abs(back.First-got.Last) > 1e-12*got.Last || math.Abs(back.Last-got.First) > 1e-12*got.First {
			t.Errorf("%+v, backwards %+v", got, back)
		}
	})
}

// The split and the line have the least sums of squares, found by trying all and
// adding up.
func TestFitAgainstSums(t *testing.T) {
	squares := func(values []float64, at func(i int) float64) (sum float64) {
		for i, v := range values {
			sum += (v - at(i)) * (v - at(i))
		}
		return sum
	}
	around := func(values []float64) float64 {
		return squares(values, func(int) float64 { return average(values) })
	}
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 10), SteadyIntervals, 40).Draw(t, "values")
		least := math.Inf(1)
		for k := 2; k <= len(values)-2; k++ {
			least = min(least, around(values[:k])+around(values[k:]))
		}
		slope, middle := line(values)
		height := func(slope, middle float64) func(int) float64 {
			return func(i int) float64 { return middle + slope*(float64(i)-float64(len(values)-1)/2) }
		}
		straight := squares(values, height(slope, middle))
		for _, d := range [][2]float64{{1e-3, 0}, {-1e-3, 0}, {0, 1e-3}, {0, -1e-3}} {
			if squares(values, height(slope+d[0], middle+d[1])) < straight {
				t.Fatalf("a better line than %v, %v by %v", slope, middle, d)
			}
		}
		at, step, taken, left := fit(values)
		if at < 2 || at > len(values)-2 || around(values[:at])+around(values[at:]) > least+1e-9 {
			t.Errorf("split at %d: %v, the least is %v", at, around(values[:at])+around(values[at:]), least)
		}
		if math.Abs(least-straight) > 1e-9 && step != (least < straight) {
			t.Errorf("step %v: two levels leave %v, a line %v", step, least, straight)
		}
		better, n := min(least, straight), float64(len(values))
		if math.Abs(left*(n-2)-better) > 1e-9 || math.Abs(taken-(around(values)-better)) > 1e-9 {
			t.Errorf("takes %v and leaves %v a value, want %v and %v", taken, left, around(values)-better, better/(n-2))
		}
	})
}

// The noise is that around a slope or a step, some far values included.
func TestScatter(t *testing.T) {
	const deviation = 0.3
	r := rand.New(rand.NewPCG(8, 9))
	values := make([]float64, 10_000)
	for i := range values {
		values[i] = 2*float64(i) + deviation*r.NormFloat64()
		if i > 4000 {
			values[i] += 500
		}
		if i%100 == 0 {
			values[i] = 0
		}
	}
	if got := math.Sqrt(scatter(values)); math.Abs(got-deviation) > 0.05*deviation {
		t.Errorf("standard deviation %v, want %v", got, deviation)
	}
}

// Any period is found, whatever part of an interval it ends in, if there are
// dips enough; also with dips left out.
func TestPeriod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.Float64Range(5, 50).Draw(t, "period")
		first := rapid.Float64Range(1, 20).Draw(t, "first")
		dips := rapid.IntRange(8, 30).Draw(t, "dips")
		missing := rapid.IntRange(0, 2*dips).Draw(t, "missing") // or none
		var starts []int
		for k := range dips {
			if k == 0 || k != missing {
				starts = append(starts, int(first+p*float64(k)))
			}
		}
		// The ends are off by less than an interval; the last dip may be the one left out.
		if got := period(starts); math.Abs(got-p) > 1/float64(dips-2) {
			t.Errorf("%v: period %v, want %v", starts, got, p)
		}
	})
}

// Dips that are far from their places are no row, however many.
func TestPeriodOfUneven(t *testing.T) {
	var starts []int
	for i := range 20 {
		starts = append(starts, 20*i+i%2*4)
	}
	if got := period(starts); got != 0 {
		t.Errorf("%v: period %v", starts, got)
	}
}

// Dips at random look periodic less than once in a hundred, and noise as great as
// the tolerance drifts less than once in twenty (and 5 standard deviations of
// that).
func TestSteadyByChance(t *testing.T) {
	const runs = 3000
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{8, 20, 60, 300} {
		periodic, drifts := 0, 0
		for range runs {
			rates := make([]float64, n)
			var starts []int
			for i := range rates {
				rates[i] = 10 * (1 + 0.05*r.NormFloat64())
				if r.IntN(10) == 0 && (len(starts) == 0 || starts[len(starts)-1] < i-1) {
					starts = append(starts, i)
				}
			}
			if Steady(rates, 0.05).Drift {
				drifts++
			}
			if period(starts) != 0 {
				periodic++
			}
		}
		limit := func(chance float64) int { return int(chance*runs + 5*math.Sqrt(chance*runs)) }
		if periodic > limit(chanceLimit) || drifts > limit(0.05) {
			t.Errorf("of %d runs of %d intervals %d periodic, %d drifting", runs, n, periodic, drifts)
		}
	}
}
