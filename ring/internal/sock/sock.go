package tpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
)

// socket is an AF_PACKET socket bound to an interface, and the names that its
// errors carry.
type socket struct {
	fd    int
	name  string
	queue int
}

// openSocket opens an AF_PACKET socket that is not yet bound: with protocol 0
// it has no receive hook.
func openSocket(name string, queue int) (*socket, error) {
	s := &socket{fd: -1, name: name, queue: queue}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, s.errorf("socket(AF_PACKET)", err)
	}
	s.fd = fd
	return s, nil
}

func (s *socket) bind(ifindex int, protocol uint16) error {
	err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: hton16(protocol), Ifindex: ifindex})
	if err != nil {
		return s.errorf("bind", err)
	}
	return nil
}

// shut keeps every frame out: a filter that takes no octet of any. The kernel
// counts such frames neither as seen nor as dropped.
func (s *socket) shut() error {
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
	if err != nil {
		return s.errorf("SO_ATTACH_FILTER", err)
	}
	return nil
}

func (s *socket) setInt(option string, opt, value int) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, opt, value); err != nil {
		return s.errorf(option, err)
	}
	return nil
}

// poll waits for events, up to max; nil also when none came. A device that is
// gone is ErrLinkDown.
func (s *socket) poll(events int16, max time.Duration) error {
	ts := unix.NsecToTimespec(int64(max))
	fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: events}}
	_, err := unix.Ppoll(fds[:], &ts, nil)
	switch {
	case err == unix.EINTR:
		return nil
	case err != nil:
		return s.errorf("poll", err)
	case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
		return s.pending()
	}
	return nil
}

// pending is the socket's own error, which reading clears.
func (s *socket) pending() error {
	v, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && v != 0 {
		err = unix.Errno(v)
	}
	if err == nil {
		return nil
	}
	return s.errorf("poll", err)
}

// errorf names operation, interface and queue; errors that mean a lost link
// are ring.ErrLinkDown too.
func (s *socket) errorf(operation string, err error) error {
	for _, lost := range []error{unix.ENETDOWN, unix.ENXIO, unix.ENODEV} {
		if errors.Is(err, lost) {
			return fmt.Errorf("%s queue %d: %s: %w (%w)", s.name, s.queue, operation, ring.ErrLinkDown, err)
		}
	}
	return fmt.Errorf("%s queue %d: %s: %w", s.name, s.queue, operation, err)
}

func (s *socket) close() error {
	fd := s.fd
	s.fd = -1
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

func hton16(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
