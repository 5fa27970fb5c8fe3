package gen

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pktgen/units"
)

// twinDue is Due by exact fractions, slow and obvious: of the frames k with
// k mod workers = index, those with k/rate <= elapsed.
func twinDue(num, den uint64, index, workers int, elapsed uint64) uint64 {
	total := new(big.Int).SetUint64(elapsed)
	total.Mul(total, new(big.Int).SetUint64(num)).Div(total, new(big.Int).SetUint64(den)).Add(total, big.NewInt(1))
	n := total.Uint64() // frames 0..n-1 are due
	if n <= uint64(index) {
		return 0
	}
	return (n - uint64(index) + uint64(workers) - 1) / uint64(workers)
}

func TestPacerAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Up to 100 frames a ns, so that a day's frames fit 64 bits in the twin.
		den := rapid.Uint64Range(1, 1e12).Draw(t, "den")
		num := rapid.Uint64Range(1, 100*den).Draw(t, "num")
		workers := rapid.IntRange(1, 8).Draw(t, "workers")
		index := rapid.IntRange(0, workers-1).Draw(t, "index")
		elapsed := rapid.Uint64Range(0, 24*3600*1e9).Draw(t, "elapsed")
		const start = 12345
		p := newPacer(Pattern{Rate: units.FrameRate{Num: num, Den: den}}, index, workers, 0)
		p.Start(start)
		want := twinDue(num, den, index, workers, elapsed)
		got := p.Behind(start + int64(elapsed))
		if got != want {
			t.Fatalf("due %d, want %d", got, want)
		}
		// The next frame is due exactly when Due says: not a ns before.
		if want > 0 {
			p.Sent(int(min(want, math.MaxInt32)))
		}
		if want > math.MaxInt32 {
			return
		}
		n, next := p.Due(start+int64(elapsed), 64)
		if n != 0 {
			t.Fatalf("%d more due at once", n)
		}
		if next == math.MaxInt64 {
			return
		}
		if n, _ := p.Due(next, 64); n == 0 {
			t.Fatalf("not due at the time told")
		}
		if n, _ := p.Due(next-1, 64); n != 0 {
			t.Fatalf("due before the time told")
		}
	})
}

// TestPacerHasNoDrift: after an hour at odd rates the workers together are at
// rate x time to the frame, however the time was cut up.
func TestPacerHasNoDrift(t *testing.T) {
	for _, rate := range []string{"1", "3", "7.7pps", "999.983kpps", "1.488095Mpps", "10%", "1Gbps"} {
		r, err := units.ParseRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.PPS(64, 1e9)
		if err != nil {
			t.Fatal(err)
		}
		const hour = 3600 * 1_000_000_000
		total := Pattern{Rate: f}.Frames(hour)
		var sent uint64
		const workers = 3
		for i := range workers {
			p := newPacer(Pattern{Rate: f}, i, workers, total)
			p.Start(0)
			for now := int64(0); now < hour; now += 977_777_777 { // the clock is read now and then
				n, _ := p.Due(now, math.MaxInt)
				p.Sent(n)
			}
			n, _ := p.Due(hour, math.MaxInt)
			p.Sent(n)
			if !p.Done() {
				t.Errorf("%s: worker %d is not done after the hour", rate, i)
			}
			sent += p.sent
		}
		exact := f.PerSecond() * 3600
		if sent != total || math.Abs(float64(total)-exact) > 1 {
			t.Errorf("%s: %d sent in an hour of %d, rate x time is %.3f", rate, sent, total, exact)
		}
	}
}

// TestShares: whatever the number of workers, their shares add up to the count.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(1, 1e12).Draw(t, "total")
		workers := rapid.IntRange(1, 64).Draw(t, "workers")
		var sum uint64
		for i := range workers {
			p := newPacer(Pattern{}, i, workers, total)
			sum += p.limit
		}
		if sum != total {
			t.Fatalf("%d workers send %d of %d", workers, sum, total)
		}
	})
}

func TestFrames(t *testing.T) {
	for _, c := range []struct {
		num, den uint64
		ns       time.Duration
		want     uint64
	}{
		{100_000, 1e9, 5e9, 500_000},
		{1, 1e9, 1, 1}, // the first frame is due at once
		{1, 1e9, 1e9, 1},
		{1, 1e9, 1e9 + 1, 2},
		{3, 1e9, 1e9, 3},
		{0, 0, 1e9, 0}, // no limit
		{1e9, 1, math.MaxInt64, 0},
	} {
		if got := (Pattern{Rate: units.FrameRate{Num: c.num, Den: c.den}}).Frames(c.ns); got != c.want {
			t.Errorf("%d/%d for %d ns: %d frames, want %d", c.num, c.den, c.ns, got, c.want)
		}
	}
}

// TestPacerUnlimited: without a rate all that is left is due.
func TestPacerUnlimited(t *testing.T) {
	p := newPacer(Pattern{}, 0, 1, 100)
	p.Start(1000)
	for want := 100; want > 0; want -= 64 {
		n, _ := p.Due(0, 64)
		if n != min(want, 64) {
			t.Fatalf("%d due, want %d", n, min(want, 64))
		}
		p.Sent(n)
	}
	if n, next := p.Due(1<<60, 64); n != 0 || next != math.MaxInt64 || !p.Done() {
		t.Fatalf("%d due after the last, next at %d", n, next)
	}
}

func BenchmarkPacerDue(b *testing.B) {
	p := newPacer(Pattern{Rate: units.FrameRate{Num: 1_000_000, Den: 1e9}}, 0, 1, 0)
	for i := 0; b.Loop(); i++ {
		n, _ := p.Due(int64(i)*1000, 64)
		p.Sent(n)
	}
}
