// Package clock reads time for the data plane: monotonic ns, and their tie to
// real time.
//
// Both go through time.Now, which the Go runtime answers from the vDSO without
// a system call (unix.ClockGettime is a real one in Go).
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// base is the origin of the monotonic scale: the start of the process.
var base = time.Now()

// Mono is the monotonic time, ns since the start of the process. It does not
// jump when the system's clock is set.
func Mono() int64 { return int64(time.Since(base)) }

// Both is one instant on both scales: Mono, and CLOCK_REALTIME in ns since the
// Unix epoch, the scale of the kernel's receive stamps.
func Both() (monoNs, realNs int64) {
	t := time.Now()
	return int64(t.Sub(base)), t.UnixNano()
}

// Time is the wall-clock time of a monotonic instant of this process.
func Time(monoNs int64) time.Time { return base.Add(time.Duration(monoNs)) }

// Sleep blocks the calling thread, not just the goroutine, for ns: for workers
// that own their thread. A signal may end it early.
func Sleep(ns int64) {
	if ns <= 0 {
		return
	}
	ts := unix.NsecToTimespec(ns)
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // EINTR: the caller looks at the clock again
}

// FineSleep makes the sleeps of the calling thread end within microseconds of
// their time, not 50 us later (PR_SET_TIMERSLACK, prctl(2)).
func FineSleep() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}
