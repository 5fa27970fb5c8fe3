package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowSummary sorts the values and counts along them.
func slowSummary(values []int64) (s LatencySummary) {
	var kept []int64
	sum := 0.0
	for _, v := range values {
		if v < 0 {
			s.Negative++
			continue
		}
		if v > MaxLatency {
			s.Over++
		}
		kept = append(kept, v)
		sum += float64(v)
	}
	slices.Sort(kept)
	if len(kept) == 0 {
		return s
	}
	// RFC 2330, section 11.3: the least x with F(x) >= p; MaxLatency for those
	// beyond, unless all are further beyond.
	percentile := func(per10000 int) int64 {
		for i, x := range kept {
			if (i+1)*10000 >= per10000*len(kept) {
				return max(kept[0], min(x, MaxLatency))
			}
		}
		panic("p > 1")
	}
	s.Count, s.Min, s.Max, s.Mean = uint64(len(kept)), kept[0], kept[len(kept)-1], sum/float64(len(kept))
	s.P50, s.P90, s.P99, s.P999, s.P9999 = percentile(5000), percentile(9000), percentile(9900), percentile(9990), percentile(9999)
	return s
}

// checkLatency holds got against the slow twin: percentiles within three
// digits and never below the value they stand for, all else exact. The order of
// a sum shows in the last digits of a mean.
func checkLatency(t rapid.TB, got LatencySummary, values []int64) {
	t.Helper()
	want := slowSummary(values)
	for _, p := range []struct {
		name      string
		got, want *int64
	}{
		{"P50", &got.P50, &want.P50}, {"P90", &got.P90, &want.P90}, {"P99", &got.P99, &want.P99},
		{"P999", &got.P999, &want.P999}, {"P9999", &got.P9999, &want.P9999},
	} {
		if *p.got < *p.want || *p.got-*p.want > *p.want/1000 || *p.got > got.Max {
			t.Errorf("%s of %d values: %d, want %d or up to 1/1000 more", p.name, len(values), *p.got, *p.want)
		}
		*p.got = *p.want
	}
	if math.Abs(got.Mean-want.Mean) <= 1e-12*want.Mean {
		got.Mean = want.Mean
	}
	if got != want {
		t.Errorf("of %d values:\n got %+v\nwant %+v", len(values), got, want)
	}
}

func TestLatencyAgainstSorted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name string
		ns   func() int64
	}{
		{"constant", func() int64 { return 123_457 }},
		{"0", func() int64 { return 0 }},
		{"uniform to 5 us", func() int64 { return r.Int64N(5000) }},
		{"uniform to 10 s", func() int64 { return r.Int64N(MaxLatency + 1) }},
		{"log-normal", func() int64 { return int64(50_000 * math.Exp(r.NormFloat64())) }},
		{"two queues", func() int64 { return 20_000 + int64(r.IntN(2))*5_000_000 + r.Int64N(100) }},
		{"a few very late", func() int64 { return 30_000 + 9_000_000_000*int64(r.IntN(1000)/999) }},
		{"some negative", func() int64 { return int64(1e6 * r.NormFloat64()) }},
		{"some over", func() int64 { return r.Int64N(2 * MaxLatency) }},
		{"all over", func() int64 { return MaxLatency + 1 + r.Int64N(MaxLatency) }},
		{"all negative", func() int64 { return -1 - r.Int64N(MaxLatency) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 2, 3, 10, 18, 101, 9999, 10_000, 10_001, 160_000} {
				values := make([]int64, n)
				l := NewLatency()
				for i := range values {
					values[i] = c.ns()
					l.Observe(values[i])
				}
				checkLatency(t, l.Summary(), values)
			}
		})
	}
}

var latencies = rapid.SliceOfN(rapid.OneOf(
	rapid.Int64Range(0, 5000), rapid.Int64Range(-2, MaxLatency+2), rapid.Int64Range(math.MinInt64, math.MaxInt64),
), 0, 300)

// Merged, several are as one that observed everything, in any order, and those
// merged from are as before.
func TestLatencyMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := NewLatency()
		var all []int64
		for range rapid.IntRange(0, 4).Draw(t, "queues") {
			l := NewLatency()
			values := latencies.Draw(t, "values")
			for _, v := range values {
				l.Observe(v)
			}
			before := l.Summary()
			total.Merge(l)
			if after := l.Summary(); after != before {
				t.Errorf("merging changed the other from %+v to %+v", before, after)
			}
			all = append(all, values...)
		}
		for _, v := range latencies.Draw(t, "values after") {
			total.Observe(v)
			all = append(all, v)
		}
		checkLatency(t, total.Summary(), all)
		if total.Count() != total.Summary().Count {
			t.Errorf("Count %d, in the summary %d", total.Count(), total.Summary().Count)
		}
	})
}
