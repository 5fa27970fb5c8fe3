// Package sock is the AF_PACKET and AF_XDP sockets of the rings: bound to an
// interface, and with names that their errors carry.
package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
)

// Socket is one socket of one queue. Owned as the ring is.
type Socket struct {
	FD    int    // -1: none
	Name  string // of the interface, for errors
	Queue int    // for errors
}

// Packet opens an AF_PACKET socket that is not yet bound: with protocol 0 it has
// no receive hook.
func Packet(name string, queue int) (*Socket, error) {
	s := &Socket{FD: -1, Name: name, Queue: queue}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, s.Errorf("socket(AF_PACKET)", err)
	}
	s.FD = fd
	return s, nil
}

// XDP opens an AF_XDP socket that is not yet bound.
func XDP(name string, queue int) (*Socket, error) {
	s := &Socket{FD: -1, Name: name, Queue: queue}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, s.Errorf("socket(AF_XDP)", err)
	}
	s.FD = fd
	return s, nil
}

// Bind has the socket send and receive on an interface; protocol 0: receive nothing.
func (s *Socket) Bind(ifindex int, protocol uint16) error {
	err := unix.Bind(s.FD, &unix.SockaddrLinklayer{Protocol: hton16(protocol), Ifindex: ifindex})
	if err != nil {
		return s.Errorf("bind", err)
	}
	return nil
}

// Shut keeps every frame out: a filter that takes no octet of any. The kernel
// counts such frames neither as seen nor as dropped.
func (s *Socket) Shut() error {
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	err := unix.SetsockoptSockFprog(s.FD, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
	if err != nil {
		return s.Errorf("SO_ATTACH_FILTER", err)
	}
	return nil
}

// SetInt sets an option of SOL_PACKET; option is its name.
func (s *Socket) SetInt(option string, opt, value int) error {
	if err := unix.SetsockoptInt(s.FD, unix.SOL_PACKET, opt, value); err != nil {
		return s.Errorf(option, err)
	}
	return nil
}

// Poll waits for events, up to max; nil also when none came. A device that is
// gone is ErrLinkDown.
func (s *Socket) Poll(events int16, max time.Duration) error {
	ts := unix.NsecToTimespec(int64(max))
	fds := [1]unix.PollFd{{Fd: int32(s.FD), Events: events}}
	_, err := unix.Ppoll(fds[:], &ts, nil)
	switch {
	case err == unix.EINTR:
		return nil
	case err != nil:
		return s.Errorf("poll", err)
	case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
		return s.Pending()
	}
	return nil
}

// Pending is the socket's own error, which reading clears.
func (s *Socket) Pending() error {
	v, err := unix.GetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && v != 0 {
		err = unix.Errno(v)
	}
	if err == nil {
		return nil
	}
	return s.Errorf("poll", err)
}

// Errorf names operation, interface and queue; errors that mean a lost link
// are ring.ErrLinkDown too.
func (s *Socket) Errorf(operation string, err error) error {
	for _, lost := range []error{unix.ENETDOWN, unix.ENXIO, unix.ENODEV} {
		if errors.Is(err, lost) {
			return fmt.Errorf("%s queue %d: %s: %w (%w)", s.Name, s.Queue, operation, ring.ErrLinkDown, err)
		}
	}
	return fmt.Errorf("%s queue %d: %s: %w", s.Name, s.Queue, operation, err)
}

func (s *Socket) Close() error {
	fd := s.FD
	s.FD = -1
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

// Experimental is the EtherType for local experiments (IEEE 802, clause 9). The
// kernel dissects the headers of each frame that is said to be IP, or that it
// reads the protocol of (packet_parse_headers, af_packet.c), for drivers that
// segment or checksum, which these frames need not: 500 instead of 540 ns a
// frame of 60 octets. What is in the frame stays as it is.
const Experimental = 0x88b5

// FrameOverhead is what the kernel charges a frame beyond its data: struct
// sk_buff and its linear part, 768 octets on x86-64; the rest is slack.
const FrameOverhead = 1024

// SendBuffer lets so many octets, those of every slot of a ring, be on its way at once, and no more:
// while less than half of the buffer is in use the kernel says that the socket is
// writable, and Wait would not wait for a ring that is full. The kernel doubles
// what it is told (socket(7)). Without CAP_NET_ADMIN net.core.wmem_max bounds it,
// and Kick says ErrBusy earlier.
func (s *Socket) SendBuffer(octets int) {
	octets /= 2
	if unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, octets) != nil {
		unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, octets)
	}
}

// Size is a number of octets as text.
func Size(octets int) string {
	if octets >= 1<<20 {
		return fmt.Sprintf("%d MiB", octets>>20)
	}
	return fmt.Sprintf("%d KiB", octets>>10)
}
