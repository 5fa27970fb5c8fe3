package main

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"pktgen/gen"
	"pktgen/internal/clock"
)

// errNoLaunchTimes: nothing on the interface holds frames until their times.
var errNoLaunchTimes = errors.New("no queueing discipline that keeps launch times (etf, fq)")

// launch settles --launch-time: which clock the interface's queueing discipline
// goes by, and that it does.
func (e *txEnd) launch() error {
	if e.t.launch == 0 {
		return nil
	}
	kinds, err := e.port.QdiscKinds()
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(kinds, "etf"):
		e.launchClock = unix.CLOCK_TAI
	case slices.Contains(kinds, "fq"):
		e.launchClock = unix.CLOCK_MONOTONIC
	default:
		return withHint(fmt.Errorf("%v: --launch-time: %w", e.info.Ref, errNoLaunchTimes),
			"tc qdisc replace dev %s root fq, or etf where the NIC has launch times: tc-etf(8)", e.info.Ref.Name)
	}
	return nil
}

// launchConfig is the generator's part of it.
func (e *txEnd) launchConfig() gen.Launch {
	if e.launchClock == 0 {
		return gen.Launch{}
	}
	// Both clocks go on with the monotonic one but for what NTP slews meanwhile,
	// which is at most 500 ppm of the lead: nothing.
	var ts unix.Timespec
	_ = unix.ClockGettime(int32(e.launchClock), &ts) // both are always there
	offset := ts.Nano() - clock.Mono()
	return gen.Launch{Ahead: e.t.launch, At: func(monoNs int64) int64 { return monoNs + offset }}
}
