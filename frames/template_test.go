package frames

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"pktgen/units"
)

// The octets of frames that another tool made: see testdata/vectors.trafgen.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.hex")
	if err != nil {
		t.Fatal(err)
	}
	const now = 0x187d1f2ea5b6c7d8
	v4, v6, tagged4 := testSpec(false, false), testSpec(true, false), testSpec(false, true)
	tagged6 := testSpec(true, true)
	tagged6.VLAN, tagged6.TOS, tagged6.TTL = &VLAN{ID: 4094, DEI: true}, 0xb8, 3
	flows := v4
	flows.Size, flows.TOS, flows.TTL, flows.Flows = 128, 0xb8, 1, 100
	zero := v4
	zero.UDPChecksum = ChecksumZero
	for i, c := range []struct {
		name    string
		spec    Spec
		n       uint64
		closing bool
	}{
		{name: "ipv4", spec: v4, n: 5},
		{name: "ipv4 tagged", spec: tagged4, n: 1<<33 - 1},
		{name: "ipv6", spec: v6, n: 5},
		{name: "ipv6 tagged", spec: tagged6, n: 5},
		{name: "ipv4 128 flow 42", spec: flows, n: 70042},
		{name: "ipv4 no checksum", spec: zero, n: 5},
		{name: "ipv4 closing", spec: v4, n: 2, closing: true},
		{name: "ipv6 closing", spec: v6, n: 2, closing: true},
	} {
		want, err := hex.DecodeString(strings.Fields(string(text))[i])
		if err != nil {
			t.Fatal(err)
		}
		tm := compile(t, c.spec)
		got := tm.Bytes()
		tm.Apply(got, 99999, 99999) // an earlier frame leaves no trace
		if c.closing {
			tm.ApplyClosing(got, uint32(c.n), 1e10)
		} else {
			tm.Apply(got, c.n, now)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
}

// checkFrame makes frame n of a spec and takes it apart with gopacket: each
// field is the spec's, and gopacket, putting the headers together again with
// lengths and checksums of its own, comes to the same octets.
func checkFrame(t rapid.TB, s Spec, n uint64, nowNs int64) {
	t.Helper()
	tm, err := s.Compile()
	if err != nil {
		t.Fatal(err)
	}
	slot := bytes.Repeat([]byte{0xa5}, tm.Len()+8) // as a ring's slot: longer than the frame
	copy(slot, tm.Bytes())
	tm.Apply(slot, n/2+1, ^nowNs)
	tm.Apply(slot, n, nowNs)
	frame := slot[:tm.Len()]
	if !bytes.Equal(slot[tm.Len():], bytes.Repeat([]byte{0xa5}, 8)) {
		t.Fatalf("%+v: Apply wrote behind the frame: %x", s, slot[tm.Len():])
	}

	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	if e := packet.ErrorLayer(); e != nil && packet.Layer(layers.LayerTypeUDP) == nil {
		t.Fatalf("%+v: gopacket: %v", s, e.Error())
	}
	got := Spec{Size: units.FromSocket(len(frame)), Flows: s.Flows, UDPChecksum: s.UDPChecksum, Stamp: s.Stamp, RunID: s.RunID, StreamID: s.StreamID}
	var again []gopacket.SerializableLayer
	var network gopacket.NetworkLayer
	var payload []byte
	for _, l := range packet.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			got.SrcMAC, got.DstMAC = l.SrcMAC, l.DstMAC
			again = append(again, l)
		case *layers.Dot1Q:
			got.VLAN = &VLAN{ID: l.VLANIdentifier, PCP: l.Priority, DEI: l.DropEligible}
			again = append(again, l)
		case *layers.IPv4:
			got.TTL, got.TOS = l.TTL, l.TOS
			got.Src, got.Dst = address(l.SrcIP), address(l.DstIP)
			if l.Flags != layers.IPv4DontFragment || l.FragOffset != 0 || l.IHL != 5 {
				t.Fatalf("%+v: IPv4 header %+v", s, l)
			}
			network = l
			again = append(again, l)
		case *layers.IPv6:
			got.TTL, got.TOS = l.HopLimit, l.TrafficClass
			got.Src, got.Dst = address(l.SrcIP), address(l.DstIP)
			network = l
			again = append(again, l)
		case *layers.UDP:
			got.SrcPort, got.DstPort = uint16(l.SrcPort), uint16(l.DstPort)
			if (l.Checksum == 0) != (s.UDPChecksum == ChecksumZero) {
				t.Fatalf("%+v: UDP checksum %#04x", s, l.Checksum)
			}
			if err := l.SetNetworkLayerForChecksum(network); err != nil {
				t.Fatal(err)
			}
			payload = l.Payload
			again = append(again, l)
		}
	}
	want := s
	if want.TTL == 0 {
		want.TTL = 64
	}
	if s.Flows > 1 {
		want.SrcPort += uint16(n % uint64(s.Flows))
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Fatalf("frame %d: -spec +frame\n%s", n, diff)
	}

	wantPayload := make([]byte, s.Size.Socket()-s.headers())
	if s.Stamp {
		b := binary.BigEndian.AppendUint16(wantPayload[:0], 0x9e37)
		b = binary.BigEndian.AppendUint16(b, s.RunID)
		b = binary.BigEndian.AppendUint16(b, s.StreamID)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		binary.BigEndian.AppendUint64(b, uint64(nowNs))
	}
	if !bytes.Equal(payload, wantPayload) {
		t.Fatalf("%+v frame %d: payload %x, want %x", s, n, payload, wantPayload)
	}

	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, append(again, gopacket.Payload(payload))...); err != nil {
		t.Fatal(err)
	}
	twin := buf.Bytes()
	if sum := twin[s.headers()-2:][:2]; s.UDPChecksum == ChecksumZero || (sum[0] == 0 && sum[1] == 0) {
		// gopacket writes the computed 0 as 0.
		v := uint16(0xffff)
		if s.UDPChecksum == ChecksumZero {
			v = 0
		}
		binary.BigEndian.PutUint16(sum, v)
	}
	if !bytes.Equal(frame, twin) {
		t.Fatalf("%+v frame %d:\n  ours %x\nthe twin's %x", s, n, frame, twin)
	}

	// The receiving side comes to the same.
	var p Parsed
	kind := ParseStamp(frame, &p)
	if !s.Stamp {
		if kind != KindOther {
			t.Fatalf("%+v: no stamp, yet %+v", s, p)
		}
		return
	}
	wantStamp := Stamp{Kind: KindTest, RunID: s.RunID, StreamID: s.StreamID, Seq: uint32(n), TimeNs: nowNs}
	if kind != KindTest || p.Stamp != wantStamp || p.Payload != s.headers() || p.V6 != s.Src.Is6() || p.End != len(frame) {
		t.Fatalf("%+v frame %d: read as %v %+v", s, n, kind, p)
	}
	if !VerifyChecksums(frame, &p) {
		t.Fatalf("%+v frame %d: VerifyChecksums says no: %x", s, n, frame)
	}
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a
}

