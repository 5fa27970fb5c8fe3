package gso

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
	"pktgen/ring/internal/sock"
)

// Layout is where the headers of the frames are, in octets from the destination
// MAC.
type Layout struct {
	IP, UDP int // UDP: its header ends where the payload begins
	Frame   int // length of a frame, without FCS
	IPv6    bool
}

const udpLen = 8

func (l Layout) payload() int { return l.UDP + udpLen }

// Options describe the sending end.
type Options struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queue     int    // worker number, for errors
	Layout    Layout
	Segments  int // frames of a batch, at most; 0: as many as there may be
}

// struct virtio_net_hdr (linux/virtio_net.h), of the machine's own byte order.
const (
	vnetLen    = 10
	vnetFlags  = 0
	vnetType   = 1
	vnetHdrLen = 2
	vnetSize   = 4
	vnetStart  = 6
	vnetOffset = 8

	needsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoNone   = 0 // VIRTIO_NET_HDR_GSO_NONE
	gsoUDP    = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

// maxSegments is UDP_MAX_SEGMENTS (linux/udp.h) of Linux 6.9 and later; it was 64
// before.
const maxSegments = 128

// ErrUnable: the kernel has no such frames.
var ErrUnable = errors.New("no UDP segmentation of packets from a socket (Linux 6.2)")

// most is how many segments this kernel allows.
func most() (int, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return 0, fmt.Errorf("uname: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("uname: release %q: %w", unix.ByteSliceToString(u.Release[:]), err)
	}
	switch v := major<<8 + minor; {
	case v < 6<<8+2:
		return 0, ErrUnable
	case v < 6<<8+9:
		return maxSegments / 2, nil
	}
	return maxSegments, nil
}

// maxPacket is the largest IP packet.
const maxPacket = 65535

// TX implements ring.TX. Its slots overlap: the octets of a slot before its
// payload belong to the payload of the slot before, and may not be written by
// anything but Prefill. So the frames are to have their transport checksum left to
// the kernel (frames.ChecksumPartial), and nothing that varies in their headers.
type TX struct {
	sock   *sock.Socket
	layout Layout
	stride int // octets of a payload

	mem   []byte // virtio_net_hdr, and the batch behind it
	slots [][]byte
	fixed uint32 // sum of the pseudo-header without its length

	committed int // slots of the batch that were committed and not yet sent
	counts    ring.TXCounts
}

var _ ring.TX = (*TX)(nil)

// Open opens a sending end on an interface of the calling thread's network
// namespace. Errors name the operation, the interface and the queue; ErrUnable.
func Open(o Options) (*TX, error) {
	n, err := most()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Interface, err)
	}
	if o.Segments <= 0 || o.Segments > n {
		o.Segments = n
	}
	s, err := sock.Packet(o.Interface, o.Queue)
	if err != nil {
		return nil, err
	}
	t := &TX{sock: s}
	if err := t.setUp(o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *TX) setUp(o Options) error {
	t.view(o.Layout, o.Segments)
	if err := t.sock.SetInt("PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	// Four batches on their way, so that one waits while another is sent.
	t.sock.SendBuffer(4 * len(t.slots) * (o.Layout.Frame + sock.FrameOverhead))
	// Not PACKET_QDISC_BYPASS: it sends frames to the driver uncut, which drops them.
	return t.sock.Bind(o.Index, 0) // the kernel needs to know the protocol: it reads it out of the frame
}

// view makes the batch.
func (t *TX) view(l Layout, segments int) {
	t.layout, t.stride = l, l.Frame-l.payload()
	n := max(1, min(segments, (maxPacket-(l.payload()-l.IP))/max(t.stride, 1)))
	t.mem = make([]byte, vnetLen+l.payload()+n*t.stride)
	t.slots = make([][]byte, n)
	for i := range t.slots {
		at := vnetLen + i*t.stride
		t.slots[i] = t.mem[at : at+l.Frame : at+l.Frame]
	}
}

// Prefill implements ring.TX. The headers of the batch are those of the first
// frame; all frames are to have the length of the layout.
func (t *TX) Prefill(fill func(slot []byte) int) {
	frame := make([]byte, t.layout.Frame)
	for i, s := range t.slots {
		if n := fill(frame); n != len(frame) {
			panic(fmt.Sprintf("gso: a frame of %d octets in a batch of %d", n, len(frame)))
		}
		if i == 0 {
			copy(s, frame)
		}
		copy(s[t.layout.payload():], frame[t.layout.payload():])
	}
	udp := t.slots[0][t.layout.UDP:]
	length := binary.BigEndian.Uint16(udp[4:])
	t.fixed = uint32(binary.BigEndian.Uint16(udp[6:])) + uint32(^length)
}

// Reserve implements ring.TX. What is committed is sent by one Kick, before more
// is lent.
func (t *TX) Reserve(max int) [][]byte {
	if t.committed > 0 {
		return nil
	}
	return t.slots[:min(max, len(t.slots))]
}

// Commit implements ring.TX.
func (t *TX) Commit(frames [][]byte) { t.committed = len(frames) }

// Kick implements ring.TX. The kernel copies the batch.
func (t *TX) Kick() error {
	if t.committed == 0 {
		return nil
	}
	b := t.batch(t.committed)
	errno := shm.Send(t.sock.FD, b, unix.MSG_DONTWAIT)
	switch errno {
	case 0:
		t.counts.Sent += uint64(t.committed)
		t.committed = 0
		return nil
	case unix.EAGAIN, unix.ENOBUFS:
		t.counts.Busy++
		return ring.ErrBusy
	case unix.EINTR:
		return ring.ErrBusy
	}
	return t.sock.Errorf("send", errno)
}

// batch writes the headers of a batch of n frames, and returns it.
func (t *TX) batch(n int) []byte {
	l := &t.layout
	b := t.mem[:vnetLen+l.payload()+n*t.stride]
	b[vnetFlags], b[vnetType] = needsCsum, gsoUDP
	if n == 1 {
		b[vnetType] = gsoNone
	}
	binary.NativeEndian.PutUint16(b[vnetHdrLen:], uint16(l.payload()))
	binary.NativeEndian.PutUint16(b[vnetSize:], uint16(t.stride))
	binary.NativeEndian.PutUint16(b[vnetStart:], uint16(l.UDP))
	binary.NativeEndian.PutUint16(b[vnetOffset:], 6)

	frame := b[vnetLen:]
	packet, datagram := len(frame)-l.IP, uint16(len(frame)-l.UDP)
	if l.IPv6 {
		binary.BigEndian.PutUint16(frame[l.IP+4:], uint16(packet-(l.UDP-l.IP)))
	} else {
		ip := frame[l.IP:]
		old := binary.BigEndian.Uint16(ip[2:])
		binary.BigEndian.PutUint16(ip[2:], uint16(packet))
		// RFC 1624, equation 3: HC' = ~(~HC + ~m + m')
		sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(^old) + uint32(packet)
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum))
	}
	binary.BigEndian.PutUint16(frame[l.UDP+4:], datagram)
	binary.BigEndian.PutUint16(frame[l.UDP+6:], fold(t.fixed+uint32(datagram)))
	return b
}

func fold(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Wait implements ring.TX.
func (t *TX) Wait(max time.Duration) error {
	if t.committed == 0 {
		return nil
	}
	return t.sock.Poll(unix.POLLOUT, max)
}

// Outstanding implements ring.TX.
func (t *TX) Outstanding() int { return t.committed }

// Counts implements ring.TX.
func (t *TX) Counts() ring.TXCounts { return t.counts }

// Close implements ring.TX.
func (t *TX) Close() error { return t.sock.Close() }
