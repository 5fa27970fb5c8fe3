package neigh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// ErrNoAnswer: nobody on the link says that it has the address.
var ErrNoAnswer = errors.New("nobody answers")

// Query asks for the link-layer address of Dst. The zero value of Tries and
// Interval means 3 and 300 ms.
type Query struct {
	Src, Dst netip.Addr
	VLAN     *VLAN
	Tries    int
	Interval time.Duration
}

// Resolve asks for an address on an interface, and returns the link-layer
// address of the first that answers. Errors: ErrNoAnswer after all tries, the
// cause of ctx, those of the socket.
func Resolve(ctx context.Context, ifi Iface, q Query) (net.HardwareAddr, error) {
	if q.Tries == 0 {
		q.Tries = 3
	}
	if q.Interval == 0 {
		q.Interval = 300 * time.Millisecond
	}
	s, err := open(ifi, true)
	if err != nil {
		return nil, err
	}
	defer s.close()
	stop := context.AfterFunc(ctx, func() { _ = s.setDeadline(time.Unix(1, 0)) })
	defer stop()
	question := ask(ifi.MAC, q.Src, q.Dst, q.VLAN)
	for range q.Tries {
		if err := s.write(question); err != nil {
			return nil, fmt.Errorf("%s: ask for %v: %w", ifi.Name, q.Dst, err)
		}
		if err := s.setDeadline(time.Now().Add(q.Interval)); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		mac, err := s.answer(q.Dst)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return mac, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, fmt.Errorf("%s: %v: %w", ifi.Name, q.Dst, ErrNoAnswer)
}

// answer reads until one tells of target.
func (s *socket) answer(target netip.Addr) (net.HardwareAddr, error) {
	for {
		frame, _, err := s.read()
		if err != nil {
			return nil, err
		}
		if m, ok := parse(frame); ok && m.answer && m.target == target && m.sender != nil {
			return m.sender, nil
		}
	}
}

// LocalMAC is a unicast MAC of local meaning (02:...), drawn from seed.
func LocalMAC(seed uint64) net.HardwareAddr {
	z := seed + 0x9e3779b97f4a7c15 // splitmix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return net.HardwareAddr{2, byte(z >> 32), byte(z >> 24), byte(z >> 16), byte(z >> 8), byte(z)}
}
