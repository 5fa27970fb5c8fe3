package stats

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSampling: frames are taken in runs, as many as asked for, and Overlaps
// agrees with asking for each.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		pps    float64
		frames uint64
		least  float64 // a second
		most   float64
	}{
		{1, 0, 1, 1}, {1000, 0, 1000, 1000}, {1600, 0, 1600, 1600},
		{100_000, 0, 700, 1600}, {1e6, 0, 700, 1600}, {1e6, 3.6e9, 5, 19},
	} {
		s := NewSampling(c.pps, c.frames)
		n := 0
		for seq := range uint64(1 << 26) {
			if s.Has(seq) {
				n++
			}
		}
		if rate := float64(n) / (1 << 26) * c.pps; rate < c.least || rate > c.most {
			t.Errorf("%v frames/s: %v samples a second, want %v to %v", c.pps, rate, c.least, c.most)
		}
		if c.frames > 0 && float64(n)/(1<<26)*float64(c.frames) > MaxSamples {
			t.Errorf("%d frames: too many samples", c.frames)
		}
	}
	if (Sampling{}).Any() || (Sampling{}).Has(0) || (Sampling{}).Overlaps(0, 100) {
		t.Error("the zero value samples")
	}
	rapid.Check(t, func(t *rapid.T) {
		s := NewSampling(rapid.Float64Range(0, 1e5).Draw(t, "pps"), 0)
		seq, n := rapid.Uint64Range(0, 1e6).Draw(t, "seq"), rapid.Uint64Range(1, 300).Draw(t, "n")
		want := false
		for i := range n {
			want = want || s.Has(seq+i)
		}
		if got := s.Overlaps(seq, n); got != want {
			t.Errorf("Overlaps %v, want %v", got, want)
		}
	})
}
