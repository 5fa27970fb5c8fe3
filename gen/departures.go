package gen

import (
	"pktgen/ring"
	"pktgen/stats"
)

// departures learns from the kernel when some of a paced worker's frames really
// left: how they were spaced, and how long after their stamps.
//
// Owned by the queue goroutine.
type departures struct {
	tx   ring.Stamper // nil: nothing is learnt
	plan stats.Sampling

	on      bool
	first   uint64 // sequence number of the frame that the kernel numbered 0
	next    uint64 // sequence number after the last one it was asked about
	pending uint64 // frames whose stamps may still come

	stamps [maxPending]int64 // the frames' own stamps, by number modulo
	last   stats.Sample      // the frame that left last

	gaps    *stats.Latency // ns between consecutive frames
	lag     *stats.Latency // ns from a frame's stamp to its leaving
	samples []stats.Sample
}

// maxPending bounds the stamps that are under way; later ones are dropped.
const maxPending = 1 << 10

func newDepartures(tx ring.TX, plan stats.Sampling) departures {
	stamper, ok := tx.(ring.Stamper)
	if !ok || !plan.Any() {
		return departures{}
	}
	return departures{
		tx: stamper, plan: plan, gaps: stats.NewLatency(), lag: stats.NewLatency(),
		samples: make([]stats.Sample, 0, stats.MaxSamples),
	}
}

// arm is told of each batch before it is stamped: n frames from seq on.
func (d *departures) arm(seq uint64, n int) {
	if d.tx == nil {
		return
	}
	want := d.plan.Overlaps(seq, uint64(n))
	if want && !d.on {
		for d.read() { // of the run before: its numbers begin anew
		}
		d.first, d.next, d.pending = seq, seq, 0
	}
	if want != d.on {
		if d.tx.Stamp(want) != nil { // this kernel or device does not
			d.tx = nil
			return
		}
		d.on = want
	}
}

// stamped is told of it once it is.
func (d *departures) stamped(seq uint64, n int, realNs int64) {
	if !d.on {
		return
	}
	for i := range uint64(n) {
		d.stamps[(seq-d.first+i)%maxPending] = realNs
	}
	d.next = seq + uint64(n)
	d.pending = min(d.pending+uint64(n), maxPending)
}

// read takes one stamp, if it has come.
func (d *departures) read() bool {
	if d.pending == 0 {
		return false
	}
	n, timeNs, ok := d.tx.ReadStamp()
	if !ok {
		return false
	}
	d.pending--
	seq := d.first + uint64(n)
	if !d.plan.Has(seq) || seq >= d.next || d.next-seq > maxPending {
		return true
	}
	d.lag.Observe(timeNs - d.stamps[uint64(n)%maxPending])
	if seq == d.last.Seq+1 && d.last.TimeNs != 0 {
		d.gaps.Observe(timeNs - d.last.TimeNs)
	}
	d.last = stats.Sample{Seq: seq, TimeNs: timeNs}
	if len(d.samples) < cap(d.samples) {
		d.samples = append(d.samples, d.last)
	}
	return true
}
