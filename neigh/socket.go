package neigh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Iface is the interface that messages go through. MAC is the address that
// they come from: the interface's own, or another.
type Iface struct {
	Index int
	Name  string
	MAC   net.HardwareAddr
}

// VLAN is an 802.1Q tag.
type VLAN struct {
	ID  uint16 // 0 to 4094
	PCP uint8  // 0 to 7
}

// socket receives ARP or NDP, and the VLAN tag that the kernel has taken off.
type socket struct {
	conn *packet.Conn
	raw  syscall.RawConn
	buf  [2048]byte
	oob  [128]byte
}

// open makes a socket for one EtherType, questions or answers, in the network
// namespace of the calling thread.
func open(ifi Iface, etherType uint16, answers bool) (*socket, error) {
	filter, err := bpf.Assemble(program(etherType, answers))
	if err != nil {
		return nil, err
	}
	dev := &net.Interface{Index: ifi.Index, Name: ifi.Name, HardwareAddr: ifi.MAC}
	conn, err := packet.Listen(dev, packet.Raw, int(etherType), &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("%s: ARP/NDP socket: %w", ifi.Name, err)
	}
	s := &socket{conn: conn}
	if err := s.setUp(ifi); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: ARP/NDP socket: %w", ifi.Name, err), conn.Close())
	}
	return s, nil
}

func (s *socket) setUp(ifi Iface) (err error) {
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		return err
	}
	var inner error
	err = s.raw.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
		if inner == nil { // solicitations go to a multicast group for each address
			m := unix.PacketMreq{Ifindex: int32(ifi.Index), Type: unix.PACKET_MR_ALLMULTI}
			inner = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m)
		}
	})
	return errors.Join(err, inner)
}

// program lets questions, or answers, of one EtherType through. The kernel runs
// it with the frame at its MAC header, the outermost tag taken off.
func program(etherType uint16, answers bool) []bpf.Instruction {
	const all = 0x40000
	checks := []struct{ off, size, want uint32 }{{ethernetLen + 6, 2, 1}} // ARP operation
	if answers {
		checks[0].want = 2
	}
	if etherType == etherIPv6 {
		kind := uint32(solicitation)
		if answers {
			kind = advertisement
		}
		checks = []struct{ off, size, want uint32 }{
			{ethernetLen + 6, 1, icmpv6}, {ethernetLen + 7, 1, hopLimit}, {ethernetLen + ipv6Len, 1, kind},
		}
	}
	var p []bpf.Instruction
	for i, c := range checks {
		p = append(p,
			bpf.LoadAbsolute{Off: c.off, Size: int(c.size)},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.want, SkipTrue: uint8(2*(len(checks)-1-i) + 1)})
	}
	return append(p, bpf.RetConstant{Val: all}, bpf.RetConstant{Val: 0})
}

// read waits for the next frame, until the deadline that setDeadline has set.
func (s *socket) read() (frame []byte, tag *VLAN, err error) {
	var n, oobn int
	var errno error
	err = s.raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, errno = unix.Recvmsg(int(fd), s.buf[:], s.oob[:], unix.MSG_DONTWAIT)
		return errno != unix.EAGAIN && errno != unix.EINTR
	})
	if err = errors.Join(err, errno); err != nil {
		return nil, nil, err
	}
	return s.buf[:n], vlanTag(s.oob[:oobn]), nil
}

// vlanTag reads the tag out of struct tpacket_auxdata, linux/if_packet.h:
// tp_status at 0, tp_vlan_tci at 16.
func vlanTag(oob []byte) *VLAN {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		if binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			tci := binary.NativeEndian.Uint16(m.Data[16:])
			return &VLAN{ID: tci & 0xfff, PCP: uint8(tci >> 13)}
		}
	}
	return nil
}

func (s *socket) write(frame []byte) error {
	_, err := s.conn.WriteTo(frame, &packet.Addr{HardwareAddr: net.HardwareAddr(frame[:6])})
	return err
}

func (s *socket) setDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

func (s *socket) close() error { return s.conn.Close() }
