package stats

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// arrival is one frame that came; seq is not wrapped.
type arrival struct {
	seq     uint64
	transit int64
}

// slowVariation keeps everything.
type slowVariation struct {
	ipdv, pdv []int64
	fell      int64 // how far the least delay fell after the early frames
}

// slowDelayVariation goes by the definitions: RFC 4737, section 3.3 (a frame is
// reordered that comes after one with a greater number), RFC 5481, sections 4.1
// and 4.2.
func slowDelayVariation(frames []arrival) (s slowVariation) {
	inOrder := map[uint64]int64{}
	for i, f := range frames {
		if !slices.ContainsFunc(frames[:i], func(before arrival) bool { return before.seq > f.seq }) {
			inOrder[f.seq] = f.transit
		}
	}
	for seq, transit := range inOrder {
		if before, ok := inOrder[seq-1]; ok {
			s.ipdv = append(s.ipdv, slowDifference(transit, before))
		}
	}
	if len(frames) == 0 {
		return s
	}
	byTransit := func(a, b arrival) int { return int(slowDifference(a.transit, b.transit)) }
	least := slices.MinFunc(frames, byTransit).transit
	for _, f := range frames {
		s.pdv = append(s.pdv, slowDifference(f.transit, least))
	}
	s.fell = slices.Min(s.pdv[:min(len(s.pdv), earlyFrames)])
	return s
}

func slowDifference(a, b int64) int64 {
	d := new(big.Int).Sub(big.NewInt(a), big.NewInt(b))
	if d.CmpAbs(big.NewInt(maxIPDV)) > 0 {
		return int64(d.Sign()) * maxIPDV
	}
	return d.Int64()
}

// slowPercentile is RFC 2330, section 11.3.
func slowPercentile(sorted []int64, per1000 int) int64 {
	for i, v := range sorted {
		if (i+1)*1000 >= per1000*len(sorted) {
			return min(v, MaxLatency)
		}
	}
	panic("p > 1")
}

// checkVariation holds a summary against what was kept. merged says that a PDV
// may have been put into a histogram twice.
func checkVariation(t rapid.TB, got DelayVariationSummary, want slowVariation, merged bool) {
	t.Helper()
	if got.IPDV.Count != uint64(len(want.ipdv)) || got.PDV.Count != uint64(len(want.pdv)) {
		t.Fatalf("%d IPDV and %d PDV, want %d and %d", got.IPDV.Count, got.PDV.Count, len(want.ipdv), len(want.pdv))
	}
	if len(want.ipdv) == 0 {
		if got.IPDV != (IPDVSummary{}) {
			t.Errorf("of no pairs: %+v", got.IPDV)
		}
	} else {
		if lo, hi := slices.Min(want.ipdv), slices.Max(want.ipdv); got.IPDV.Min != lo || got.IPDV.Max != hi {
			t.Errorf("IPDV %d..%d, want %d..%d", got.IPDV.Min, got.IPDV.Max, lo, hi)
		}
		var abs []int64
		sum := 0.0
		for _, v := range want.ipdv {
			abs = append(abs, max(v, -v))
			sum += math.Abs(float64(v))
		}
		if mean := sum / float64(len(abs)); math.Abs(got.IPDV.MeanAbs-mean) > 1e-12*mean {
			t.Errorf("mean of |IPDV| %v, want %v", got.IPDV.MeanAbs, mean)
		}
		checkPercentiles(t, "|IPDV|", [4]int64{got.IPDV.P50, got.IPDV.P90, got.IPDV.P99, got.IPDV.P999}, abs,
			func(v int64) int64 { return v / 1000 })
	}
	if len(want.pdv) == 0 {
		if got.PDV != (PDVSummary{}) {
			t.Errorf("of no frames: %+v", got.PDV)
		}
		return
	}
	if greatest := slices.Max(want.pdv); got.PDV.Max != greatest {
		t.Errorf("greatest PDV %d, want %d", got.PDV.Max, greatest)
	}
	checkPercentiles(t, "PDV", [4]int64{got.PDV.P50, got.PDV.P90, got.PDV.P99, got.PDV.P999}, want.pdv,
		func(v int64) int64 {
			within := max(v/1000, want.fell/100)
			if merged {
				within += (v + within) / 1000
			}
			return within
		})
}

// checkPercentiles: never below, and above by no more than within says.
func checkPercentiles(t rapid.TB, name string, got [4]int64, values []int64, within func(int64) int64) {
	t.Helper()
	values = slices.Sorted(slices.Values(values))
	for i, per1000 := range []int{500, 900, 990, 999} {
		want := slowPercentile(values, per1000)
		if got[i] < want || got[i] > want+within(want) || got[i] > values[len(values)-1] {
			t.Errorf("%d/1000 of %d %s: %d, want %d or up to %d more", per1000, len(values), name, got[i], want, within(want))
		}
	}
}

