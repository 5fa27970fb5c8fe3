package main

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"pktgen/internal/forwarder"
	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// stamped matches untagged IPv4 test frames, on their way there or back.
func stamped(frame []byte) bool {
	if len(frame) < 60 {
		return false
	}
	magic := binary.BigEndian.Uint16(frame[42:])
	return magic == 0x9e37 || magic == 0x9e39
}

// forwarded is a path with a forwarder in it. The function ends it, and says what
// it did on the way there.
func forwarded(t *testing.T, o forwarder.Options) (tx, rx netdev.Ref, end func() forwarder.Stats) {
	t.Helper()
	tx, in := testnet.Wire(t, lab.Options{})
	out, rx := testnet.Wire(t, lab.Options{})
	o.Match = stamped
	f, err := forwarder.Start(in, out, o)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	end = func() forwarder.Stats {
		t.Helper()
		if !closed {
			closed = true
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		ab, ba := f.Stats()
		if ab.Lost+ba.Lost > 0 {
			t.Errorf("the forwarder itself lost %d and %d frames", ab.Lost, ba.Lost)
		}
		return ab
	}
	t.Cleanup(func() { end() })
	return tx, rx, end
}

// TestInjected: loss, duplication, reordering and corruption at known places are
// reported exactly, the lost tail included.
func TestInjected(t *testing.T) {
	const count = 3000
	plan := func(n uint64, frame []byte) (a forwarder.Action) {
		switch {
		case n >= count-5:
			a.Drop = true // the tail
		case n%100 == 7, n%1000 == 500, n%1000 == 501: // also two in a row
			a.Drop = true
		case n%100 == 20:
			a.Copies = 1
		case n%1000 == 30:
			a.Copies = 3
		case n%100 == 40:
			a.Behind = 1
		case n%1000 == 50:
			a.Behind = 20
		case n%100 == 60:
			a.Flip = 42 + 13 // in the time sent
		case n%1000 == 70:
			a.Flip = 42 + 8 // in the sequence number
		case n%1000 == 80:
			a.Flip = 14 + 8 // TTL: the IPv4 checksum is wrong
		}
		return a
	}
	for _, receive := range []string{backendPacket, backendXDP, backendCount} {
		t.Run(receive, func(t *testing.T) {
			tx, rx, end := forwarded(t, forwarder.Options{AB: plan})
			r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", "5kpps", "--count", "3000", "--rx-backend", receive, "--json")
			did := end()
			identity(t, r)
			x := r.RX
			// A frame whose number was damaged cannot be told from one that was lost, and
			// is corrupt besides; one that is damaged elsewhere did arrive.
			wrongNumber := uint64(count / 1000)
			if want := did.Dropped + wrongNumber; x.Lost != want || r.Loss.Path != want || did.Dropped != 30+6+5 {
				t.Errorf("lost %d, on the path %d; dropped %d, and %d numbers damaged", x.Lost, r.Loss.Path, did.Dropped, wrongNumber)
			}
			if x.Duplicates != did.Copied || did.Copied != 30+9 {
				t.Errorf("%d duplicates of %d copies", x.Duplicates, did.Copied)
			}
			if x.Reordered != did.Swapped || did.Swapped != 30+3 {
				t.Errorf("%d reordered of %d", x.Reordered, did.Swapped)
			}
			if x.Corrupt != did.Damaged || did.Damaged != 30+6 {
				t.Errorf("%d corrupt of %d", x.Corrupt, did.Damaged)
			}
			if r.Verdict != verdictPath {
				t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
			}
		})
	}
}

// TestDelayLine: frames held for a known time show it, as exactly as the delay
// line itself held them.
func TestDelayLine(t *testing.T) {
	const hold = 20 * time.Millisecond
	held := func(uint64, []byte) forwarder.Action { return forwarder.Action{Hold: hold} }
	for _, receive := range []string{backendPacket, backendXDP, backendCount} {
		t.Run(receive, func(t *testing.T) {
			tx, rx, end := forwarded(t, forwarder.Options{AB: held})
			r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", "1kpps", "--duration", "2s", "--rx-backend", receive, "--json")
			identity(t, r)
			line := end().Hold.Summary()
			if r.RX.Lost+r.RX.Duplicates+r.RX.Reordered != 0 || line.Count != r.TX.Frames {
				t.Errorf("%+v", *r.RX)
			}
			own := float64(line.P99-line.Min) + float64(hold)/50
			l := r.RX.Latency
			if math.Abs(float64(*l.P50-line.P50)) > own || math.Abs(float64(*l.P99-line.P99)) > own || *l.Min < int64(hold) {
				t.Errorf("min %d, p50 %d, p99 %d; the line held frames for %d, %d, %d", *l.Min, *l.P50, *l.P99, line.Min, line.P50, line.P99)
			}
			if s := r.RX.Sampled; receive == backendPacket && (s == nil || math.Abs(float64(*s.P50-line.P50)) > own || *s.Min < int64(hold)) {
				t.Errorf("by the kernel's times %+v; the line held frames for %d", s, line.P50)
			}
		})
	}
}

// TestAsymmetricPath: where the two ways differ, the far clock's offset cannot be
// told from half of that; the bound that is printed holds it all the same.
func TestAsymmetricPath(t *testing.T) {
	const there, back, offset = 20 * time.Millisecond, 10 * time.Millisecond, 5 * time.Second
	hold := func(d time.Duration) forwarder.Plan {
		return func(uint64, []byte) forwarder.Action { return forwarder.Action{Hold: d} }
	}
	tx, rx, _ := forwarded(t, forwarder.Options{AB: hold(there), BA: hold(back)})
	reflecting(t, rx, "--clock-offset", offset.String())
	r := mustRun(t, "run", "--round-trip", "--tx", tx.String(), "--rate", "1kpps", "--duration", "2s", "--json")
	identity(t, r)
	if l := r.RX.Latency; *l.Min < int64(there+back) || *l.P50 > int64(there+back)*3/2 {
		t.Errorf("round trip min %d, p50 %d, want %d", *l.Min, *l.P50, there+back)
	}
	o := r.RX.ClockOffset
	off := math.Abs(float64(o.Ns - int64(offset)))
	if o.Error != "" || off > float64(o.BoundNs) || o.BoundNs < int64(there-back)/2 || o.BoundNs > int64(there+back) {
		t.Errorf("%+v: off by %.0f ns", o, off)
	}
	w := r.RX.OneWay
	if math.Abs(float64(w.There.P50-int64(there))) > float64(w.Bound) || math.Abs(float64(w.Back.P50-int64(back))) > float64(w.Bound) {
		t.Errorf("there p50 %d, back p50 %d, right to %d", w.There.P50, w.Back.P50, w.Bound)
	}
}
