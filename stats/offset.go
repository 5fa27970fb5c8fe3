package stats

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
)

// ClockOffset finds by how much a remote clock is ahead of the local one, and
// how fast they drift apart, from round trips of four times, as those of NTP
// (RFC 5905, section 8) and STAMP (RFC 8762): t1 sent and t4 received back by
// the local clock, t2 received and t3 returned by the remote one.
//
// A frame cannot arrive before it left. So with offset(t) = remote - local
//
//	t2-t1 >= offset(t1)   a point above the line, for each frame on its way there
//	t3-t4 <= offset(t4)   a point below the line, for each frame on its way back
//
// as long as the clocks drift apart at a steady rate of up to MaxDrift. The lines
// that pass between the two clouds of points are all there can be, whatever the
// two ways take; they are the bound. The best estimate is the middle of the
// widest straight band between the clouds: its edges are the line under the one
// cloud and the line above the other (Moon, Skelly and Towsley, Estimation and
// removal of clock skew from network delay measurements, INFOCOM 1999), with one
// slope in common. It is the offset where the least delays of both ways are the
// same, and otherwise off by half of what they differ.
//
//	delay       x      x   x      forward points (t1, t2-t1)
//	  |     x ____x_________
//	  |       ______________  <- the estimate
//	  |      o     o   o    o
//	  |   o    o       o          backward points (t4, t3-t4)
//	  +------------------------ local time
//
// Of each stretch of time only the fastest round trip is kept, as the clock
// filter of NTP does (RFC 5905, section 10): the time of a round trip does not
// change with the drift, so that a stretch may be as long as it needs to be. A
// point left out makes the bound wider, never wrong.
//
// The zero value is ready; some 25 KB. Owned by one goroutine.
type ClockOffset struct {
	base     int64 // the first t1
	any      bool
	shift    uint8 // a stretch is 2^shift ns
	from, to int64 // the least t1 and the greatest t4, after base
	first    trip
	last     trip
	fastest  [stretches]struct {
		trip
		any bool
	}
}

// MaxDrift is the greatest drift that two clocks are taken to have, ppm: the
// kernel lets each be slewed by 500 (MAXFREQ of linux/timex.h), and crystals are
// well below that.
const MaxDrift = 1000

// stretches are from -256 to 255 after base; before base there are only round
// trips that were overtaken, or a clock was set. A run fills 128 to 256 of them
// whatever its length.
const stretches = 512

// trip is a forward and a backward point. Offsets may wrap: only their
// differences are used.
type trip struct {
	x, f int64 // t1 after base; t2-t1
	y, g int64 // t4 after base; t3-t4
}

// delay is the time of the round trip on the way (RFC 5905, section 8).
func (t *trip) delay() int64 { return t.f - t.g }

// Observe takes a round trip, ns. A stamp may be early where a frame leaves, and
// late where one arrives: that counts as delay. The other way round it must not
// be, but for rounding down to 1 ns.
func (c *ClockOffset) Observe(t1, t2, t3, t4 int64) {
	if !c.any {
		c.any, c.base = true, t1
		c.first = trip{f: t2 - t1, y: t4 - t1, g: t3 - t4}
	}
	t := trip{x: t1 - c.base, f: t2 - t1, y: t4 - c.base, g: t3 - t4}
	c.from, c.to = min(c.from, t.x), max(c.to, t.y)
	c.last = t
	i := t.x>>(c.shift&63) + stretches/2
	for uint64(i) >= stretches {
		c.widen()
		i = t.x>>(c.shift&63) + stretches/2
	}
	if s := &c.fastest[i]; !s.any || t.delay() < s.delay() {
		s.trip, s.any = t, true
	}
}

// widen makes one stretch of every two.
func (c *ClockOffset) widen() {
	old := c.fastest
	clear(c.fastest[:])
	for i := range old {
		s := &c.fastest[(i+stretches/2)/2]
		if old[i].any && (!s.any || old[i].delay() < s.delay()) {
			*s = old[i]
		}
	}
	c.shift++
}

