package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ResponderOptions narrow what a Responder answers for.
type ResponderOptions struct {
	Exclude []netip.Addr // addresses that the host itself has: its kernel answers for them
}

// At most 10 000 answers a second, so that a flood of questions takes neither a CPU
// nor the link. A burst of 500, a router that asks for many hosts at once, is
// answered without delay. What comes beyond waits in the socket's buffer, and is
// lost when that is full.
const (
	answersPerWindow = 500
	answerWindow     = 50 * time.Millisecond
)

// Responder answers for every address of some prefixes with one MAC: a question in
// unicast or to all, with the tag that the question has. Its memory does not depend
// on what comes in.
//
// It does not answer a host that asks whether it may have an address itself (ARP
// probe, RFC 5227, section 2.1.1; duplicate address detection, RFC 4862, section
// 5.4): a device under test would lose its own address of the prefix. Nor does it
// answer for the asker's own address, or for one that no host can have.
type Responder struct {
	ifi      Iface
	prefixes []netip.Prefix
	exclude  []netip.Addr
	socket   *socket
	answered atomic.Uint64
	closed   atomic.Bool
}

// NewResponder opens the socket, in the network namespace of the calling thread.
// The interface may be down. Frames to a MAC that is not the interface's own reach
// it because the socket makes the interface promiscuous until Close.
func NewResponder(ifi Iface, prefixes []netip.Prefix, o ResponderOptions) (*Responder, error) {
	s, err := open(ifi, false)
	if err != nil {
		return nil, err
	}
	return &Responder{ifi: ifi, prefixes: prefixes, exclude: o.Exclude, socket: s}, nil
}

// Run answers until ctx ends, which closes r, or until Close; then it returns nil.
// It outlives the interface being set down, and answers again once it is up. Of an
// interface that is deleted no more comes: Run waits for its end. Its error is one of
// the socket. To be called once.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	var pace pace
	for {
		frame, tag, err := r.socket.read()
		switch {
		case r.closed.Load():
			return nil
		case errors.Is(err, unix.ENETDOWN):
			continue // told once; what comes after the interface is up again is read
		case err != nil:
			return fmt.Errorf("%s: read ARP/NDP: %w", r.ifi.Name, err)
		}
		out := r.answer(frame, tag)
		if out == nil {
			continue
		}
		time.Sleep(pace.next(time.Now()))
		if r.socket.write(out) == nil { // a link that is down loses it, as it would the question
			r.answered.Add(1)
		}
	}
}

// pace bounds the answers of each window.
type pace struct {
	start   time.Time // of the window
	answers int       // in it
}

// next counts an answer, and tells how long it has to wait: 0, or for the next window.
func (p *pace) next(now time.Time) time.Duration {
	if now.Sub(p.start) >= answerWindow {
		*p = pace{start: now}
	} else if p.answers == answersPerWindow {
		*p = pace{start: p.start.Add(answerWindow)}
	}
	p.answers++
	return max(0, p.start.Sub(now))
}

// answer is the frame to send back; nil where there is nothing to say.
func (r *Responder) answer(frame []byte, tag *VLAN) []byte {
	m, ok := parse(frame)
	if !ok || m.answer || !r.owns(m.target) || m.target == m.senderIP || m.senderIP.IsUnspecified() || m.senderIP.IsMulticast() {
		return nil
	}
	to := m.sender
	if to == nil { // a solicitation need not tell its link-layer address when it is unicast (section 4.3)
		if to = slices.Clone(frame[6:12]); !unicast(to) {
			return nil
		}
	}
	return reply(r.ifi.MAC, m, to, tag)
}

func (r *Responder) owns(a netip.Addr) bool {
	return (a.IsGlobalUnicast() || a.IsLinkLocalUnicast()) && !slices.Contains(r.exclude, a) &&
		slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Answered is the number of answers sent. Safe from any goroutine.
func (r *Responder) Answered() uint64 { return r.answered.Load() }

// Close ends Run and gives the socket back. Later calls do nothing. Safe from any
// goroutine.
func (r *Responder) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	return r.socket.close()
}
