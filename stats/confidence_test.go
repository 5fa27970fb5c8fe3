package stats

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLossBoundPublished(t *testing.T) {
	for _, c := range []struct {
		lost, sent    uint64
		level, lo, hi float64
		within        float64
		source        string
	}{
		{0, 1000, 0.95, 0, 0.0029912495, 1e-10, "1 - 0.05^(1/1000)"},
		{0, 3_000_000, 0.95, 0, 1e-6, 2e-9, "rule of three"},
		{1000, 1000, 0.95, 1 - 0.0029912495, 1, 1e-10, "0.05^(1/1000)"},
		{10, 100, 0.95, 0.0490047, 0.1762226, 5e-8, "R: binom.test(10, 100)"},
		{90, 100, 0.95, 0.8237774, 0.9509953, 5e-8, "the same of the others"},
		{1, 10, 0.95, 0.0025286, 0.4450161, 5e-8, "R: binom.test(1, 10)"},
		{5, 10, 0.95, 0.1870860, 0.8129140, 5e-8, "R: binom.test(5, 10)"},
		{1, 1, 0.95, 0.05, 1, 1e-15, "0.05"},
		{130, 1673, 0.99, 0.0614, 0.0963, 5e-3, "normal approximation, +- 2.576 x 0.0065"}, // once without an end: terms of 5e-324
		{0, 0, 0.95, 0, 1, 0, "nothing sent"},
		{7, 5, 0.95, math.Pow(0.05, 0.2), 1, 1e-15, "more than sent, as all"},
	} {
		lo, hi := LossBound(c.lost, c.sent, c.level)
		if math.Abs(lo-c.lo) > c.within || math.Abs(hi-c.hi) > c.within {
			t.Errorf("%d of %d at %v: %.9f..%.9f, want %.9f..%.9f (%s)", c.lost, c.sent, c.level, lo, hi, c.lo, c.hi, c.source)
		}
	}
	for _, level := range []float64{0, 1, -1, 2, math.NaN(), math.Inf(1)} {
		if lo, hi := LossBound(1, 2, level); !math.IsNaN(lo) || !math.IsNaN(hi) {
			t.Errorf("at a level of %v: %v..%v", level, lo, hi)
		}
	}
}

const twinBits = 400

// atMost is the probability of k or fewer of n, each with probability p: the
// terms of the binomial distribution, added up.
func atMost(k, n uint64, p *big.Float) *big.Float {
	number := func(v uint64) *big.Float { return new(big.Float).SetPrec(twinBits).SetUint64(v) }
	rest := number(1)
	rest.Sub(rest, p)
	odds := new(big.Float).Quo(p, rest)
	term, square := number(1), rest
	for left := n; left > 0; left /= 2 { // (1-p)^n
		if left%2 == 1 {
			term.Mul(term, square)
		}
		square = new(big.Float).Mul(square, square)
	}
	sum := number(0)
	for i := uint64(0); ; i++ {
		sum.Add(sum, term)
		if i == k {
			return sum
		}
		term.Mul(term, odds).Mul(term, number(n-i)).Quo(term, number(i+1))
	}
}

// By the definition: at the upper bound, so few are lost with a probability of
// (1-level)/2, and at the lower bound so many. A bound that is off by 1 in 10^8
// of its distance from lost/sent is on the wrong side.
func TestLossBoundAgainstBinomial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lost := rapid.Uint64Range(1, 300).Draw(t, "lost")
		sent := lost + rapid.OneOf(rapid.Uint64Range(1, 300), rapid.Uint64Range(1, 1<<63-lost)).Draw(t, "received")
		level := rapid.SampledFrom([]float64{0.1, 0.5, 0.9, 0.95, 0.99, 0.9999}).Draw(t, "level")
		lo, hi := LossBound(lost, sent, level)

		tail := big.NewFloat((1 - level) / 2)
		ratio := new(big.Float).SetPrec(twinBits).Quo(
			new(big.Float).SetPrec(twinBits).SetUint64(lost), new(big.Float).SetPrec(twinBits).SetUint64(sent))
		// moved is a bound moved away from the ratio by 1 in 10^8, and 2 in 10^16 for
		// its own rounding.
		moved := func(bound, by float64) *big.Float {
			b := new(big.Float).SetPrec(twinBits).SetFloat64(bound)
			d := new(big.Float).Sub(b, ratio)
			d.Mul(d, big.NewFloat(by*1e-8))
			return b.Add(b, d)
		}
		fewAt := func(p *big.Float) int { return atMost(lost, sent, p).Cmp(tail) }
		manyAt := func(p *big.Float) int {
			few := atMost(lost-1, sent, p)
			return few.Sub(new(big.Float).SetInt64(1), few).Cmp(tail)
		}
		if fewAt(moved(hi, -1)) <= 0 || fewAt(moved(hi, 1)) >= 0 {
			t.Errorf("%d of %d at %v: not up to %v", lost, sent, level, hi)
		}
		if manyAt(moved(lo, -1)) <= 0 || manyAt(moved(lo, 1)) >= 0 {
			t.Errorf("%d of %d at %v: not from %v", lost, sent, level, lo)
		}
	})
}

