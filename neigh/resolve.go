package neigh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoAnswer: nobody on the link says that it has the address.
var ErrNoAnswer = errors.New("nobody answers")

// Query asks for the link-layer address of Dst. Both addresses are of one family;
// a zone, or a mapping of IPv4 into IPv6, is of no account. From 0.0.0.0 or :: it asks
// as one does that has no address yet (RFC 5227, section 2.1.1; RFC 4862, section
// 5.4.2).
type Query struct {
	Src, Dst netip.Addr
	VLAN     *VLAN         // the question's tag, nil for none; an answer from another VLAN does not count
	Tries    int           // questions sent, 1 or more; 0 means 3
	Interval time.Duration // wait for an answer to each; 0 means 300 ms
}

// normal is q with all defaults set, checked.
func (q Query) normal() (Query, error) {
	q.Src, q.Dst = q.Src.Unmap().WithZone(""), q.Dst.Unmap().WithZone("")
	switch {
	case !q.Src.IsValid() || !q.Dst.IsValid() || q.Src.Is4() != q.Dst.Is4():
		return q, fmt.Errorf("two addresses of one family are needed, not %v and %v", q.Src, q.Dst)
	case q.VLAN != nil && (q.VLAN.ID > 4094 || q.VLAN.PCP > 7):
		return q, fmt.Errorf("VLAN id %d (0 to 4094), priority %d (0 to 7)", q.VLAN.ID, q.VLAN.PCP)
	case q.Tries < 0 || q.Interval < 0:
		return q, fmt.Errorf("%d tries, %v apart", q.Tries, q.Interval)
	}
	if q.Tries == 0 {
		q.Tries = 3
	}
	if q.Interval == 0 {
		q.Interval = 300 * time.Millisecond
	}
	return q, nil
}

// Resolve asks for an address on an interface, and returns the link-layer
// address of the first that answers. Errors: ErrNoAnswer after all tries; the cause
// of ctx, at once when it ends; a Query that makes no message; those of the socket, of
// which ENETDOWN (the interface is down, or goes down) and EPERM (no CAP_NET_RAW) are
// the usual ones.
func Resolve(ctx context.Context, ifi Iface, q Query) (net.HardwareAddr, error) {
	q, err := q.normal()
	if err != nil {
		return nil, fmt.Errorf("%s: ask for %v: %w", ifi.Name, q.Dst, err)
	}
	s, err := open(ifi, true)
	if err != nil {
		return nil, err
	}
	defer s.close()
	question := ask(ifi.MAC, q.Src, q.Dst, q.VLAN)
	for range q.Tries {
		mac, err := s.try(ctx, question, q)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			return mac, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("%s: ask for %v: %w", ifi.Name, q.Dst, err)
		}
	}
	return nil, fmt.Errorf("%s: %v: %w", ifi.Name, q.Dst, ErrNoAnswer)
}

// try asks once, and reads until an answer or the end of the interval.
func (s *socket) try(ctx context.Context, question []byte, q Query) (net.HardwareAddr, error) {
	if err := s.setDeadline(time.Now().Add(q.Interval)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.setDeadline(time.Unix(1, 0)) }) // in the past: wakes the read
	defer stop()
	// A full queue (ENOBUFS) loses a question as the link may: the next try asks again.
	if err := s.write(question); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return nil, err
	}
	for {
		frame, tag, err := s.read()
		if err != nil {
			return nil, err
		}
		m, ok := parse(frame)
		if ok && m.answer && m.target == q.Dst && m.sender != nil && vlanID(tag) == vlanID(q.VLAN) {
			return m.sender, nil
		}
	}
}

// LocalMAC is a unicast MAC of local meaning (02:..., IEEE 802, section 8.2), drawn
// from seed: the same for the same seed.
func LocalMAC(seed uint64) net.HardwareAddr {
	z := seed + 0x9e3779b97f4a7c15 // splitmix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return net.HardwareAddr{2, byte(z >> 32), byte(z >> 24), byte(z >> 16), byte(z >> 8), byte(z)}
}
