package neigh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ResponderOptions narrow what a Responder answers for.
type ResponderOptions struct {
	Exclude []netip.Addr // addresses that the host itself has, and answers for
}

// Answers are bounded, so that a flood of questions costs no more than this.
const (
	answersPerWindow = 1000
	answerWindow     = 10 * time.Millisecond
)

// Responder answers for every address of some prefixes with one MAC. It does
// not answer a host that asks whether it may have an address itself (ARP probe,
// RFC 5227; duplicate address detection, RFC 4862), nor for the asker's own.
type Responder struct {
	ifi      Iface
	prefixes []netip.Prefix
	exclude  []netip.Addr
	socket   *socket
	answered atomic.Uint64
	closed   atomic.Bool
}

// NewResponder opens the socket, in the network namespace of the calling thread.
func NewResponder(ifi Iface, prefixes []netip.Prefix, o ResponderOptions) (*Responder, error) {
	s, err := open(ifi, false)
	if err != nil {
		return nil, err
	}
	return &Responder{ifi: ifi, prefixes: prefixes, exclude: o.Exclude, socket: s}, nil
}

// Run answers until ctx ends or Close. It outlives the interface being set down;
// its error is one of the socket.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	return r.serve(r.socket)
}

func (r *Responder) serve(s *socket) error {
	window, answers := time.Now(), 0
	for {
		frame, tag, err := s.read()
		switch {
		case r.closed.Load():
			return nil
		case errors.Is(err, unix.ENETDOWN):
			continue // told once; what comes after the interface is up again is read
		case err != nil:
			return err
		}
		out := r.answer(frame, tag)
		if out == nil {
			continue
		}
		if now := time.Now(); now.Sub(window) > answerWindow {
			window, answers = now, 0
		}
		if answers++; answers > answersPerWindow {
			continue
		}
		if s.write(out) == nil { // a link that is down loses it, as it would the question
			r.answered.Add(1)
		}
	}
}

// answer is the frame to send back; nil where there is nothing to say.
func (r *Responder) answer(frame []byte, tag *VLAN) []byte {
	m, ok := parse(frame)
	if !ok || m.answer || !r.owns(m.target) || m.target == m.senderIP || m.senderIP.IsUnspecified() {
		return nil
	}
	to := m.sender
	if to == nil { // a solicitation need not tell its link-layer address when it is unicast
		to = slices.Clone(net.HardwareAddr(frame[6:12]))
	}
	return reply(r.ifi.MAC, m, to, tag)
}

func (r *Responder) owns(a netip.Addr) bool {
	return !a.IsMulticast() && !slices.Contains(r.exclude, a) &&
		slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Answered is the number of answers sent.
func (r *Responder) Answered() uint64 { return r.answered.Load() }

// Close ends Run and gives the socket back. Later calls do nothing.
func (r *Responder) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	return r.socket.close()
}
