package frames

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"pktgen/units"
)

var (
	mac1 = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	mac2 = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// testSpec is the smallest stamped frame of its kind.
func testSpec(v6, tagged bool) Spec {
	s := Spec{
		SrcMAC: mac1, DstMAC: mac2,
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

func compile(t testing.TB, s Spec) *Template {
	t.Helper()
	tm, err := s.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// The least sizes of the contract, and that one octet less is refused.
func TestMinSize(t *testing.T) {
	for _, c := range []struct {
		v6, tagged, stamp bool
		want              units.FrameSize
	}{
		{false, false, true, 64}, {false, true, true, 68}, {true, false, true, 84}, {true, true, true, 88},
		{false, false, false, 64}, {false, true, false, 64}, {true, false, false, 66}, {true, true, false, 70},
	} {
		s := testSpec(c.v6, c.tagged)
		s.Stamp = c.stamp
		s.Size = c.want
		if got := s.MinSize(); got != c.want {
			t.Errorf("%+v: least size %d", c, got)
		}
		if tm := compile(t, s); tm.Len() != int(c.want)-4 || len(tm.Bytes()) != tm.Len() {
			t.Errorf("%+v: the frame has %d octets in the socket", c, tm.Len())
		}
		s.Size--
		_, err := s.Compile()
		var small *SizeError
		if !errors.As(err, &small) || small.Size != c.want-1 || small.Min != c.want || !strings.Contains(err.Error(), strconv.Itoa(int(c.want))) {
			t.Errorf("%+v: one octet less: %v", c, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Spec)
		want  string
	}{
		"no source MAC":     {func(s *Spec) { s.SrcMAC = nil }, "MAC"},
		"long MAC":          {func(s *Spec) { s.DstMAC = make(net.HardwareAddr, 8) }, "MAC"},
		"no address":        {func(s *Spec) { s.Dst = netip.Addr{} }, "address"},
		"two families":      {func(s *Spec) { s.Dst = netip.MustParseAddr("2001:2::2") }, "IP version"},
		"mapped address":    {func(s *Spec) { s.Src = netip.MustParseAddr("::ffff:198.18.0.1"); s.Dst = s.Src }, "IP version"},
		"VLAN 4095":         {func(s *Spec) { s.VLAN = &VLAN{ID: 4095} }, "VLAN"},
		"priority 8":        {func(s *Spec) { s.VLAN = &VLAN{PCP: 8} }, "priority"},
		"ports wrap":        {func(s *Spec) { s.SrcPort, s.Flows = 65535, 2 }, "port 65535"},
		"too many flows":    {func(s *Spec) { s.SrcPort, s.Flows = 0, 1<<32-1 }, "port 65535"},
		"too large":         {func(s *Spec) { s.Size = 65554 }, "largest is 65553"},
		"too large, tagged": {func(s *Spec) { s.VLAN, s.Size = &VLAN{ID: 1}, 65558 }, "largest is 65557"},
		"checksum mode":     {func(s *Spec) { s.UDPChecksum = ChecksumPartial + 1 }, "checksum"},
		"no IPv6 checksum":  {func(s *Spec) { *s = testSpec(true, false); s.UDPChecksum = ChecksumZero }, "RFC 8200"},
		"negative size":     {func(s *Spec) { s.Size = -1 }, "least is 64"},
	} {
		s := testSpec(false, false)
		s.Size = 128
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		c.spoil(&s)
		err := s.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v does not say %q", name, err, c.want)
		}
		if _, cerr := s.Compile(); cerr == nil || cerr.Error() != err.Error() {
			t.Errorf("%s: Compile says %v, Validate %v", name, cerr, err)
		}
	}
}

// The edges of what is allowed compile, and are right.
func TestLimits(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := testSpec(v6, false)
		s.Size = units.MaxFrameSize
		s.SrcPort, s.Flows = 0, 65536
		checkFrame(t, s, 65535, 1<<62)
		checkFrame(t, s, 1<<40+65536, -1)
		s.VLAN = &VLAN{ID: 4094, PCP: 7, DEI: true}
		s.Size = units.MaxFrameSize + 4
		checkFrame(t, s, 1<<64-1, 0)
	}
}
