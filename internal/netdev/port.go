package netdev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
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
	TxCarrier                               uint64
}

// Since is what was counted after before. Errors: ErrReset where one of them has
// gone back: the driver was reset, or its counters wrapped.
func (c Counters) Since(before Counters) (Counters, error) {
	d := Counters{Time: c.Time}
	for _, f := range []struct {
		name         string
		to           *uint64
		after, start uint64
	}{
		{"rx_packets", &d.RxPackets, c.RxPackets, before.RxPackets}, {"rx_bytes", &d.RxBytes, c.RxBytes, before.RxBytes},
		{"rx_errors", &d.RxErrors, c.RxErrors, before.RxErrors}, {"rx_dropped", &d.RxDropped, c.RxDropped, before.RxDropped},
		{"rx_missed_errors", &d.RxMissed, c.RxMissed, before.RxMissed}, {"rx_fifo_errors", &d.RxFifo, c.RxFifo, before.RxFifo},
		{"tx_packets", &d.TxPackets, c.TxPackets, before.TxPackets}, {"tx_bytes", &d.TxBytes, c.TxBytes, before.TxBytes},
		{"tx_errors", &d.TxErrors, c.TxErrors, before.TxErrors}, {"tx_dropped", &d.TxDropped, c.TxDropped, before.TxDropped},
		{"tx_carrier_errors", &d.TxCarrier, c.TxCarrier, before.TxCarrier},
	} {
		if f.after < f.start {
			return Counters{}, fmt.Errorf("%w: %s went from %d to %d", ErrReset, f.name, f.start, f.after)
		}
		*f.to = f.after - f.start
	}
	return d, nil
}

// ErrReset: an interface's counters went backwards.
var ErrReset = errors.New("the counters were reset or wrapped")

// State is what may change about an interface during a run.
type State struct {
	Ref     Ref
	Deleted bool // or moved to another namespace
	Up      bool // set up by the administrator
	Running bool // has carrier
	MTU     int
	MAC     string // in text, so that two states compare
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

	mu sync.Mutex
	h  *netlink.Handle // nil: closed
}

// Open finds the interface and keeps an rtnetlink socket in its namespace.
// Errors: Lookup's.
func Open(r Ref) (*Port, error) {
	p := &Port{ref: r}
	err := r.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("%v: rtnetlink: %w", r, err)
		}
		link, err := find(h, r)
		if err != nil {
			h.Close()
			return err
		}
		p.h, p.index = h, link.Attrs().Index
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Ref is the interface.
func (p *Port) Ref() Ref { return p.ref }

// Close gives the socket back. Later calls do nothing.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h != nil {
		p.h.Close()
		p.h = nil
	}
	return nil
}

// link asks the kernel. A closed handle would ask in the caller's namespace, about
// another interface of the same index.
func (p *Port) link() (netlink.Link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == nil {
		return nil, os.ErrClosed
	}
	return p.h.LinkByIndex(p.index)
}

// Counters reads the interface's counters. Errors: ErrLost when the interface
// is gone, os.ErrClosed, those of rtnetlink.
func (p *Port) Counters() (Counters, error) {
	link, err := p.link()
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
		TxCarrier: s.TxCarrierErrors,
	}, nil
}

// State asks for the state now. Errors: os.ErrClosed, those of rtnetlink.
func (p *Port) State() (State, error) {
	link, err := p.link()
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return State{Ref: p.ref, Deleted: true}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("%v: state: %w", p.ref, err)
	}
	a := link.Attrs()
	return p.state(a.RawFlags, a.MTU, a.HardwareAddr), nil
}

func (p *Port) state(flags uint32, mtu int, mac net.HardwareAddr) State {
	return State{
		Ref: p.ref, MTU: mtu, MAC: mac.String(),
		Up: flags&unix.IFF_UP != 0, Running: flags&unix.IFF_RUNNING != 0,
	}
}

// Watch calls changed, from a goroutine of its own, with the state now and then
// at each change, until ctx ends or the interface is gone. A change that was
// undone again is told too: the kernel notes each. Watch itself returns at once.
func (p *Port) Watch(ctx context.Context, changed func(State)) error {
	var socket *nl.NetlinkSocket
	err := p.ref.Do(func() (err error) {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		return err
	})
	if err != nil {
		return fmt.Errorf("%v: watch: %w", p.ref, err)
	}
	last, err := p.State() // after the subscription: no change falls between
	if err != nil {
		socket.Close()
		return err
	}
	go func() {
		stop := context.AfterFunc(ctx, socket.Close) // wakes Receive
		defer func() {
			if stop() {
				socket.Close()
			}
		}()
		changed(last)
		for !last.Deleted && ctx.Err() == nil {
			states, err := p.receive(socket)
			if err != nil {
				return
			}
			for _, s := range states {
				if s != last && ctx.Err() == nil {
					changed(s)
					last = s
				}
			}
		}
	}()
	return nil
}

// receive waits for the next states of the interface that the kernel tells of.
func (p *Port) receive(socket *nl.NetlinkSocket) ([]State, error) {
	messages, from, err := socket.Receive()
	if errors.Is(err, unix.ENOBUFS) { // some messages did not fit the socket: look for oneself
		s, err := p.State()
		return []State{s}, err
	}
	if err != nil {
		return nil, err
	}
	if from.Pid != nl.PidKernel {
		return nil, nil
	}
	var states []State
	for _, m := range messages {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		info := nl.DeserializeIfInfomsg(m.Data)
		// A bridge tells of its ports with AF_BRIDGE, and of a port that leaves it
		// with RTM_DELLINK, though the interface stays.
		if int(info.Index) != p.index || info.Family != unix.AF_UNSPEC {
			continue
		}
		switch m.Header.Type {
		case unix.RTM_DELLINK:
			states = append(states, State{Ref: p.ref, Deleted: true})
		case unix.RTM_NEWLINK:
			link, err := netlink.LinkDeserialize(nil, m.Data)
			if err != nil {
				continue // a message without what a state needs; the next one has it
			}
			states = append(states, p.state(info.Flags, link.Attrs().MTU, link.Attrs().HardwareAddr))
		}
	}
	return states, nil
}
