package neigh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Iface is the interface that messages go through.
type Iface struct {
	Index int              // in the network namespace of the calling thread
	Name  string           // for errors
	MAC   net.HardwareAddr // messages come from it, and tell it: the interface's own or another, unicast
}

// VLAN is an 802.1Q tag.
type VLAN struct {
	ID  uint16 // 0 to 4094; 0 tells a priority only, which is no VLAN
	PCP uint8  // priority, 0 to 7
}

// vlanID is 0 where there is no VLAN.
func vlanID(tag *VLAN) uint16 {
	if tag == nil {
		return 0
	}
	return tag.ID
}

// socket sends ARP and NDP, and receives it with the VLAN tag that the kernel has
// taken off. Reads and writes belong to one goroutine at a time.
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
	if len(ifi.MAC) != 6 || ifi.MAC[0]&1 != 0 {
		return nil, fmt.Errorf("%s: ARP/NDP socket: %q is not a unicast Ethernet address", ifi.Name, ifi.MAC)
	}
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
		inner = os.NewSyscallError("PACKET_AUXDATA", unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
		if inner == nil { // Linux 4.20
			inner = os.NewSyscallError("PACKET_IGNORE_OUTGOING", unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
		}
		if inner == nil {
			m := unix.PacketMreq{Ifindex: int32(ifi.Index), Type: s.membership(ifi.MAC)}
			inner = os.NewSyscallError("PACKET_ADD_MEMBERSHIP", unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m))
		}
	})
	return errors.Join(err, inner)
}

// membership is what the interface has to let in: solicitations go to a multicast
// group for each address; frames to a MAC that is not its own are none of its
// business unless it is promiscuous. The kernel undoes it when the socket closes.
func (s *socket) membership(mac net.HardwareAddr) uint16 {
	if own, ok := s.conn.LocalAddr().(*packet.Addr); ok && bytes.Equal(own.HardwareAddr, mac) {
		return unix.PACKET_MR_ALLMULTI
	}
	return unix.PACKET_MR_PROMISC
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

// read waits for the next frame, until the deadline that setDeadline has set. The
// frame is valid until the next read. The tag is nil where there was none.
func (s *socket) read() (frame []byte, tag *VLAN, err error) {
	for {
		var n, oobn int
		var errno error
		err = s.raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, errno = unix.Recvmsg(int(fd), s.buf[:], s.oob[:], unix.MSG_DONTWAIT)
			return errno != unix.EAGAIN && errno != unix.EINTR
		})
		if err == nil {
			err = os.NewSyscallError("recvmsg", errno)
		}
		if err != nil {
			return nil, nil, err
		}
		if tag, ok := vlanTag(s.oob[:oobn]); ok {
			return s.buf[:n], tag, nil
		}
	}
}

// vlanTag reads the tag out of struct tpacket_auxdata, linux/if_packet.h:
// tp_status at 0, tp_vlan_tci at 16, tp_vlan_tpid at 18. It is false for a tag
// other than 802.1Q: an answer with a tag of another kind would go elsewhere.
func vlanTag(oob []byte) (tag *VLAN, ok bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, false
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status, tci := binary.NativeEndian.Uint32(m.Data), binary.NativeEndian.Uint16(m.Data[16:])
		switch {
		case status&unix.TP_STATUS_VLAN_VALID == 0:
			return nil, true
		case status&unix.TP_STATUS_VLAN_TPID_VALID != 0 && binary.NativeEndian.Uint16(m.Data[18:]) != etherVLAN:
			return nil, false
		}
		return &VLAN{ID: tci & 0xfff, PCP: uint8(tci >> 13)}, true
	}
	return nil, true
}

func (s *socket) write(frame []byte) error {
	_, err := s.conn.WriteTo(frame, &packet.Addr{HardwareAddr: net.HardwareAddr(frame[:6])})
	return err
}

// setDeadline is for read and write. Safe from any goroutine.
func (s *socket) setDeadline(t time.Time) error { return s.conn.SetDeadline(t) }

func (s *socket) close() error { return s.conn.Close() }
