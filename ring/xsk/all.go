package xsk

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
)

// All is the RX rings of all queues of an interface, as one: its program (Port) gives
// a ring the frames of its own queue alone, and whoever reads a stream is to see
// all of it. Frames of several queues come in the order in which they arrived, but for
// those that one queue brings late.
//
// It implements ring.RX, and is owned as one.
type All struct {
	port  *Port
	rings []*RX
	polls []unix.PollFd
	at    int // ring that lent the block
}

var _ ring.RX = (*All)(nil)

// OpenAll attaches the program, and opens a ring on each of an interface's queues.
// o.Queue and o.Port are not looked at. Errors: xdp.ErrTaken, ErrUnable, TooLargeError.
func OpenAll(o RXOptions, queues int) (*All, error) {
	a := &All{}
	err := func() (err error) {
		if a.port, err = OpenPort(PortOptions{Interface: o.Interface, Index: o.Index, Queues: queues}); err != nil {
			return err
		}
		o.Port = a.port
		for o.Queue = range queues {
			r, err := OpenRX(o)
			if err != nil {
				return err
			}
			a.rings = append(a.rings, r)
			a.polls = append(a.polls, unix.PollFd{Fd: int32(r.sock.FD), Events: unix.POLLIN})
		}
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// Mode says where the program sits and how frames come from it, with the reasons.
func (a *All) Mode() (mode, reason string) {
	where, whyWhere := a.port.Mode()
	how, whyHow := a.rings[0].Mode()
	for _, why := range []string{whyWhere, whyHow} {
		if reason != "" && why != "" {
			reason += "; "
		}
		reason += why
	}
	return fmt.Sprintf("%s, %s", where, how), reason
}

// Untimed is the number of frames whose time is that of their reading, as the driver
// leaves the program no room to write one.
func (a *All) Untimed() (n uint64) {
	for _, r := range a.rings {
		n += r.untimed
	}
	return n
}

// Start implements ring.RX.
func (a *All) Start() error {
	for _, r := range a.rings {
		if err := r.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Next implements ring.RX.
func (a *All) Next(wait time.Duration) (*ring.Block, error) {
	if len(a.rings) == 1 {
		return a.rings[0].Next(wait)
	}
	for end := time.Now().Add(wait); ; {
		if b := a.eldest(); b != nil {
			return b, nil
		}
		ts := unix.NsecToTimespec(int64(min(max(time.Until(end), 0), lookAtLink)))
		if _, err := unix.Ppoll(a.polls, &ts, nil); err != nil && err != unix.EINTR {
			return nil, a.rings[0].sock.Errorf("poll", err)
		}
		if b := a.eldest(); b != nil {
			return b, nil
		}
		if err := a.rings[0].link(); err != nil {
			return nil, err
		}
		if !time.Now().Before(end) {
			return nil, ring.ErrTimeout
		}
	}
}

// eldest lends those frames of one ring that arrived before all others'; nil where none
// waits.
func (a *All) eldest() *ring.Block {
	first, second := uint64(math.MaxUint64), uint64(math.MaxUint64) // times of the rings' next frames
	found := false
	for i, r := range a.rings {
		if r.waiting() == 0 {
			continue
		}
		switch at := r.arrived(0); {
		case !found || at < first:
			if found {
				second = first
			}
			first, found, a.at = at, true, i
		case at < second:
			second = at
		}
	}
	if !found {
		return nil
	}
	r, n := a.rings[a.at], uint32(1)
	for n < r.waiting() && r.arrived(n) <= second {
		n++
	}
	return r.take(n)
}

// Release implements ring.RX.
func (a *All) Release(b *ring.Block) { a.rings[a.at].Release(b) }

// Drops implements ring.RX.
func (a *All) Drops() (sum ring.KernelDrops, err error) {
	for _, r := range a.rings {
		d, e := r.Drops()
		sum.Packets, sum.Drops, sum.Freezes = sum.Packets+d.Packets, sum.Drops+d.Drops, sum.Freezes+d.Freezes
		err = errors.Join(err, e)
	}
	return sum, err
}

// Close implements ring.RX, and takes the program off.
func (a *All) Close() error {
	var errs []error
	for _, r := range a.rings {
		errs = append(errs, r.Close())
	}
	if a.port != nil {
		errs = append(errs, a.port.Close())
	}
	return errors.Join(errs...)
}
