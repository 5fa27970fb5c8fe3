package netdev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Counters are an interface's own, totals since it was made: struct
// rtnl_link_stats64, linux/if_link.h. Octets have no FCS where the driver
// counts none.
type Counters struct {
	Time                                    time.Time // when they were read
	RxPackets, RxBytes, RxErrors, RxDropped uint64
	RxMissed, RxFifo                        uint64
	TxPackets, TxBytes, TxErrors, TxDropped uint64
}

// State is what may change about an interface during a run.
type State struct {
	Ref     Ref
	Deleted bool
	Up      bool
	Running bool
	MTU     int
}

// Lost is an error where frames can no longer pass: set down, no carrier, gone.
func (s State) Lost() error {
	switch {
	case s.Deleted:
		return fmt.Errorf("%v: the interface was removed: %w", s.Ref, ErrLost)
	case !s.Up:
		return fmt.Errorf("%v: the interface was set down: %w", s.Ref, ErrLost)
	case !s.Running:
		return fmt.Errorf("%v: the link was lost (no carrier): %w", s.Ref, ErrLost)
	}
	return nil
}

// ErrLost: frames can no longer pass through the interface.
var ErrLost = errors.New("link lost")

// Port is an interface that is being watched. Safe from any goroutine.
type Port struct {
	ref   Ref
	index int
	h     *netlink.Handle
}

// Open finds the interface and keeps an rtnetlink socket in its namespace.
func Open(r Ref) (*Port, error) {
	p := &Port{ref: r}
	err := r.Do(func() (err error) {
		if p.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		link, err := p.h.LinkByName(r.Name)
		if err != nil {
			p.h.Close()
			return err
		}
		p.index = link.Attrs().Index
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%v: rtnetlink: %w", r, err)
	}
	return p, nil
}

// Close gives the socket back.
func (p *Port) Close() error {
	p.h.Close()
	return nil
}

// Counters reads the interface's counters. It fails when the interface is gone.
func (p *Port) Counters() (Counters, error) {
	link, err := p.h.LinkByIndex(p.index)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return Counters{}, State{Ref: p.ref, Deleted: true}.Lost()
	}
	if err != nil {
		return Counters{}, fmt.Errorf("%v: counters: %w", p.ref, err)
	}
	s := link.Attrs().Statistics
	if s == nil {
		return Counters{}, fmt.Errorf("%v: the kernel gives no counters", p.ref)
	}
	return Counters{
		Time:      time.Now(),
		RxPackets: s.RxPackets, RxBytes: s.RxBytes, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
		RxMissed: s.RxMissedErrors, RxFifo: s.RxFifoErrors,
		TxPackets: s.TxPackets, TxBytes: s.TxBytes, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
	}, nil
}

// Watch calls changed, from a goroutine of its own, with the state now and at
// each change, until ctx ends.
func (p *Port) Watch(ctx context.Context, changed func(State)) error {
	updates, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	err := p.ref.Do(func() error {
		return netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
			ErrorCallback: func(error) {}, // its end closes the channel
		})
	})
	if err != nil {
		return fmt.Errorf("%v: watch: %w", p.ref, err)
	}
	go func() {
		defer func() {
			close(done)
			for range updates { // what is under way has to go somewhere
			}
		}()
		if s, err := p.state(); err == nil {
			changed(s)
		}
		for {
			select {
			case <-ctx.Done():
				return
			case u, ok := <-updates:
				if !ok {
					return
				}
				if u.Link.Attrs().Index == p.index {
					changed(p.stateOf(u.Link, u.Header.Type == unix.RTM_DELLINK))
				}
			}
		}
	}()
	return nil
}

func (p *Port) state() (State, error) {
	link, err := p.h.LinkByIndex(p.index)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return State{Ref: p.ref, Deleted: true}, nil
	}
	if err != nil {
		return State{}, err
	}
	return p.stateOf(link, false), nil
}

func (p *Port) stateOf(link netlink.Link, deleted bool) State {
	a := link.Attrs()
	return State{
		Ref: p.ref, Deleted: deleted, MTU: a.MTU,
		Up: a.RawFlags&unix.IFF_UP != 0, Running: a.RawFlags&unix.IFF_RUNNING != 0,
	}
}
