package main

import (
	"math"
	"strings"
	"testing"

	"pktgen/internal/testnet"
	"pktgen/lab"
	"pktgen/report"
)

// TestWarmUp: what is sent before the trial reaches the far port, and no counter
// of ours.
func TestWarmUp(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", "5kpps", "--warmup", "400ms", "--count", "1000", "--json")
	clean(t, r)
	if r.TX.Frames != 1000 || r.TX.Port.TxFrames > 1010 {
		t.Errorf("%d sent, the port counted %d during the run", r.TX.Frames, r.TX.Port.TxFrames)
	}
	if n := arrived(rx); n < 1000+1900 || n > 1000+2100 {
		t.Errorf("%d frames arrived in all, want 1000 and 2000 of the warm-up", n)
	}
}

// TestRepeat: the document of several trials holds each of them, and adds them up.
func TestRepeat(t *testing.T) {
	testnet.Require(t)
	r := mustRun(t, strings.Fields("lab wire -- run --rate 10kpps --count 2000 --repeat 3 --settle 50ms --json")...)
	if len(r.Trials) != 3 || r.Repeat == nil || r.Repeat.Trials != 3 || len(r.Repeat.PPS.Values) != 3 {
		t.Fatalf("%d trials, %+v", len(r.Trials), r.Repeat)
	}
	var sent, latencies uint64
	for i, one := range r.Trials {
		clean(t, one)
		sent += one.TX.Frames
		latencies += one.RX.Latency.Count
		if one.RX.PPS != r.Repeat.PPS.Values[i] {
			t.Errorf("trial %d: %v frames/s, in the series %v", i, one.RX.PPS, r.Repeat.PPS.Values[i])
		}
		for _, other := range r.Trials[:i] {
			if *one.RunID == *other.RunID {
				t.Error("two trials have one run id")
			}
		}
	}
	if r.TX.Frames != sent || sent != 6000 || r.RX.Frames != sent || r.RX.Latency.Count != latencies {
		t.Errorf("%d sent, %d received, %d latencies; the trials add up to %d, %d", r.TX.Frames, r.RX.Frames, r.RX.Latency.Count, sent, latencies)
	}
	if s := r.Repeat.PPS; s.Min > s.Mean || s.Mean > s.Max || s.Half < 0 || math.Abs(r.RX.PPS-s.Mean) > 1 {
		t.Errorf("%v frames/s, %+v", r.RX.PPS, s)
	}
	got, code := run(t, strings.Fields("lab wire -- run --rate 10kpps --count 500 --repeat 3 --settle 50ms --json --min-rate 20kpps")...)
	if code != exitLimit || len(got.Trials) != 3 {
		t.Errorf("below --min-rate: exit code %d, %d trials", code, len(got.Trials))
	}
}

// TestCalibrate: the tool's own floor is measured on a wire of its own, which is
// gone afterwards, and of a wire without a device it is about all there is.
func TestCalibrate(t *testing.T) {
	testnet.Require(t)
	before := len(namespaces(t))
	r := mustRun(t, strings.Fields("lab wire -- run --rate 5kpps --count 2000 --calibrate --json")...)
	clean(t, r)
	f := r.Floor
	if f == nil || f.Lost != 0 || f.Frames < 9_900 || f.Latency.Count != f.Frames {
		t.Fatalf("%+v", f)
	}
	if ratio := float64(*r.RX.Latency.P50) / float64(*f.Latency.P50); ratio < 0.2 || ratio > 5 {
		t.Errorf("latency p50 %d, floor %d", *r.RX.Latency.P50, *f.Latency.P50)
	}
	if n := len(namespaces(t)); n != before {
		t.Errorf("%d namespaces left", n-before)
	}
}

// TestLossBound: what is printed holds what was made to happen: a filter that
// drops one frame in 256.
func TestLossBound(t *testing.T) {
	tx, rx, out := bridged(t)
	filtered(t, out)
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", "20kpps", "--count", "5120", "--json")
	b := r.RX.LossBound
	if b == nil || b.Level != 0.95 || b.Low > 1./256 || b.High < 1./256 || b.High > 2./256 || b.Low < 0.5/256 {
		t.Errorf("%+v, lost %d", b, r.RX.Lost)
	}
	var none report.Bound
	if c := mustRun(t, strings.Fields("lab wire -- run --rate 10kpps --count 1000 --json")...).RX.LossBound; c == nil || c.Low != none.Low || math.Abs(c.High-0.0029912) > 1e-5 {
		t.Errorf("none of 1000 lost: %+v, want up to 0.00299", c)
	}
}