// Offset is what is known of two clocks from First to Last (local, ns), the
// times of the first and the last frame.
type Offset struct {
	First, Last int64
	Reference   int64   // the middle of them
	Ns          int64   // remote - local at Reference, ns; where it does not fit it wraps, as their sum does
	Bound       int64   // |At - true offset| <= Bound from First to Last, ns, however the two ways differ
	Drift       float64 // of the remote clock against the local one, ppm: positive where it is faster
	DriftBound  float64 // |Drift - true drift| <= DriftBound, ppm
}

// At is remote - local at a local time, ns. Outside of First to Last, Bound
// grows by DriftBound x the distance.
func (o Offset) At(localNs int64) int64 {
	return o.Ns + int64(math.Round(o.Drift*1e-6*float64(localNs-o.Reference)))
}

// OneWay is how long a round trip's two ways took, in ns of the remote clock,
// each right to Bound, and their sum to MaxDrift. One may come out below 0
// by as much as it is wrong.
func (o Offset) OneWay(t1, t2, t3, t4 int64) (there, back int64) {
	return t2 - t1 - o.At(t1), t4 - t3 + o.At(t4)
}

// ErrNoRoundTrips says that nothing was observed.
var ErrNoRoundTrips = errors.New("clock offset: no frame came back")

// StepError says that no steady drift of up to MaxDrift explains the round
// trips: a clock was set, or its rate changed (or a stamp is garbage). From and
// To are of the shortest stretch that shows it, the first in the run; there may
// be more.
type StepError struct {
	From, To int64 // local, ns: it was between these two
}

func (e *StepError) Error() string {
	return fmt.Sprintf("clock offset: a clock was set or changed its rate within %.6g s, from %d to %d ns of the local clock; "+
		"stop what sets the clocks during the run (NTP, PTP), or make the run shorter", float64(e.To-e.From)/1e9, e.From, e.To)
}

// Estimate is what is known so far. One round trip is enough for an offset; where
// the run is too short for a drift, Drift is 0 and DriftBound is MaxDrift. Its
// errors are ErrNoRoundTrips and *StepError. It takes some 0.1 ms, and more where
// there was a step.
//
// A step that is smaller than Bound can go unseen.
func (c *ClockOffset) Estimate() (Offset, error) {
	if !c.any {
		return Offset{}, ErrNoRoundTrips
	}
	// The first and the last may be slow, but a step close to them shows in nothing
	// else: their stretches keep but one trip.
	trips := make([]trip, 0, stretches+2)
	trips = append(trips, c.first)
	for i := range c.fastest {
		if c.fastest[i].any {
			trips = append(trips, c.fastest[i].trip)
		}
	}
	trips = append(trips, c.last)

	middle := c.from/2 + c.to/2
	origin := trips[0].f // an offset; close to it, floats are exact enough
	b := newBand(trips, middle, origin)
	slopes, ok := b.slopes()
	if !ok {
		return Offset{}, c.step(trips)
	}

	slope := slopes.best
	if slopes.least == -maxSlope && slopes.most == maxSlope {
		slope = 0
	}
	over, under, _ := b.edges(slope)
	ns := math.Round((over + under) / 2)
	o := Offset{
		First: c.base + c.from, Last: c.base + c.to, Reference: c.base + middle,
		Ns: origin + int64(ns), Drift: slope * 1e6,
		DriftBound: max(slopes.most-slope, slope-slopes.least) * 1e6,
	}

	// How far a line can be from the estimate is a convex function of time, so
	// that it is greatest at an end of the run. There, the lines furthest off are
	// the edges of the steepest bands.
	off := 0.
	for _, s := range []float64{slopes.least, slopes.most} {
		over, under, _ := b.edges(s)
		for _, x := range []float64{float64(c.from - middle), float64(c.to - middle)} {
			off = max(off, over-ns+(s-slope)*x, ns-under-(s-slope)*x)
		}
	}
	o.Bound = int64(min(math.Ceil(off)+1, 1<<62)) // 1: At is rounded
	return o, nil
}

