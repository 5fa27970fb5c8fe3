package stats

import (
	"math"
	"slices"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// DelayVariation is how the delay of one stream varies (RFC 3393), in the two
// forms of RFC 5481: IPDV, from one frame to the next (section 4.1), and PDV,
// over the least delay (section 4.2). It is of differences of transit times
// only, so that it holds for two clocks that disagree by a constant; where they
// drift apart, the drift is part of PDV. Some 440 KB. Owned by one goroutine.
//
// The least delay is known at the end only, and a histogram cannot be moved
// without a loss. So its values are relative to the least of the first 64
// frames: from there up with three significant digits, and from there down, for
// the least may fall further, with two.
type DelayVariation struct {
	lastSeq uint32 // of the frame furthest ahead
	last    int64  // its transit time

	ipdv             *hdr.Histogram // |IPDV|
	ipdvs            uint64
	ipdvMin, ipdvMax int64
	ipdvSum          float64 // of |IPDV|; exact to 2^53 ns, as that of Latency

	frames       uint64
	early        [earlyFrames]int64 // transit times of the first frames, until reference is known
	earlies      int
	reference    int64          // a transit time: the zero of what follows
	above, below *hdr.Histogram // above or at the reference; below it, as distances
	least, most  int64          // of all transit times, exact
}

// earlyFrames are enough that one slow frame at the start (a cold cache, an
// address asked for) does not become the reference, from which all others are
// measured at its distance.
const earlyFrames = 64

// belowDigits are fewer than above: below, little is expected.
const belowDigits = 2

// DelayVariationSummary is in ns. A percentile is as in LatencySummary; it
// takes what is above MaxLatency as MaxLatency.
//
// Where the least delay falls by more than MaxLatency after the first 64 frames,
// a clock was set: then the percentiles of PDV do not hold.
type DelayVariationSummary struct {
	IPDV IPDVSummary
	PDV  PDVSummary
}

// IPDVSummary is of D(i) - D(i-1). Percentiles are of the absolute values, at
// most 1 in 1000 above what they stand for, and never below.
type IPDVSummary struct {
	Count               uint64 // pairs of frames
	Min, Max            int64  // exact, with sign
	MeanAbs             float64
	P50, P90, P99, P999 int64
}

// PDVSummary is of D(i) - D(min), and never negative. Percentiles are never
// below what they stand for, and above it by at most 1 in 1000 of it or 1 in 100
// of how far the least delay fell after the first 64 frames, whichever is more.
// Of several streams merged, another 1 in 1000.
type PDVSummary struct {
	Count               uint64 // frames
	P50, P90, P99, P999 int64
	Max                 int64 // exact
}

// NewDelayVariation makes an empty one.
func NewDelayVariation() *DelayVariation {
	return &DelayVariation{
		ipdv:    hdr.New(1, MaxLatency, histogramDigits),
		ipdvMin: math.MaxInt64, ipdvMax: math.MinInt64,
		above: hdr.New(1, MaxLatency, histogramDigits),
		below: hdr.New(1, MaxLatency, belowDigits),
		least: math.MaxInt64, most: math.MinInt64,
	}
}

// Observe takes the next frame's sequence number and its transit time
// (received - sent), ns. Duplicates are to be left out by the caller, whose
// SeqWindow knows them. A frame has an IPDV if it comes right after the one
// before it in sequence: none where a frame is missing or comes late.
func (d *DelayVariation) Observe(seq uint32, transitNs int64) {
	if ahead := int32(seq - d.lastSeq); ahead > 0 || d.frames == 0 {
		if ahead == 1 && d.frames > 0 {
			d.observeIPDV(difference(transitNs, d.last))
		}
		d.lastSeq, d.last = seq, transitNs
	}
	d.frames++
	d.least = min(d.least, transitNs)
	d.most = max(d.most, transitNs)
	if d.earlies < earlyFrames {
		d.observeEarly(transitNs)
		return
	}
	d.record(transitNs)
}

func (d *DelayVariation) observeIPDV(v int64) {
	d.ipdvs++
	d.ipdvMin = min(d.ipdvMin, v)
	d.ipdvMax = max(d.ipdvMax, v)
	v = max(v, -v)
	d.ipdvSum += float64(v)
	_ = d.ipdv.RecordValue(min(v, MaxLatency)) // its only error is a value out of range
}

// observeEarly keeps the first transit times.
func (d *DelayVariation) observeEarly(transitNs int64) {
	d.early[d.earlies] = transitNs
	d.earlies++
	if d.earlies == earlyFrames {
		d.settle()
	}
}

// settle takes the least of the first transit times for the reference, and puts
// them into the histograms.
func (d *DelayVariation) settle() {
	d.reference = d.least
	for _, t := range d.early {
		d.record(t)
	}
}

func (d *DelayVariation) record(transitNs int64) {
	if v := difference(transitNs, d.reference); v >= 0 {
		_ = d.above.RecordValue(min(v, MaxLatency))
	} else {
		_ = d.below.RecordValue(min(-v, MaxLatency))
	}
}

// difference is a - b, cut to maxIPDV either way.
func difference(a, b int64) int64 {
	v := a - b
	if (a^b)&(a^v) < 0 { // it does not fit: the signs differ, and v's is that of b
		v = math.MaxInt64 ^ a>>63 // the end on a's side
	}
	return max(-maxIPDV, min(v, maxIPDV))
}

// Merge adds another stream's variation: each stream's frames over the least
// delay of that stream, so that streams of different paths and clocks go
// together. o stays as it is, and is not d. d is a total from then on, and takes no frames.
func (d *DelayVariation) Merge(o *DelayVariation) {
	d.ipdv.Merge(o.ipdv)
	d.ipdvs += o.ipdvs
	d.ipdvMin = min(d.ipdvMin, o.ipdvMin)
	d.ipdvMax = max(d.ipdvMax, o.ipdvMax)
	d.ipdvSum += o.ipdvSum

	greatest := max(d.greatest(), o.greatest())
	if d.earlies < earlyFrames || d.least < d.reference || d.reference != 0 { // no total yet
		own := d.pdv()
		d.above.Reset()
		d.below.Reset()
		d.earlies, d.reference, d.least = earlyFrames, 0, 0
		d.add(own)
	}
	d.add(o.pdv())
	d.frames += o.frames
	d.most = greatest
}

// add takes PDVs as transit times over a reference of 0, the least there is.
func (d *DelayVariation) add(pdv []bar) {
	for _, b := range pdv {
		_ = d.above.RecordValues(b.value, b.count)
	}
}

// greatest is the greatest PDV.
func (d *DelayVariation) greatest() int64 {
	if d.frames == 0 {
		return 0
	}
	return difference(d.most, d.least)
}

// bar is a number of values that are about the same, and none of them above it.
type bar struct{ value, count int64 }

// pdv is all PDVs, from the least to the greatest, up to MaxLatency.
func (d *DelayVariation) pdv() []bar {
	var bars []bar
	add := func(value, count int64) {
		if count > 0 {
			bars = append(bars, bar{min(value, d.greatest(), MaxLatency), count})
		}
	}
	if d.earlies < earlyFrames {
		for _, t := range slices.Sorted(slices.Values(d.early[:d.earlies])) {
			add(difference(t, d.least), 1)
		}
		return bars
	}
	least := difference(d.least, d.reference)
	for _, b := range slices.Backward(d.below.Distribution()) {
		add(-b.From-least, b.Count)
	}
	for _, b := range d.above.Distribution() {
		add(b.To-least, b.Count)
	}
	return bars
}

// Summary is zero where nothing was observed, and its IPDV where no frame came
// right after the one before it.
func (d *DelayVariation) Summary() DelayVariationSummary {
	s := DelayVariationSummary{PDV: PDVSummary{Count: d.frames, Max: d.greatest()}}
	if d.frames > 0 {
		p := percentiles(d.pdv(), d.frames)
		s.PDV.P50, s.PDV.P90, s.PDV.P99, s.PDV.P999 = p[0], p[1], p[2], p[3]
	}
	if d.ipdvs > 0 {
		greatest := max(d.ipdvMax, -d.ipdvMin)
		var bars []bar
		for _, b := range d.ipdv.Distribution() {
			bars = append(bars, bar{min(b.To, greatest, MaxLatency), b.Count})
		}
		p := percentiles(bars, d.ipdvs)
		s.IPDV = IPDVSummary{
			Count: d.ipdvs, Min: d.ipdvMin, Max: d.ipdvMax, MeanAbs: d.ipdvSum / float64(d.ipdvs),
			P50: p[0], P90: p[1], P99: p[2], P999: p[3],
		}
	}
	return s
}

// percentiles are the values at 50, 90, 99 and 99.9 % of count, as
// LatencySummary has them.
func percentiles(bars []bar, count uint64) (p [4]int64) {
	i, upTo := 0, uint64(bars[0].count)
	for k, per1000 := range [4]uint64{500, 900, 990, 999} {
		for rank := (count*per1000 + 999) / 1000; upTo < rank; {
			i++
			upTo += uint64(bars[i].count)
		}
		p[k] = bars[i].value
	}
	return p
}
