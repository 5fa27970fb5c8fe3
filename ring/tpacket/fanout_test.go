package tpacket

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// packet is an IPv4 or IPv6 packet, from its header on, with options octets of
// IPv4 options and a payload behind an eight-octet transport header.
func packet(etherType uint16, options int, protocol byte, payload []byte) []byte {
	var ip []byte
	switch etherType {
	case unix.ETH_P_IP:
		ip = make([]byte, 20+options)
		ip[0], ip[9] = 0x40|byte(len(ip)/4), protocol
	case unix.ETH_P_IPV6:
		ip = make([]byte, 40)
		ip[0], ip[6] = 0x60, protocol
	default:
		ip = make([]byte, 28)
	}
	return append(append(ip, make([]byte, 8)...), payload...)
}

// stamp begins the payload of a stream's frame.
func stamp(magic, stream uint16) []byte {
	b := make([]byte, 18)
	binary.BigEndian.PutUint16(b, magic)
	binary.BigEndian.PutUint16(b[2:], 0xbeef) // the run
	binary.BigEndian.PutUint16(b[4:], stream)
	return b
}

// TestStreamProgram runs the program in another machine than the kernel's. That
// one has no SKF_AD_PROTOCOL, so the first instruction is replaced by its result.
func TestStreamProgram(t *testing.T) {
	const v4, v6, arp, tagged = unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP, unix.ETH_P_8021Q
	for _, c := range []struct {
		name      string
		etherType uint16
		packet    []byte
		want      int
	}{
		{"IPv4", v4, packet(v4, 0, 17, stamp(0x9e37, 5)), 5},
		{"IPv4, closing", v4, packet(v4, 0, 17, stamp(0x9e38, 6)), 6},
		{"IPv4, options", v4, packet(v4, 40, 17, stamp(0x9e37, 7)), 7},
		{"IPv6", v6, packet(v6, 0, 17, stamp(0x9e37, 0xfffe)), 0xfffe},
		{"IPv6, closing", v6, packet(v6, 0, 17, stamp(0x9e38, 9)), 9},
		{"no magic", v4, packet(v4, 0, 17, stamp(0x9e36, 5)), 0},
		{"magic reversed", v6, packet(v6, 0, 17, stamp(0x379e, 5)), 0},
		{"TCP", v4, packet(v4, 0, 6, stamp(0x9e37, 5)), 0},
		{"TCP over IPv6", v6, packet(v6, 0, 6, stamp(0x9e37, 5)), 0},
		{"ARP", arp, packet(arp, 0, 0, stamp(0x9e37, 5)), 0},
		{"a second tag", tagged, packet(v4, 0, 17, stamp(0x9e37, 5)), 0},
		{"cut in the stamp", v4, packet(v4, 0, 17, stamp(0x9e37, 5))[:33], 0},
		{"cut in the IPv4 header", v4, packet(v4, 0, 17, nil)[:9], 0},
		{"nothing", v4, nil, 0},
	} {
		prog := streamProgram()
		raw := make([]bpf.RawInstruction, len(prog))
		for i, p := range prog {
			raw[i] = bpf.RawInstruction{Op: p.Code, Jt: p.Jt, Jf: p.Jf, K: p.K}
		}
		raw[0] = bpf.RawInstruction{Op: unix.BPF_LD | unix.BPF_W | unix.BPF_IMM, K: uint32(c.etherType)}
		insns, ok := bpf.Disassemble(raw)
		if !ok {
			t.Fatal("not every instruction is known")
		}
		vm, err := bpf.NewVM(insns)
		if err != nil {
			t.Fatal(err)
		}
		got, err := vm.Run(slices.Clone(c.packet))
		if err != nil || got != c.want {
			t.Errorf("%s: stream %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}