func drawSpec(t *rapid.T) Spec {
	s := Spec{
		SrcMAC: rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "srcmac"), DstMAC: rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "dstmac"),
		SrcPort: rapid.Uint16().Draw(t, "sport"), DstPort: rapid.Uint16().Draw(t, "dport"),
		TTL: rapid.Byte().Draw(t, "ttl"), TOS: rapid.Byte().Draw(t, "tos"),
		Stamp: rapid.Bool().Draw(t, "stamp"), RunID: rapid.Uint16().Draw(t, "run"), StreamID: rapid.Uint16().Draw(t, "stream"),
	}
	octets := 4
	if rapid.Bool().Draw(t, "v6") {
		octets = 16
	} else if rapid.Bool().Draw(t, "nosum") {
		s.UDPChecksum = ChecksumZero
	}
	s.Src = address(rapid.SliceOfN(rapid.Byte(), octets, octets).Draw(t, "src"))
	s.Dst = address(rapid.SliceOfN(rapid.Byte(), octets, octets).Draw(t, "dst"))
	if rapid.Bool().Draw(t, "tagged") {
		s.VLAN = &VLAN{ID: rapid.Uint16Range(0, 4094).Draw(t, "vlan"), PCP: rapid.Uint8Range(0, 7).Draw(t, "pcp"), DEI: rapid.Bool().Draw(t, "dei")}
	}
	s.Flows = rapid.Uint32Range(0, 1<<16-uint32(s.SrcPort)).Draw(t, "flows")
	s.Size = s.MinSize() + units.FrameSize(rapid.IntRange(0, 1500).Draw(t, "more"))
	return s
}

func TestApplyAgainstGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkFrame(t, drawSpec(t), rapid.Uint64().Draw(t, "n"), rapid.Int64().Draw(t, "now"))
	})
}

// Among 65536 sequence numbers in a row one makes the computed checksum 0, which
// is sent as ffff, since 0 says that there is none (RFC 768; RFC 8200, section 8.1).
func TestChecksumNeverZero(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := testSpec(v6, false)
		tm := compile(t, s)
		slot := tm.Bytes()
		ones := 0
		for n := range uint64(65536) {
			tm.Apply(slot, n, 12345)
			switch binary.BigEndian.Uint16(slot[s.headers()-2:]) {
			case 0:
				t.Fatalf("v6=%v frame %d: checksum 0", v6, n)
			case 0xffff:
				ones++
				checkFrame(t, s, n, 12345)
			}
		}
		if ones == 0 {
			t.Errorf("v6=%v: no frame with the checksum ffff", v6)
		}
	}
}

// The checksum that Apply makes from the fixed sum is the one that equation 3
// of RFC 1624 makes from the frame before: HC' = ~(~HC + ~m + m').
func TestApplyAgainstRFC1624(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpec(t)
		s.UDPChecksum, s.Stamp = ChecksumFull, true
		s.Size = s.MinSize()
		tm, err := s.Compile()
		if err != nil {
			t.Fatal(err)
		}
		before := tm.Bytes()
		after := tm.Bytes()
		tm.Apply(before, rapid.Uint64().Draw(t, "n1"), rapid.Int64().Draw(t, "now1"))
		tm.Apply(after, rapid.Uint64().Draw(t, "n2"), rapid.Int64().Draw(t, "now2"))
		at := s.headers() - 2
		sum := uint64(^binary.BigEndian.Uint16(before[at:]))
		for i := 0; i < len(after); i += 2 {
			if i != at {
				sum += uint64(^binary.BigEndian.Uint16(before[i:])) + uint64(binary.BigEndian.Uint16(after[i:]))
			}
		}
		// Modulo ffff: both 0 and ffff stand for zero, and UDP sends ffff only.
		if got, want := binary.BigEndian.Uint16(after[at:]), ^slowFold(sum); got%0xffff != want%0xffff {
			t.Fatalf("%+v: checksum %#04x, by RFC 1624 %#04x", s, got, want)
		}
	})
}

func slowFold(sum uint64) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Every flow has its turn, in the order of the frames.
func TestFlows(t *testing.T) {
	s := testSpec(false, false)
	s.SrcPort, s.Flows = 65533, 3
	tm := compile(t, s)
	slot := tm.Bytes()
	for n, want := range []uint16{65533, 65534, 65535, 65533, 65534} {
		tm.Apply(slot, uint64(n), 0)
		if got := binary.BigEndian.Uint16(slot[34:]); got != want {
			t.Errorf("frame %d: source port %d, want %d", n, got, want)
		}
	}
}

func TestClosing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpec(t)
		s.Stamp = true
		s.Size = s.MinSize()
		tm, err := s.Compile()
		if err != nil {
			t.Fatal(err)
		}
		repeat, count := rapid.Uint32().Draw(t, "repeat"), rapid.Uint64().Draw(t, "count")
		slot := tm.Bytes()
		tm.Apply(slot, 12345, 67890)
		tm.ApplyClosing(slot, repeat, count)
		var p Parsed
		kind := ParseStamp(slot, &p)
		want := Stamp{Kind: KindClosing, RunID: s.RunID, StreamID: s.StreamID, Seq: repeat, Count: count}
		if kind != KindClosing || p.Stamp != want || !VerifyChecksums(slot, &p) {
			t.Fatalf("%+v: read as %v %+v, want %+v", s, kind, p, want)
		}
		again := append([]byte(nil), slot...)
		tm.ApplyClosing(again, repeat, count)
		if !bytes.Equal(again, slot) {
			t.Fatalf("a second closing frame in the same slot differs:\n%x\n%x", slot, again)
		}
	})
}