// step finds the first and shortest run of trips that no line fits.
func (c *ClockOffset) step(trips []trip) error {
	fits := func(t []trip) bool {
		_, ok := newBand(t, t[0].x, t[0].f).slopes()
		return ok
	}
	end := 1 + sort.Search(len(trips)-1, func(n int) bool { return !fits(trips[:n+1]) })
	trips = trips[:end]
	start := sort.Search(len(trips)-1, func(n int) bool { return fits(trips[n+1:]) })
	trips = trips[start:]
	first := slices.MinFunc(trips, func(a, b trip) int { return cmp.Compare(a.x, b.x) })
	last := slices.MaxFunc(trips, func(a, b trip) int { return cmp.Compare(a.y, b.y) })
	return &StepError{From: c.base + first.x, To: c.base + last.y}
}

// maxSlope is MaxDrift, ns/ns.
const maxSlope = MaxDrift / 1e6

// rounding is by how much a point may be on the wrong side, ns: each of its two
// stamps is rounded down by less than 1 ns.
const rounding = 1

// band is two clouds of points, and the straight bands that keep them apart.
type band []struct{ x, f, y, g float64 }

// newBand counts times from middle and offsets from origin.
func newBand(trips []trip, middle, origin int64) band {
	b := make(band, len(trips))
	for i, t := range trips {
		b[i].x, b[i].f = float64(t.x-middle), float64(t.f-origin)+rounding
		b[i].y, b[i].g = float64(t.y-middle), float64(t.g-origin)-rounding
	}
	return b
}

// edges are the heights, at time 0, of the widest band of a slope: of the highest
// line under all forward points, and of the lowest above all backward ones. Its
// width, over - under, is a concave function of the slope, since each pair of
// points bounds it by a line; grows is how much it grows with the slope.
func (b band) edges(slope float64) (over, under, grows float64) {
	over, under = math.Inf(1), math.Inf(-1)
	var x, y float64
	for i := range b {
		p := &b[i]
		if h := p.f - slope*p.x; h < over {
			over, x = h, p.x
		}
		if h := p.g - slope*p.y; h > under {
			under, y = h, p.y
		}
	}
	return over, under, y - x
}

// width of the widest band of a slope: below 0 there is none.
func (b band) width(slope float64) float64 {
	over, under, _ := b.edges(slope)
	return over - under
}

// slopes a band can have.
type slopes struct{ least, best, most float64 }

// nearlyWidest is which part of the greatest width counts as all of it. The width
// over a single fast round trip changes by up to that much with the slope, which
// says nothing of the drift: the best slope is the middle of all that are as good.
// Of 1000 round trips of 100 us, queues of 20 us on each way, it is right to 80 ns
// on average; to 210 with 0.9, to 630 with 0 (the middle of all that is possible).
const nearlyWidest = 1 - 2*maxSlope

// slopes are those at which there is a band. ok is false where there is none.
func (b band) slopes() (s slopes, ok bool) {
	widest := bisect(-maxSlope, maxSlope, func(slope float64) bool {
		_, _, grows := b.edges(slope)
		return grows > 0
	})
	width := b.width(widest)
	if width < 0 {
		return s, false
	}
	least := func(width float64) float64 {
		return bisect(-maxSlope, widest, func(slope float64) bool { return b.width(slope) < width })
	}
	most := func(width float64) float64 {
		return bisect(widest, maxSlope, func(slope float64) bool { return b.width(slope) >= width })
	}
	s.least, s.most = least(0), most(0)
	s.best = (least(nearlyWidest*width) + most(nearlyWidest*width)) / 2
	return s, true
}

// bisect is the end of the part of lo to hi, from lo on, in which in holds.
func bisect(lo, hi float64, in func(float64) bool) float64 {
	if in(hi) {
		return hi
	}
	if !in(lo) {
		return lo
	}
	for range 64 { // to the last bit of either, and no further where that is 0
		if mid := (lo + hi) / 2; in(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}
