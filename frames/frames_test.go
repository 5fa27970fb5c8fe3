package frames

import (
	"net"
	"net/netip"
	"testing"
)

func testSpec(v6, tagged bool) Spec {
	s := Spec{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Stamp: true, RunID: 0x1234, StreamID: 7,
	}
	if v6 {
		s.Src, s.Dst = netip.MustParseAddr("2001:2::1"), netip.MustParseAddr("2001:2::2")
	}
	if tagged {
		s.VLAN = &VLAN{ID: 100, PCP: 5}
	}
	s.Size = s.MinSize()
	return s
}

func TestMinSizes(t *testing.T) {
	for _, c := range []struct {
		v6, tagged bool
		want       int
	}{{false, false, 64}, {false, true, 68}, {true, false, 84}, {true, true, 88}} {
		s := testSpec(c.v6, c.tagged)
		if got := int(s.MinSize()); got != c.want {
			t.Errorf("v6=%v tagged=%v: least size %d, want %d", c.v6, c.tagged, got, c.want)
		}
		tm, err := s.Compile()
		if err != nil {
			t.Fatal(err)
		}
		slot := tm.Bytes()
		for n := range uint64(70000) {
			tm.Apply(slot, n, int64(n*1234567))
			var p Parsed
			if ParseStamp(slot, &p) != KindTest || p.Stamp.Seq != uint32(n) || !VerifyChecksums(slot, &p) {
				t.Fatalf("frame %d: %+v", n, p)
			}
		}
	}
}