// drawStream is a stream with losses and late frames, its numbers around a wrap
// or not, its transit times of two clocks that disagree or not.
func drawStream(t *rapid.T, most int) []arrival {
	seq := rapid.SampledFrom([]uint64{0, 1, 1<<31 - 20, 1<<32 - 20}).Draw(t, "first number")
	offset := rapid.SampledFrom([]int64{0, 1 << 42, -3600e9, -60_000, 1 << 62, -1 << 62}).Draw(t, "offset")
	transit := rapid.SampledFrom([]*rapid.Generator[int64]{
		rapid.Int64Range(0, 3), rapid.Int64Range(50_000, 51_000), rapid.Int64Range(0, MaxLatency),
		rapid.SampledFrom([]int64{10_000, 20_000, 9_000_000_000}), rapid.Int64Range(0, 3*MaxLatency),
	}).Draw(t, "transits")
	drift := rapid.SampledFrom([]int64{0, 0, -100, 100}).Draw(t, "drift")
	kind := rapid.IntRange(0, 9)
	var frames, late []arrival
	for i := range rapid.IntRange(0, most).Draw(t, "frames") {
		f := arrival{seq, offset + drift*int64(i) + transit.Draw(t, "transit")}
		seq++
		switch kind.Draw(t, "fate") {
		case 0:
			continue
		case 1:
			late = append(late, f)
			continue
		case 2:
			frames = append(frames, late...)
			late = nil
		}
		frames = append(frames, f)
	}
	return append(frames, late...)
}

func observed(frames []arrival) *DelayVariation {
	d := NewDelayVariation()
	for _, f := range frames {
		d.Observe(uint32(f.seq), f.transit)
	}
	return d
}

func TestDelayVariationAgainstKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := drawStream(t, 300)
		want := slowDelayVariation(frames)
		if want.fell > MaxLatency {
			t.Skip("percentiles are told not to hold")
		}
		checkVariation(t, observed(frames).Summary(), want, false)
	})
}

// The example of RFC 5481, section 4.4, in ms.
func TestDelayVariationExampleOfRFC5481(t *testing.T) {
	const ms = 1_000_000
	d := NewDelayVariation()
	var ipdv, pdv []int64
	for i, transit := range []int64{20, 10, 20, 25, 20} {
		d.Observe(uint32(i), transit*ms)
	}
	for _, v := range []int64{-10, 10, 5, -5} {
		ipdv = append(ipdv, v*ms)
	}
	for _, v := range []int64{10, 0, 10, 15, 10} {
		pdv = append(pdv, v*ms)
	}
	checkVariation(t, d.Summary(), slowVariation{ipdv: ipdv, pdv: pdv}, false)
}

// Each row is a stream of frames 0, 1, ... of which the transit time is
// 1000 + 10^number ns: each pair of neighbours has a difference of its own.
func TestDelayVariationPairs(t *testing.T) {
	for _, c := range []struct {
		name  string
		seqs  []uint32
		pairs [][2]int
	}{
		{"in order", []uint32{0, 1, 2, 3}, [][2]int{{0, 1}, {1, 2}, {2, 3}}},
		{"one missing", []uint32{0, 1, 3, 4}, [][2]int{{0, 1}, {3, 4}}},
		{"one late", []uint32{0, 2, 1, 3}, [][2]int{{2, 3}}},
		{"one much later", []uint32{0, 2, 3, 4, 1}, [][2]int{{2, 3}, {3, 4}}},
		{"backwards", []uint32{3, 2, 1, 0}, nil},
		{"a duplicate that was not left out", []uint32{0, 1, 1, 2, 0, 3}, [][2]int{{0, 1}, {1, 2}, {2, 3}}},
		{"one frame", []uint32{1}, nil},
	} {
		transit := func(i int) int64 { return 1000 + int64(math.Pow10(i)) }
		d, sum := NewDelayVariation(), 0.0
		for i, seq := range c.seqs {
			ns := transit(int(seq))
			if slices.Contains(c.seqs[:i], seq) {
				ns *= 3 // a second copy comes later
			}
			d.Observe(seq, ns)
		}
		for _, p := range c.pairs {
			sum += float64(transit(p[1]) - transit(p[0]))
		}
		got := d.Summary()
		if got.IPDV.Count != uint64(len(c.pairs)) || got.IPDV.MeanAbs*float64(len(c.pairs)) != sum {
			t.Errorf("%s: %+v, want %d differences with a sum of %v", c.name, got.IPDV, len(c.pairs), sum)
		}
		if got.PDV.Count != uint64(len(c.seqs)) {
			t.Errorf("%s: PDV of %d frames, want %d", c.name, got.PDV.Count, len(c.seqs))
		}
	}
}

