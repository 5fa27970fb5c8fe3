package stats

// Jitter is the variation of the transit time of one stream: of differences
// only, so that it holds for two clocks that disagree by a constant. Frames are
// taken in the order of arrival (RFC 3550, section 6.4.1: not necessarily that
// of their sequence). The zero value is ready. Owned by one goroutine.
type Jitter struct {
	last  int64 // transit time of the frame before
	any   bool
	j16   int64   // 16 x the interarrival jitter of RFC 3550, section 6.4.1 (its integer form, appendix A.8)
	sum   float64 // exact to 2^53 ns, as that of Latency
	max   int64
	count uint64
}

// maxIPDV bounds |IPDV|, ns: nine years. Only stamps that are garbage are
// further apart, and they shall not overflow j16.
const maxIPDV = 1 << 58

// JitterSummary is in ns. None of it is ever negative.
type JitterSummary struct {
	RFC3550 float64 // interarrival jitter J at the end, to 0.5 ns: RFC 3550, section 6.4.1
	Mean    float64 // mean of |IPDV| of consecutive frames (RFC 3393; RFC 5481, section 4.1)
	Max     int64   // greatest |IPDV|, exact
	Count   uint64  // number of differences
}

// JitterOf is what another has observed in the same way: 16 x the jitter of RFC
// 3550, and of |IPDV| the sum, the greatest and the number. It takes no more frames.
func JitterOf(j16 int64, sum uint64, max int64, count uint64) Jitter {
	return Jitter{j16: j16, sum: float64(sum), max: max, count: count}
}

// Observe takes the next frame's transit time (received - sent), ns.
func (j *Jitter) Observe(transitNs int64) {
	last := j.last
	j.last = transitNs
	if !j.any {
		j.any = true
		return
	}
	// Unsigned, the difference of any two fits.
	d := int64(min(uint64(max(transitNs, last))-uint64(min(transitNs, last)), maxIPDV))
	// J += (|D| - J) / 16, with J kept 16-fold and rounded (RFC 3550, appendix A.8).
	j.j16 += d - (j.j16+8)>>4
	j.sum += float64(d)
	j.max = max(j.max, d)
	j.count++
}

// Summary is zero where fewer than two frames were observed.
func (j *Jitter) Summary() JitterSummary {
	s := JitterSummary{RFC3550: float64(j.j16) / 16, Max: j.max, Count: j.count}
	if j.count > 0 {
		s.Mean = j.sum / float64(j.count)
	}
	return s
}