// Whatever the numbers, the ratio seen is inside, more of everything narrows the
// bound, and a higher level widens it.
func TestLossBoundOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.OneOf(rapid.Uint64Range(1, 1000), rapid.Uint64(), rapid.Just(uint64(1<<63)), rapid.Just(uint64(math.MaxUint64))).Draw(t, "sent")
		lost := rapid.OneOf(rapid.Uint64Range(0, min(sent, 1000)), rapid.Uint64Range(0, sent)).Draw(t, "lost")
		if sent == 0 {
			t.Skip("no ratio")
		}
		ratio := float64(lost) / float64(sent)
		lo, hi := LossBound(lost, sent, 0.95)
		if !(0 <= lo && lo <= ratio && ratio <= hi && hi <= 1) {
			t.Fatalf("%d of %d: %v..%v does not hold %v", lost, sent, lo, hi, ratio)
		}
		if lo99, hi99 := LossBound(lost, sent, 0.99); lo99 > lo || hi99 < hi {
			t.Errorf("%d of %d: %v..%v at 95 %%, %v..%v at 99 %%", lost, sent, lo, hi, lo99, hi99)
		}
		if half, quarter := sent/2, sent/4; lost < quarter {
			if _, more := LossBound(lost, half, 0.95); more < hi {
				t.Errorf("%d of %d up to %v, of %d up to %v", lost, half, more, sent, hi)
			}
		}
	})
}

// Of what probability p is lost, the bound holds p about as often as it says or
// more often: never in doubt by more than chance allows (5 standard deviations).
func TestLossBoundHolds(t *testing.T) {
	const runs, sent = 4000, 200
	r := rand.New(rand.NewPCG(5, 6))
	for _, p := range []float64{0.002, 0.02, 0.3, 0.97} {
		held := 0
		for range runs {
			lost := uint64(0)
			for range sent {
				if r.Float64() < p {
					lost++
				}
			}
			if lo, hi := LossBound(lost, sent, 0.9); lo <= p && p <= hi {
				held++
			}
		}
		if float64(held) < 0.9*runs-5*math.Sqrt(runs*0.9*0.1) {
			t.Errorf("at p = %v held %d of %d times", p, held, runs)
		}
	}
}

// Where the series ends and the approximation begins, they agree.
func TestBetaQuantileJoins(t *testing.T) {
	for _, b := range []float64{seriesLimit, 2 * seriesLimit, 1e12, 1 << 63} {
		for _, p := range []float64{0.0005, 0.025, 0.25, 0.75, 0.975, 0.9995} {
			mean := seriesLimit / (seriesLimit + b)
			series, _ := betaQuantile(seriesLimit, b, p)
			normal, y := betaQuantileNormal(seriesLimit, b, p)
			if off := math.Abs(series-normal) / math.Abs(series-mean); off > 1e-8 || math.Abs(normal+y-1) > 1e-15 {
				t.Errorf("a %v, b %v, p %v: %v by series, %v without: off by %v of the distance", float64(seriesLimit), b, p, series, normal, off)
			}
		}
	}
}

