package stats

import (
	"math"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// MaxLatency is the greatest latency that the histogram resolves, ns: 10 s.
const MaxLatency = 10_000_000_000

// histogramDigits is the number of significant digits kept: a percentile is at
// most 1 in 1000 above the value it stands for, and never below it.
const histogramDigits = 3

// Latency holds latencies from 1 ns to 10 s in a histogram of three significant
// digits (some 200 KB), with exact count, least, greatest and mean. Owned by
// one goroutine.
type Latency struct {
	hist     *hdr.Histogram
	count    uint64
	min, max int64
	sum      float64 // exact to 2^53 ns, 104 days of latency; then to 1 in 10^15
	negative uint64
	over     uint64
}

// LatencySummary is what there is to say of a Latency, in ns. A percentile is
// the least value that at least that part of all do not exceed (RFC 2330,
// section 11.3).
type LatencySummary struct {
	Count                      uint64 // latencies in the figures below
	Min, Max                   int64  // exact
	Mean                       float64
	P50, P90, P99, P999, P9999 int64
	Negative                   uint64 // observed below 0: the clocks disagree. In no other figure
	Over                       uint64 // of Count, above MaxLatency: percentiles take them as MaxLatency
}

// NewLatency makes an empty one.
func NewLatency() *Latency {
	return &Latency{hist: hdr.New(1, MaxLatency, histogramDigits), min: math.MaxInt64}
}

// Observe takes one latency, ns.
func (l *Latency) Observe(ns int64) {
	if ns < 0 {
		l.negative++
		return
	}
	l.count++
	l.sum += float64(ns)
	l.min = min(l.min, ns)
	l.max = max(l.max, ns)
	if ns > MaxLatency {
		l.over++
		ns = MaxLatency
	}
	_ = l.hist.RecordValue(ns) // its only error is a value out of range
}

// ObserveMany takes n latencies of one value, ns, 0 or more.
func (l *Latency) ObserveMany(ns int64, n uint64) {
	l.count += n
	l.sum += float64(ns) * float64(n)
	l.min, l.max = min(l.min, ns), max(l.max, ns)
	_ = l.hist.RecordValues(min(ns, MaxLatency), int64(n))
}

// Known says what is known exactly of latencies that were counted elsewhere, and
// observed here by their buckets: sum, least and greatest, in ns, and how many were
// below 0, and above MaxLatency.
func (l *Latency) Known(sum uint64, least, most int64, negative, over uint64) {
	l.sum, l.min, l.max, l.negative, l.over = float64(sum), least, most, negative, over
}

// Merge adds all that o holds.
func (l *Latency) Merge(o *Latency) {
	l.hist.Merge(o.hist)
	l.count += o.count
	l.sum += o.sum
	l.min = min(l.min, o.min)
	l.max = max(l.max, o.max)
	l.negative += o.negative
	l.over += o.over
}

// Reset forgets all of it.
func (l *Latency) Reset() {
	l.hist.Reset()
	*l = Latency{hist: l.hist, min: math.MaxInt64}
}

// Count is the number of latencies, negative ones not counted.
func (l *Latency) Count() uint64 { return l.count }

// Summary is zero but for Negative where nothing was observed.
func (l *Latency) Summary() LatencySummary {
	s := LatencySummary{Count: l.count, Negative: l.negative, Over: l.over}
	if l.count == 0 {
		return s
	}
	s.Min, s.Max, s.Mean = l.min, l.max, l.sum/float64(l.count)
	s.P50, s.P90, s.P99 = l.percentile(5000), l.percentile(9000), l.percentile(9900)
	s.P999, s.P9999 = l.percentile(9990), l.percentile(9999)
	return s
}

// percentile is the latency at that many ten-thousandths of all.
func (l *Latency) percentile(per10000 uint64) int64 {
	// The histogram would round the rank to the nearest, so that P90 of 18 values
	// were the 16th (89 %). Given the rank itself as a share, it takes that one.
	rank := (l.count*per10000 + 9999) / 10000
	v := l.hist.ValueAtPercentile(100 * float64(rank) / float64(l.count))
	return max(l.min, min(l.max, v)) // its buckets end beyond what was seen
}
