// Package phc ties the clock of a NIC (PTP hardware clock) to the system's
// CLOCK_REALTIME, so that the times at which a NIC received frames can stand beside
// those at which frames were stamped.
package phc

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Reading is one instant on both clocks, ns, right to ±Error.
type Reading struct{ PHC, System, Error int64 }

// Tie converts a PHC's times to the system's while it is kept up. Safe from any
// goroutine.
type Tie struct {
	read  func() (Reading, error)
	line  atomic.Pointer[line]
	stop  chan struct{}
	ended sync.WaitGroup
	close func() error
}

// line is the system's time by the PHC's: through two readings.
type line struct {
	at      Reading
	rate    float64 // system ns a PHC ns, less 1
	errorNs int64
}

// readEvery is how often the two clocks are compared. Two crystals drift apart by
// some 10 us a second; what matters is how much that changes within it.
const readEvery = time.Second

// Open ties /dev/ptpINDEX to the system's clock until Close. Errors: those of
// opening and of PTP_SYS_OFFSET_EXTENDED (linux/ptp_clock.h).
func Open(index int) (*Tie, error) {
	name := fmt.Sprintf("/dev/ptp%d", index)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	t, err := newTie(func() (Reading, error) {
		r, err := unix.IoctlPtpSysOffsetExtended(int(f.Fd()), samples)
		if err != nil {
			return Reading{}, fmt.Errorf("%s: PTP_SYS_OFFSET_EXTENDED: %w", name, err)
		}
		return narrowest(r.Ts[:r.Samples]), nil
	}, f.Close, readEvery)
	if err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return t, nil
}

// samples of one reading, of which the fastest counts.
const samples = 10

// narrowest is the sample whose reading of the PHC is held by the two closest
// readings of the system's clock: system, PHC, system.
func narrowest(all [][3]unix.PtpClockTime) (best Reading) {
	best.Error = -1
	for _, s := range all {
		before, after := ns(s[0]), ns(s[2])
		if half := (after - before + 1) / 2; best.Error < 0 || half < best.Error {
			best = Reading{PHC: ns(s[1]), System: before + (after-before)/2, Error: half}
		}
	}
	return best
}

func ns(t unix.PtpClockTime) int64 { return t.Sec*1e9 + int64(t.Nsec) }

func newTie(read func() (Reading, error), closer func() error, every time.Duration) (*Tie, error) {
	t := &Tie{read: read, close: closer, stop: make(chan struct{})}
	if err := t.update(); err != nil {
		return nil, err
	}
	t.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = t.update() // the last line goes on
			case <-t.stop:
				return
			}
		}
	})
	return t, nil
}

func (t *Tie) update() error {
	r, err := t.read()
	if err != nil {
		return err
	}
	l := &line{at: r, errorNs: r.Error}
	if last := t.line.Load(); last != nil && r.PHC > last.at.PHC {
		l.rate = float64((r.System-last.at.System)-(r.PHC-last.at.PHC)) / float64(r.PHC-last.at.PHC)
		l.errorNs = max(r.Error, last.at.Error)
	}
	t.line.Store(l)
	return nil
}

// System is the system's time of an instant of the PHC's, ns since the Unix epoch.
func (t *Tie) System(phcNs int64) int64 {
	l := t.line.Load()
	d := phcNs - l.at.PHC
	return l.at.System + d + int64(float64(d)*l.rate)
}

// Error is by how much System may be off at the readings, ns.
func (t *Tie) Error() int64 { return t.line.Load().errorNs }

// Close ends the comparing.
func (t *Tie) Close() error {
	close(t.stop)
	t.ended.Wait()
	return t.close()
}