func TestClosingNeedsStamp(t *testing.T) {
	s := testSpec(false, false)
	s.Stamp = false
	tm := compile(t, s)
	slot := tm.Bytes()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if !bytes.Equal(slot, tm.Bytes()) {
			t.Error("the frame was written to")
		}
	}()
	tm.ApplyClosing(slot, 0, 0)
}

// The prototype is frame 0 sent at time 0, and a copy of its own.
func TestBytes(t *testing.T) {
	tm := compile(t, testSpec(true, true))
	a := tm.Bytes()
	tm.Apply(a, 0, 0)
	if !bytes.Equal(a, tm.Bytes()) {
		t.Error("the prototype is not frame 0 at time 0")
	}
	clear(a)
	if bytes.Equal(a, tm.Bytes()) {
		t.Error("writing to Bytes changed the template")
	}
}

func TestEdits(t *testing.T) {
	s := testSpec(false, false)
	s.Flows = 10
	want := " 34 2 source port 1024..1033\n 48 4 sequence number\n 52 8 time sent\n 40 2 UDP checksum\n"
	if got := compile(t, s).Edits(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.Flows, s.Stamp, s.UDPChecksum = 0, false, ChecksumZero
	if got := compile(t, s).Edits(); got != "" {
		t.Errorf("%q, want no rows: all frames are the same", got)
	}
}

func TestAllocs(t *testing.T) {
	s := testSpec(true, true)
	s.Flows = 10
	tm := compile(t, s)
	slot := tm.Bytes()
	n := uint64(0)
	var p Parsed
	for name, f := range map[string]func(){
		"Apply":        func() { n++; tm.Apply(slot, n, math.MaxInt64) },
		"ApplyClosing": func() { tm.ApplyClosing(slot, 1, 2) },
		"ParseStamp":   func() { ParseStamp(slot, &p) },
		"VerifyChecksums": func() {
			ParseStamp(slot, &p)
			VerifyChecksums(slot, &p)
		},
	} {
		if got := testing.AllocsPerRun(100, f); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

func FuzzSpecRoundTrip(f *testing.F) {
	f.Add([]byte{198, 18, 0, 1, 198, 18, 0, 2}, 64, uint16(1024), uint16(9), uint32(1), uint16(0), uint8(0), uint64(5), int64(1), true)
	f.Add([]byte{198, 18, 0, 1, 198, 18, 0, 2}, 1518, uint16(65535), uint16(9), uint32(2), uint16(0xa064), uint8(1), uint64(5), int64(1), false)
	f.Add(bytes.Repeat([]byte{0xff}, 32), 88, uint16(0), uint16(0), uint32(65536), uint16(0xfffe), uint8(3), uint64(1<<64-1), int64(-1), true)
	f.Fuzz(func(t *testing.T, addresses []byte, size int, sport, dport uint16, flows uint32, tci uint16, flags uint8, n uint64, now int64, stamp bool) {
		s := Spec{
			Size: units.FrameSize(size), SrcMAC: mac1, DstMAC: mac2, SrcPort: sport, DstPort: dport, Flows: flows,
			TTL: flags, TOS: uint8(tci), UDPChecksum: ChecksumMode(flags >> 7), Stamp: stamp, RunID: tci, StreamID: dport,
			Src: address(addresses[:len(addresses)/2]), Dst: address(addresses[len(addresses)/2:]),
		}
		if flags&1 != 0 {
			s.VLAN = &VLAN{ID: tci & 0xfff, PCP: uint8(tci >> 13), DEI: tci&0x1000 != 0}
		}
		if err := s.Validate(); err != nil {
			if _, cerr := s.Compile(); cerr == nil {
				t.Fatalf("%+v: refused by Validate (%v), not by Compile", s, err)
			}
			return
		}
		checkFrame(t, s, n, now)
	})
}
