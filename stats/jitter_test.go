package stats

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// slowJitter is the first form of RFC 3550, appendix A.8, in floating point, and
// the differences kept.
func slowJitter(transits []int64) (s JitterSummary) {
	sum := new(big.Int)
	for i := 1; i < len(transits); i++ {
		d := new(big.Int).Sub(big.NewInt(transits[i]), big.NewInt(transits[i-1]))
		d.Abs(d)
		if d.Cmp(big.NewInt(maxIPDV)) > 0 {
			d.SetInt64(maxIPDV)
		}
		sum.Add(sum, d)
		s.RFC3550 += (1. / 16.) * (float64(d.Int64()) - s.RFC3550)
		s.Max = max(s.Max, d.Int64())
		s.Count++
	}
	if s.Count > 0 {
		s.Mean, _ = new(big.Rat).SetFrac(sum, new(big.Int).SetUint64(s.Count)).Float64()
	}
	return s
}

// checkJitter: each step of the integer form rounds by at most half a 16th of a
// ns, and forgets 1/16 of the error before it: never more than 0.5 ns in all.
func checkJitter(t rapid.TB, transits []int64) {
	t.Helper()
	var j Jitter
	for _, ns := range transits {
		j.Observe(ns)
	}
	got, want := j.Summary(), slowJitter(transits)
	if math.Abs(got.RFC3550-want.RFC3550) > 0.5+1e-12*want.RFC3550 || math.Abs(got.Mean-want.Mean) > 1e-12*want.Mean ||
		got.Max != want.Max || got.Count != want.Count || got.RFC3550 < 0 {
		t.Errorf("of %d transit times:\n got %+v\nwant %+v", len(transits), got, want)
	}
}

func TestJitterAgainstRFC3550(t *testing.T) {
	transit := rapid.SampledFrom([]*rapid.Generator[int64]{
		rapid.Int64Range(0, 3), rapid.Int64Range(50_000, 51_000), rapid.Int64Range(-MaxLatency, MaxLatency),
		rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, math.MaxInt64}),
	})
	rapid.Check(t, func(t *rapid.T) {
		checkJitter(t, rapid.SliceOfN(transit.Draw(t, "kind"), 0, 500).Draw(t, "transits"))
	})
}

// Where |D| does not change, J comes to it, from above as from below.
func TestJitterSettles(t *testing.T) {
	for d := range int64(50) {
		for _, before := range []int64{0, 1000} {
			var transits []int64
			for i := range int64(1000) {
				step := d
				if i < 200 {
					step = before
				}
				transits = append(transits, i%2*step)
			}
			checkJitter(t, transits)
			var j Jitter
			for _, ns := range transits {
				j.Observe(ns)
			}
			if got := j.Summary().RFC3550; math.Abs(got-float64(d)) > 0.5 {
				t.Errorf("|D| = %d, after %d: J = %v", d, before, got)
			}
		}
	}
}

func FuzzJitter(f *testing.F) {
	f.Add(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1<<63), 1<<63-1))
	f.Fuzz(func(t *testing.T, data []byte) {
		var transits []int64
		for ; len(data) >= 8; data = data[8:] {
			transits = append(transits, int64(binary.BigEndian.Uint64(data)))
		}
		checkJitter(t, transits)
	})
}

// Two clocks apart by hours show the jitter of one clock.
func TestJitterOfDifferentClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var same, apart Jitter
		offset := rapid.Int64Range(-1<<60, 1<<60).Draw(t, "offset")
		for _, ns := range rapid.SliceOf(rapid.Int64Range(0, MaxLatency)).Draw(t, "transits") {
			same.Observe(ns)
			apart.Observe(ns + offset)
		}
		if same.Summary() != apart.Summary() {
			t.Errorf("%+v, with an offset %+v", same.Summary(), apart.Summary())
		}
	})
}
