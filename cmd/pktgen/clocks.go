package main

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pktgen/report"
	"pktgen/sink"
	"pktgen/stats"
)

// clocks is what round trips say of the far clock, and with it of each way; nil
// where none came. Of several streams the one that knows it best speaks.
func clocks(streams []*sink.Stream) (*report.ClockOffset, *report.OneWay) {
	var best *stats.Offset
	var failed error
	for _, st := range streams {
		if st.RoundTrip == nil {
			continue
		}
		o, err := st.RoundTrip.Offset.Estimate()
		switch {
		case err != nil:
			failed = err
		case best == nil || o.Bound < best.Bound:
			best = &o
		}
	}
	if failed != nil { // also of one: a clock that was set is that of all
		return &report.ClockOffset{Error: failed.Error()}, nil
	}
	if best == nil {
		return nil, nil
	}
	there, back := stats.NewLatency(), stats.NewLatency()
	for _, st := range streams {
		if st.RoundTrip == nil {
			continue
		}
		for _, t := range st.RoundTrip.Trips {
			a, b := best.OneWay(t.Sent, t.Received, t.Returned, t.Back)
			there.Observe(max(0, a)) // below 0 by no more than the bound
			back.Observe(max(0, b))
		}
	}
	offset := &report.ClockOffset{Ns: best.Ns, BoundNs: best.Bound, DriftPPM: best.Drift, DriftBoundPPM: best.DriftBound}
	if there.Count() == 0 {
		return offset, nil
	}
	return offset, &report.OneWay{Bound: best.Bound, There: spread(there), Back: spread(back)}
}

// hostClock is what keeps this host's clock; nil where the kernel does not tell.
func hostClock() *report.Clock {
	var tx unix.Timex // modes 0: it is only read
	if _, err := unix.Adjtimex(&tx); err != nil {
		return nil
	}
	c := &report.Clock{
		Synchronised: tx.Status&unix.STA_UNSYNC == 0,
		MaxErrorUs:   int64(tx.Maxerror), EstErrorUs: int64(tx.Esterror),
		FrequencyPPM: float64(tx.Freq) / (1 << 16),
	}
	if b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource"); err == nil {
		c.Source = strings.TrimSpace(string(b))
	}
	devices, _ := filepath.Glob("/sys/class/ptp/ptp*") // its only error is of the pattern
	for _, d := range devices {
		name, _ := os.ReadFile(filepath.Join(d, "clock_name")) // one without a name is one all the same
		c.PTP = append(c.PTP, filepath.Base(d)+" ("+strings.TrimSpace(string(name))+")")
	}
	return c
}
