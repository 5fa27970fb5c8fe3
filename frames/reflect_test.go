package frames

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"pktgen/units"
)

// roundTripSpec is any frame that a reflector sends back.
func roundTripSpec(t *rapid.T) Spec {
	s := Spec{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.19.7.2"),
		SrcPort: rapid.Uint16().Draw(t, "sport"), DstPort: rapid.Uint16().Draw(t, "dport"),
		Stamp: true, RoundTrip: true, RunID: rapid.Uint16().Draw(t, "run"), StreamID: rapid.Uint16().Draw(t, "stream"),
	}
	if rapid.Bool().Draw(t, "v6") {
		s.Src, s.Dst = netip.MustParseAddr("2001:2::1"), netip.MustParseAddr("2001:2::7:2")
	} else if rapid.Bool().Draw(t, "no checksum") {
		s.UDPChecksum = ChecksumZero
	}
	if rapid.Bool().Draw(t, "tag") {
		s.VLAN = &VLAN{ID: 42, PCP: 3}
	}
	s.Size = s.MinSize() + units.FrameSize(rapid.IntRange(0, 200).Draw(t, "more"))
	return s
}

// TestReflect: a frame sent back has its ends changed over, the times in it, and
// checksums that gopacket's own agree with; a tag that was taken off is there again.
func TestReflect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := roundTripSpec(t)
		tm, err := s.Compile()
		if err != nil {
			t.Fatal(err)
		}
		frame := tm.Bytes()
		seq, t1 := rapid.Uint64Range(0, 1<<32-1).Draw(t, "seq"), rapid.Int64Range(1, 1<<62).Draw(t, "t1")
		t2, t3 := rapid.Int64Range(1, 1<<62).Draw(t, "t2"), rapid.Int64Range(1, 1<<62).Draw(t, "t3")
		tm.Apply(frame, seq, t1)
		var tpid, tci uint16
		if s.VLAN != nil && rapid.Bool().Draw(t, "taken off") {
			tpid, tci = binary.BigEndian.Uint16(frame[12:]), binary.BigEndian.Uint16(frame[14:])
			frame = append(frame[:12:12], frame[16:]...)
		}
		sent := bytes.Clone(frame)
		var p Parsed
		if ParseStamp(frame, &p) != KindTest {
			t.Fatal("not a test frame")
		}
		partial := s.UDPChecksum == ChecksumFull && rapid.Bool().Draw(t, "partial")
		if partial { // the kernel's own senders leave the pseudo-header's sum there
			binary.BigEndian.PutUint16(frame[p.L4+6:], 0x1234)
			sent = bytes.Clone(frame)
		}
		r, short, ok := Reflect(make([]byte, 2000), frame, &p, tpid, tci, partial, t2)
		if !ok || short {
			t.Fatalf("not sent back: short %v", short)
		}
		back := r.Sent(t3)
		if !bytes.Equal(frame, sent) {
			t.Error("the received frame was changed")
		}
		if len(back) != s.Size.Socket() {
			t.Fatalf("%d octets, want %d", len(back), s.Size.Socket())
		}
		if kind := ParseStamp(back, &p); kind != KindReturned {
			t.Fatalf("kind %d", kind)
		}
		want := Stamp{Kind: KindReturned, RunID: s.RunID, StreamID: s.StreamID, Seq: uint32(seq), TimeNs: t1, ReceivedNs: t2, ReturnedNs: t3}
		if p.Stamp != want {
			t.Errorf("stamp %+v, want %+v", p.Stamp, want)
		}
		if !VerifyChecksums(back, &p) {
			t.Error("checksums are wrong")
		}
		pk := gopacket.NewPacket(back, layers.LayerTypeEthernet, gopacket.Default)
		eth := pk.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		udp := pk.Layer(layers.LayerTypeUDP).(*layers.UDP)
		net := pk.NetworkLayer().NetworkFlow()
		if !bytes.Equal(eth.SrcMAC, s.DstMAC) || !bytes.Equal(eth.DstMAC, s.SrcMAC) || udp.SrcPort != layers.UDPPort(s.DstPort) || udp.DstPort != layers.UDPPort(s.SrcPort) ||
			!bytes.Equal(net.Src().Raw(), s.Dst.AsSlice()) || !bytes.Equal(net.Dst().Raw(), s.Src.AsSlice()) {
			t.Errorf("%v", pk)
		}
		if tag, _ := pk.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q); (tag != nil) != (s.VLAN != nil) || tag != nil && (tag.VLANIdentifier != 42 || tag.Priority != 3) {
			t.Errorf("tag %+v", tag)
		}
		if (udp.Checksum == 0) != (s.UDPChecksum == ChecksumZero) {
			t.Errorf("checksum %#x", udp.Checksum)
		}
		if _, _, ok := Reflect(make([]byte, 2000), back, &p, 0, 0, false, t2); ok {
			t.Error("sent back twice")
		}
	})
}