func TestMeanIntervalTable(t *testing.T) {
	for _, c := range []struct {
		freedom  int
		level, t float64
	}{ // the usual tables of Student's t
		{1, 0.95, 12.706}, {2, 0.95, 4.303}, {3, 0.95, 3.182}, {4, 0.95, 2.776}, {5, 0.95, 2.571}, {10, 0.95, 2.228},
		{30, 0.95, 2.042}, {120, 0.95, 1.980}, {100_000, 0.95, 1.960},
		{1, 0.99, 63.657}, {5, 0.99, 4.032}, {10, 0.99, 3.169}, {30, 0.99, 2.750}, {120, 0.99, 2.617},
		{1, 0.9, 6.314}, {10, 0.9, 1.812}, {120, 0.9, 1.658}, {1, 0.999, 636.619}, {10, 0.999, 4.587}, {1, 0.5, 1.000},
	} {
		// All but two are 40; those two are 1 to either side.
		values := slices.Repeat([]float64{40}, c.freedom+1)
		values[0], values[c.freedom] = 39, 41
		n := float64(len(values))
		mean, half := MeanInterval(values, c.level)
		if got := half / math.Sqrt(2/(n-1)/n); math.Abs(mean-40) > 1e-9 || math.Abs(got-c.t) > 0.0005001 {
			t.Errorf("%d degrees of freedom at %v: mean %v, t %.4f, want 40 and %.3f", c.freedom, c.level, mean, got, c.t)
		}
	}
}

// With one and two degrees of freedom t has a closed form.
func TestStudentTClosedForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.Float64Range(0.001, 0.999999).Draw(t, "level")
		for freedom, want := range map[float64]float64{1: math.Tan(math.Pi / 2 * level), 2: level * math.Sqrt(2/((1-level)*(1+level)))} {
			if got := studentT(freedom, level); math.Abs(got-want) > 1e-9*want {
				t.Errorf("%v degrees of freedom at %v: %v, want %v", freedom, level, got, want)
			}
		}
	})
}

func TestMeanIntervalOfFew(t *testing.T) {
	if mean, half := MeanInterval(nil, 0.95); mean != 0 || !math.IsInf(half, 1) {
		t.Errorf("of nothing: %v +- %v", mean, half)
	}
	if mean, half := MeanInterval([]float64{7}, 0.95); mean != 7 || !math.IsInf(half, 1) {
		t.Errorf("of one: %v +- %v", mean, half)
	}
	if mean, half := MeanInterval([]float64{7, 7, 7}, 0.95); mean != 7 || half != 0 {
		t.Errorf("of three the same: %v +- %v", mean, half)
	}
	if mean, half := MeanInterval([]float64{7, 8}, 1); mean != 7.5 || !math.IsNaN(half) {
		t.Errorf("at a level of 1: %v +- %v", mean, half)
	}
}

func TestOutliers(t *testing.T) {
	sum := 0.
	for range 10 {
		sum += 0.1
	}
	for _, c := range []struct {
		name   string
		values []float64
		want   []int
	}{
		{"nothing", nil, nil},
		{"one", []float64{5}, nil},
		{"two", []float64{5, 500}, nil},
		// By mean and standard deviation neither is found: 1.96 of them at most.
		{"two that hide each other", []float64{2.1, 2.6, 2.4, 2.5, 2.3, 2.1, 2.3, 2.6, 8.2, 8.3}, []int{8, 9}},
		{"low and high", []float64{1, 100, 101, 99, 102, 98, 200}, []int{0, 6}},
		// Median 10, MAD 1: 3.5 x 1.4826 = 5.19 away.
		{"just inside", []float64{9, 11, 10, 9, 11, 10, 15.18}, nil},
		{"just outside", []float64{9, 11, 10, 9, 11, 10, 15.2}, []int{6}},
		{"all the same", []float64{7, 7, 7, 7}, nil},
		{"all 0", make([]float64, 20), nil},
		{"MAD 0, one far", []float64{7, 7, 7, 7, 7, 7, 7, 7, 7, 1}, []int{9}},
		{"MAD 0, near half differ", []float64{7, 7, 7, 7, 7, 7, 6, 8, 6, 8}, nil},
		{"MAD 0, rounding", []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, sum}, nil},
	} {
		if got := Outliers(c.values); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
