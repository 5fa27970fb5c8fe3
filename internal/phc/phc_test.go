package phc

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNarrowest: the sample between the two closest readings counts.
func TestNarrowest(t *testing.T) {
	at := func(ns int64) unix.PtpClockTime { return unix.PtpClockTime{Sec: ns / 1e9, Nsec: uint32(ns % 1e9)} }
	got := narrowest([][3]unix.PtpClockTime{
		{at(1_000_000_000), at(5_000_000_900), at(1_000_002_000)},
		{at(2_000_000_000), at(6_000_000_100), at(2_000_000_201)},
		{at(3_000_000_000), at(7_000_000_000), at(3_000_009_000)},
	})
	if want := (Reading{PHC: 6_000_000_100, System: 2_000_000_100, Error: 101}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTie: a PHC that began elsewhere and drifts is followed.
func TestTie(t *testing.T) {
	const start, offset, ppm = int64(1.8e18), int64(37e9), 12.5
	system := func(phc int64) int64 { return phc - offset + int64(float64(phc-start)*ppm/1e6) }
	var now atomic.Int64
	now.Store(start)
	reads := make(chan struct{}, 100)
	failing := atomic.Bool{}
	tie, err := newTie(func() (Reading, error) {
		reads <- struct{}{}
		if failing.Load() {
			return Reading{}, errors.New("gone")
		}
		phc := now.Add(1e9)
		return Reading{PHC: phc, System: system(phc), Error: 50}, nil
	}, func() error { return nil }, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		<-reads
	}
	failing.Store(true)
	for range 3 { // what comes now fails: the last line goes on
		<-reads
	}
	for _, ahead := range []int64{-1e9, 0, 3e8, 2e9} {
		phc := now.Load() + ahead
		if d := tie.System(phc) - system(phc); math.Abs(float64(d)) > 5 {
			t.Errorf("%d ns ahead: off by %d", ahead, d)
		}
	}
	if tie.Error() != 50 {
		t.Errorf("error %d", tie.Error())
	}
	if err := tie.Close(); err != nil {
		t.Error(err)
	}
	if _, err := newTie(func() (Reading, error) { return Reading{}, errors.New("none") }, nil, time.Hour); err == nil {
		t.Error("a clock that cannot be read was tied")
	}
}