// One slow frame at the start costs no precision.
func TestDelayVariationSlowFirstFrame(t *testing.T) {
	frames := []arrival{{0, 5_000_000_000}}
	for i := range uint64(1000) {
		frames = append(frames, arrival{i + 1, 50_000 + int64(i%10)})
	}
	if got := observed(frames).Summary().PDV; got.P50 != 5 || got.P90 != 9 || got.P99 != 9 {
		t.Errorf("of 0..9 ns over the least: %+v", got)
	}
}

// Two clocks apart by any constant show the variation of one clock.
func TestDelayVariationOfDifferentClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		same, apart := NewDelayVariation(), NewDelayVariation()
		offset := rapid.Int64Range(-1<<62, 1<<62).Draw(t, "offset")
		for i, ns := range rapid.SliceOfN(rapid.Int64Range(0, MaxLatency), 0, 200).Draw(t, "transits") {
			same.Observe(uint32(i), ns)
			apart.Observe(uint32(i), ns+offset)
		}
		if same.Summary() != apart.Summary() {
			t.Errorf("%+v, with an offset %+v", same.Summary(), apart.Summary())
		}
	})
}

// A clock that is set during the run spoils percentiles, not counts and ends.
func TestDelayVariationClockSet(t *testing.T) {
	const hour = 3_600_000_000_000
	for _, step := range []int64{hour, -hour, math.MaxInt64, math.MinInt64} {
		d := NewDelayVariation()
		for i := range uint32(200) {
			d.Observe(i, int64(i/100)*step)
		}
		got := d.Summary()
		size := slowDifference(max(step, 0), min(step, 0))
		if got.PDV.Count != 200 || got.PDV.Max != size || got.PDV.P999 != MaxLatency {
			t.Errorf("set by %d: %+v", step, got.PDV)
		}
		if got.IPDV.Count != 199 || got.IPDV.Min != slowDifference(min(step, 0), 0) || got.IPDV.Max != slowDifference(max(step, 0), 0) || got.IPDV.P99 != 0 {
			t.Errorf("set by %d: %+v", step, got.IPDV)
		}
	}
}

// A total has each stream's values, in whatever order and grouping they are
// merged, and those merged from are as before.
func TestDelayVariationMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, part := NewDelayVariation(), NewDelayVariation()
		if rapid.Bool().Draw(t, "a stream for the total") {
			total = nil
		}
		var want slowVariation
		for range rapid.IntRange(1, 4).Draw(t, "streams") {
			frames := drawStream(t, 150)
			slow := slowDelayVariation(frames)
			if slow.fell > MaxLatency {
				t.Skip("percentiles are told not to hold")
			}
			want.ipdv = append(want.ipdv, slow.ipdv...)
			want.pdv = append(want.pdv, slow.pdv...)
			want.fell = max(want.fell, slow.fell)
			d := observed(frames)
			if total == nil {
				total = d
				continue
			}
			before := d.Summary()
			rapid.SampledFrom([]*DelayVariation{total, part}).Draw(t, "into").Merge(d)
			if after := d.Summary(); after != before {
				t.Errorf("merging changed the other from %+v to %+v", before, after)
			}
		}
		total.Merge(part)
		checkVariation(t, total.Summary(), want, true)
	})
}

func TestDelayVariationCosts(t *testing.T) {
	d := NewDelayVariation()
	seq := uint32(0)
	if n := testing.AllocsPerRun(1000, func() {
		d.Observe(seq, int64(seq)*-1000)
		seq++
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
	if size := d.ipdv.ByteSize() + d.above.ByteSize() + d.below.ByteSize(); size > 500_000 {
		t.Errorf("%d octets a stream", size)
	} else {
		t.Logf("%d octets a stream", size)
	}
}

// Against BenchmarkLatencyObserve, which is one histogram record.
func BenchmarkDelayVariationObserve(b *testing.B) {
	for _, c := range []struct {
		name string
		ns   func(i int64) int64
	}{
		{"near", func(i int64) int64 { return 50_000 + i&1023 }},
		{"spread", func(i int64) int64 { return int64(uint64(i) * 0x9e3779b97f4a7c15 >> 31) }},
	} {
		b.Run("values="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			d := NewDelayVariation()
			i := int64(0)
			for b.Loop() {
				d.Observe(uint32(i), c.ns(i))
				i++
			}
		})
	}
}
