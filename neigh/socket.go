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

// open makes a socket for questions, or for answers, in the network namespace of
// the calling thread. It listens to all protocols, with a filter: where a frame
// has a tag, the kernel takes it away before the handlers of one protocol see it
// (__netif_receive_skb_core, net/core/dev.c).
func open(ifi Iface, answers bool) (*socket, error) {
	filter, err := bpf.Assemble(program(answers))
	if err != nil {
		return nil, err
	}
	dev := &net.Interface{Index: ifi.Index, Name: ifi.Name, HardwareAddr: ifi.MAC}
	conn, err := packet.Listen(dev, packet.Raw, unix.ETH_P_ALL, &packet.Config{Filter: filter})
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
		inner = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
		if inner == nil { // solicitations go to a multicast group for each address
			m := unix.PacketMreq{Ifindex: int32(ifi.Index), Type: unix.PACKET_MR_ALLMULTI}
			inner = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m)
		}
	})
	return errors.Join(err, inner)
}

// program lets questions, or answers, through. The kernel runs it with the frame
// at its MAC header, the outermost tag taken off.
func program(answers bool) []bpf.Instruction {
	operation, kind := uint32(1), uint32(solicitation)
	if answers {
		operation, kind = 2, advertisement
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherARP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: ethernetLen + 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: operation, SkipTrue: 7, SkipFalse: 8},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherIPv6, SkipTrue: 7},
		bpf.LoadAbsolute{Off: ethernetLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpv6, SkipTrue: 5},
		bpf.LoadAbsolute{Off: ethernetLen + 7, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: hopLimit, SkipTrue: 3},
		bpf.LoadAbsolute{Off: ethernetLen + ipv6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: kind, SkipTrue: 1},
		bpf.RetConstant{Val: 0x40000},
		bpf.RetConstant{Val: 0},
	}
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