// TestReflectNot: what is not to be sent back, or only once.
func TestReflectNot(t *testing.T) {
	spec := Spec{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Stamp: true,
	}
	spec.Size = spec.MinSize()
	short, err := spec.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var p Parsed
	frame := short.Bytes()
	ParseStamp(frame, &p)
	if _, isShort, ok := Reflect(make([]byte, 100), frame, &p, 0, 0, false, 1); ok || !isShort {
		t.Errorf("a frame of 64 octets: %v, short %v", ok, isShort)
	}
	closing := short.Bytes()
	short.ApplyClosing(closing, 3, 1000)
	ParseStamp(closing, &p)
	r, _, ok := Reflect(make([]byte, 100), closing, &p, 0, 0, false, 1)
	if !ok {
		t.Fatal("a closing frame is not sent back")
	}
	back := bytes.Clone(r.Sent(2))
	if ParseStamp(back, &p) != KindClosing || p.Stamp.Count != 1000 || !VerifyChecksums(back, &p) {
		t.Errorf("closing frame %+v", p.Stamp)
	}
	if _, _, ok := Reflect(make([]byte, 100), back, &p, 0, 0, false, 1); ok {
		t.Error("a closing frame is sent back twice")
	}
	spec.RoundTrip = true
	if spec.MinSize() != 80 {
		t.Errorf("least size %d, want 80", spec.MinSize())
	}
	spec.Size = 80
	long, err := spec.Compile()
	if err != nil {
		t.Fatal(err)
	}
	frame = long.Bytes()
	ParseStamp(frame, &p)
	if _, isShort, ok := Reflect(make([]byte, 75), frame, &p, 0, 0, false, 1); ok || isShort {
		t.Errorf("a slot too small: %v, short %v", ok, isShort)
	}
	slot := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		ParseStamp(frame, &p)
		if r, _, ok := Reflect(slot, frame, &p, 0, 0, false, 1); ok {
			r.Sent(2)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// stampSender is a Session-Sender's packet in a frame, built by gopacket.
func stampSender(t testing.TB, v6 bool, payload []byte) []byte {
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: 5000, DstPort: STAMPPort}
	var ip gopacket.SerializableLayer
	if v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		l := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("2001:2::1"), DstIP: net.ParseIP("2001:2::2")}
		_ = udp.SetNetworkLayerForChecksum(l)
		ip = l
	} else {
		l := &layers.IPv4{Version: 4, TTL: 255, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{198, 18, 0, 1}, DstIP: net.IP{198, 18, 0, 2}}
		_ = udp.SetNetworkLayerForChecksum(l)
		ip = l
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestSTAMP: the answer to a Session-Sender's packet, field by field by hand
// (RFC 8762, sections 4.2.1 and 4.3.1).
func TestSTAMP(t *testing.T) {
	const t2, t3 = 1_800_000_000_500_000_000, 1_800_000_001_250_000_000 // half a second, a quarter
	for _, v6 := range []bool{false, true} {
		for _, ptp := range []bool{false, true} {
			payload := make([]byte, 60)
			binary.BigEndian.PutUint32(payload, 7)
			binary.BigEndian.PutUint64(payload[4:], 0x1122334455667788)
			binary.BigEndian.PutUint16(payload[12:], 0x8a05)
			if ptp {
				payload[12] |= 1 << 6
			}
			for i := 44; i < 60; i++ {
				payload[i] = byte(i)
			}
			frame := stampSender(t, v6, payload)
			var p Parsed
			if !ParseSTAMP(frame, STAMPPort, &p) {
				t.Fatal("not taken for a STAMP packet")
			}
			r, ok := ReflectSTAMP(make([]byte, 200), frame, &p, 0, 0, false, t2, false)
			if !ok {
				t.Fatal("not answered")
			}
			back := r.Sent(t3)
			pk := gopacket.NewPacket(back, layers.LayerTypeEthernet, gopacket.Default)
			udp := pk.Layer(layers.LayerTypeUDP).(*layers.UDP)
			if udp.SrcPort != STAMPPort || udp.DstPort != 5000 || !VerifyChecksums(back, &p) {
				t.Errorf("ports %v to %v", udp.SrcPort, udp.DstPort)
			}
			u32, u64 := binary.BigEndian.Uint32, binary.BigEndian.Uint64
			b := udp.Payload
			// NTP: seconds since 1900, halves and quarters of 2^32.
			wantT3, wantT2 := uint64(1_800_000_001+2_208_988_800)<<32|1<<30, uint64(1_800_000_000+2_208_988_800)<<32|1<<31
			wantError := uint16(0x3f01)
			if ptp {
				wantT3, wantT2 = 1_800_000_001<<32|250_000_000, 1_800_000_000<<32|500_000_000
				wantError = 0x7f01
			}
			if len(b) != 60 || u32(b) != 7 || u64(b[4:]) != wantT3 || binary.BigEndian.Uint16(b[12:]) != wantError || b[14] != 0 || b[15] != 0 ||
				u64(b[16:]) != wantT2 || u32(b[24:]) != 7 || u64(b[28:]) != 0x1122334455667788 || !bytes.Equal(b[36:38], payload[12:14]) ||
				b[38] != 0 || b[39] != 0 || b[40] != 255 || b[41] != 0 || b[42] != 0 || b[43] != 0 || !bytes.Equal(b[44:], payload[44:]) {
				t.Errorf("v6 %v, PTP %v: % x", v6, ptp, b)
			}
		}
	}
	var p Parsed
	for name, frame := range map[string][]byte{
		"short": stampSender(t, false, make([]byte, 43)), "nothing": nil,
	} {
		if ParseSTAMP(frame, STAMPPort, &p) {
			t.Errorf("%s: taken for a STAMP packet", name)
		}
	}
	if frame := stampSender(t, true, make([]byte, 44)); ParseSTAMP(frame, 863, &p) || !ParseSTAMP(frame, STAMPPort, &p) {
		t.Error("the port is not looked at")
	}
}

// FuzzReflect: no frame makes it panic, and what is sent back is whole.
func FuzzReflect(f *testing.F) {
	f.Add(stampSender(f, false, make([]byte, 44)), uint16(0))
	f.Add(stampSender(f, true, append([]byte{0x9e, 0x37}, make([]byte, 50)...)), uint16(0x8100))
	f.Fuzz(func(t *testing.T, frame []byte, tpid uint16) {
		var p Parsed
		slot := make([]byte, 300)
		if ParseSTAMP(frame, STAMPPort, &p) {
			good := VerifyChecksums(frame, &p)
			if r, ok := ReflectSTAMP(slot, frame, &p, tpid, 1, false, 2, true); ok {
				back := r.Sent(3)
				if tpid == 0 && len(back) != len(frame) {
					t.Errorf("%d octets of %d", len(back), len(frame))
				}
				if tpid == 0 && good && !VerifyChecksums(back, &p) {
					t.Error("the checksum is wrong")
				}
			}
			return
		}
		if kind := ParseStamp(frame, &p); kind == KindTest || kind == KindClosing {
			good := VerifyChecksums(frame, &p)
			if r, _, ok := Reflect(slot, frame, &p, tpid, 1, false, 2); ok {
				back := r.Sent(3)
				if tpid == 0 {
					if k := ParseStamp(back, &p); k != KindReturned && k != KindClosing {
						t.Errorf("kind %d", k)
					}
					if good && !VerifyChecksums(back, &p) {
						t.Error("the checksum is wrong")
					}
				}
			}
		}
	})
}
