// Package clock reads time for the data plane: monotonic ns, and their tie to
// real time.
//
// Both go through time.Now, which the Go runtime answers from the vDSO without
// a system call (unix.ClockGettime is a real one in Go).
package clock

import (
	"math"
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

// Kernel is what Mono is less than CLOCK_MONOTONIC, the clock of BPF programs
// (bpf_ktime_get_ns), in ns: the same at every call, within the time of a reading.
func Kernel() int64 {
	var offset int64
	least := int64(math.MaxInt64)
	for range 20 { // one of them is not interrupted
		var mono unix.Timespec
		before := Mono()
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
		if took := Mono() - before; took < least {
			least, offset = took, mono.Nano()-before-took/2
		}
	}
	return offset
}

// Epoch is CLOCK_REALTIME less CLOCK_MONOTONIC, ns: the same at every call, within the
// time of a reading, until the system's clock is set.
func Epoch() int64 {
	var offset int64
	least := int64(math.MaxInt64)
	for range 20 { // one of them is not interrupted
		var before, real, after unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
		_ = unix.ClockGettime(unix.CLOCK_REALTIME, &real)
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
		if took := after.Nano() - before.Nano(); took < least {
			least, offset = took, real.Nano()-before.Nano()-took/2
		}
	}
	return offset
}

// Scales is one reading of the clocks that tell, against one another, what
// happened to the host between two of them.
type Scales struct{ monoNs, bootNs, realNs int64 }

// ReadScales reads them; the three are within microseconds of one another.
func ReadScales() Scales {
	var boot, mono unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // both are always there
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	return Scales{monoNs: mono.Nano(), bootNs: boot.Nano(), realNs: time.Now().UnixNano()}
}

// Slept is how long the host was suspended since before: CLOCK_BOOTTIME goes on
// in sleep, CLOCK_MONOTONIC does not (clock_gettime(2)).
func (s Scales) Slept(before Scales) time.Duration {
	return time.Duration((s.bootNs - before.bootNs) - (s.monoNs - before.monoNs))
}

// Stepped is how far CLOCK_REALTIME was set since before, beyond what slewing by
// at most 500 ppm does (adjtimex(2)): 0 where it was not.
func (s Scales) Stepped(before Scales) time.Duration {
	took := s.bootNs - before.bootNs
	step := (s.realNs - before.realNs) - took
	if slew := took/2000 + int64(time.Millisecond); step > -slew && step < slew {
		return 0
	}
	return time.Duration(step)
}

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
