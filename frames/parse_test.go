package frames

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"pktgen/units"
)

// hexBytes reads hex digits; blanks are for the eye.
func hexBytes(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

const (
	macs      = "020000000002 020000000001 "
	ethV4     = "0800 "
	ethV6     = "86dd "
	testStamp = "9e37 1234 0007 00000005 187d1f2ea5b6c7d8"
	addrs6    = "20010002000000000000000000000001 20010002000000000000000000000002 "
)

// ipv4Of is an IPv4 packet (RFC 791) of a protocol around data, with options.
func ipv4Of(proto byte, options string, data []byte) string {
	opt := hexBytes(options)
	h := hexBytes("45000000 00004000 40000000 c6120001 c6120002")
	h[0] += byte(len(opt) / 4)
	h[9] = proto
	h = append(h, opt...)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(data)))
	binary.BigEndian.PutUint16(h[10:], ^slowSum(h))
	return hex.EncodeToString(append(h, data...))
}

// ipv6Of is an IPv6 packet (RFC 8200) around data, which begins with headers.
func ipv6Of(next byte, data []byte) string {
	return fmt.Sprintf("60000000 %04x %02x 40 %s", len(data), next, addrs6) + hex.EncodeToString(data)
}

// withSum fills the 16-bit checksum at offset at of a transport packet.
func withSum(pseudo string, proto byte, at int, packet string) []byte {
	b := hexBytes(packet)
	all := append(hexBytes(pseudo), 0, 0, 0, proto)
	all = binary.BigEndian.AppendUint32(all, uint32(len(b)))
	if pseudo == "" {
		all = nil // ICMP (RFC 792) has no pseudo-header
	}
	binary.BigEndian.PutUint16(b[at:], ^slowSum(append(all, b...)))
	return b
}

const (
	pseudo4 = "c6120001 c6120002"
	udpHdr  = "0400 0009 001a 0000 "
	tcpHdr  = "0400 0009 00000001 00000002 50 10 ffff 0000 0000 "
	// data offset 8: timestamps (RFC 7323)
	tcpHdrTS = "0400 0009 00000001 00000002 80 10 ffff 0000 0000 0101080a 00000001 00000002 "
)

func TestParseWalk(t *testing.T) {
	udp4 := withSum(pseudo4, 17, 6, udpHdr+testStamp)
	udp6 := withSum(addrs6, 17, 6, udpHdr+testStamp)
	v4 := macs + ethV4 + ipv4Of(17, "", udp4)
	v6 := macs + ethV6 + ipv6Of(17, udp6)
	in6 := func(next byte, headers string) string {
		return macs + ethV6 + ipv6Of(next, append(hexBytes(headers), udp6...))
	}
	echo6 := func(kind string) string {
		return macs + ethV6 + ipv6Of(58, withSum(addrs6, 58, 2, kind+"00 0000 0001 0001"+testStamp))
	}
	echo4 := func(kind string) string {
		return macs + ethV4 + ipv4Of(1, "", withSum("", 1, 2, kind+"00 0000 0001 0001"+testStamp))
	}
	for name, c := range map[string]struct {
		frame   string
		payload int // 0: not ours
		vlans   int
		proto   uint8
		partial bool
	}{
		"ipv4 udp":              {frame: v4, payload: 42, proto: 17},
		"ipv4 udp, padded":      {frame: v4 + "ffffffff", payload: 42, proto: 17},
		"ipv6 udp":              {frame: v6, payload: 62, proto: 17},
		"802.1Q":                {frame: macs + "8100 a064" + v4[len(macs):], payload: 46, vlans: 1, proto: 17},
		"802.1ad":               {frame: macs + "88a8 0064 8100 0065" + v4[len(macs):], payload: 50, vlans: 2, proto: 17},
		"9100":                  {frame: macs + "9100 0064" + v6[len(macs):], payload: 66, vlans: 1, proto: 17},
		"four tags":             {frame: macs + strings.Repeat("8100 0001", 4) + v4[len(macs):], payload: 58, vlans: 4, proto: 17},
		"five tags":             {frame: macs + strings.Repeat("8100 0001", 5) + v4[len(macs):]},
		"ipv4 router alert":     {frame: macs + ethV4 + ipv4Of(17, "94040000", udp4), payload: 46, proto: 17},
		"ipv4 40 octets option": {frame: macs + ethV4 + ipv4Of(17, strings.Repeat("01", 40), udp4), payload: 82, proto: 17},
		"ipv4 tcp":              {frame: macs + ethV4 + ipv4Of(6, "", withSum(pseudo4, 6, 16, tcpHdr+testStamp)), payload: 54, proto: 6},
		"ipv4 tcp options":      {frame: macs + ethV4 + ipv4Of(6, "", withSum(pseudo4, 6, 16, tcpHdrTS+testStamp)), payload: 66, proto: 6},
		"ipv6 tcp":              {frame: macs + ethV6 + ipv6Of(6, withSum(addrs6, 6, 16, tcpHdr+testStamp)), payload: 74, proto: 6},
		"ipv4 echo":             {frame: echo4("08"), payload: 42, proto: 1},
		"ipv4 echo reply":       {frame: echo4("00"), payload: 42, proto: 1},
		"ipv4 unreachable":      {frame: echo4("03")},
		"ipv6 echo":             {frame: echo6("80"), payload: 62, proto: 58},
		"ipv6 echo reply":       {frame: echo6("81"), payload: 62, proto: 58},
		"ipv6 too big":          {frame: echo6("02")},
		"icmpv6 in ipv4":        {frame: macs + ethV4 + ipv4Of(58, "", hexBytes("8000 0000 0001 0001"+testStamp))},
		"icmp in ipv6":          {frame: macs + ethV6 + ipv6Of(1, hexBytes("0800 0000 0001 0001"+testStamp))},
		"ipv4 version 5":        {frame: strings.Replace(v4, "0800 45", "0800 55", 1)},
		"ipv4 version 6":        {frame: macs + ethV4 + v6[len(macs+ethV6):]},
		"ipv6 version 4":        {frame: macs + ethV6 + v4[len(macs+ethV4):]},
		"tcp offset 4":          {frame: macs + ethV4 + ipv4Of(6, "", hexBytes("0400 0009 00000001 00000002 40 10 ffff"+testStamp))},
		"gre":                   {frame: macs + ethV4 + ipv4Of(47, "", udp4)},
		"hop-by-hop":            {frame: in6(0, "11 00 050200000100"), payload: 70, proto: 17},
		"destination options":   {frame: in6(60, "11 01 010c"+strings.Repeat("00", 12)), payload: 78, proto: 17},
		"routing, arrived":      {frame: in6(43, "11 02 02 00 00000000"+strings.Repeat("00", 16)), payload: 86, proto: 17},
		"routing, on its way":   {frame: in6(43, "11 02 02 01 00000000"+strings.Repeat("00", 16)), payload: 86, proto: 17, partial: true},
		"authentication":        {frame: in6(51, "11 04 0000 00000001 00000001"+strings.Repeat("aa", 12)), payload: 86, proto: 17},
		"atomic fragment":       {frame: in6(44, "11 00 0000 00000001"), payload: 70, proto: 17},
		"first fragment":        {frame: in6(44, "11 00 0001 00000001"), payload: 70, proto: 17, partial: true},
		"later fragment":        {frame: in6(44, "11 00 0008 00000001")},
		"a chain of three":      {frame: in6(0, "3c 00 050200000100 2b 00 010400000000 11 00 02 00 00000000"), payload: 86, proto: 17},
		"eight headers":         {frame: in6(60, strings.Repeat("3c 00 010400000000", 7)+"11 00 010400000000"), payload: 126, proto: 17},
		"nine headers":          {frame: in6(60, strings.Repeat("3c 00 010400000000", 8)+"11 00 010400000000")},
		"routing, then whole":   {frame: in6(43, "2c 00 02 01 00000000 11 00 0000 00000001"), payload: 78, proto: 17, partial: true},
		"no next header":        {frame: in6(59, "")},
		"esp":                   {frame: in6(50, "00000001 00000001")},
		"arp":                   {frame: macs + "0806" + strings.Repeat("00", 46)},
		"802.3 length":          {frame: macs + "0026" + strings.Repeat("00", 46)},
	} {
		b := hexBytes(c.frame)
		var p Parsed
		kind := ParseStamp(b, &p)
		if c.payload == 0 {
			if kind != KindOther {
				t.Errorf("%s: taken for ours: %+v", name, p)
			}
			continue
		}
		want := Stamp{Kind: KindTest, RunID: 0x1234, StreamID: 7, Seq: 5, TimeNs: 0x187d1f2ea5b6c7d8}
		if kind != KindTest || p.Stamp != want || p.Payload != c.payload || p.VLANs != c.vlans || p.Proto != c.proto || p.Partial != c.partial {
			t.Errorf("%s: %v %+v, want payload at %d, %+v", name, kind, p, c.payload, c)
			continue
		}
		if !VerifyChecksums(b, &p) {
			t.Errorf("%s: checksums are right, VerifyChecksums says no", name)
		}
		// A frame cut short anywhere is not ours: a receiver with a short snap
		// length must not report it as corrupt.
		for n := range p.End {
			if kind := ParseStamp(b[:n:n], new(Parsed)); kind != KindOther {
				t.Errorf("%s: cut to %d of %d octets: %v", name, n, p.End, kind)
			}
		}
		if c.partial {
			continue
		}
		// One octet of the payload altered behind the stamp's magic.
		b[p.Payload+9] ^= 0x10
		if ParseStamp(b, &p) != KindTest || VerifyChecksums(b, &p) {
			t.Errorf("%s: an octet altered, and VerifyChecksums does not see it", name)
		}
	}
}

// A first IPv4 fragment is ours, though its UDP checksum is of more than it
// holds; a later one has no stamp.
func TestParseIPv4Fragments(t *testing.T) {
	tm := compile(t, testSpec(false, false))
	for _, c := range []struct {
		flags uint16
		want  Kind
	}{{0x2000, KindTest}, {0x2001, KindOther}, {0x0001, KindOther}, {0x1fff, KindOther}, {0x0000, KindTest}} {
		b := tm.Bytes()
		binary.BigEndian.PutUint16(b[20:], c.flags)
		b[24], b[25] = 0, 0
		binary.BigEndian.PutUint16(b[24:], ^slowSum(b[14:34]))
		if c.flags&0x2000 != 0 {
			b[50]++ // the datagram goes on elsewhere: this checksum cannot be right
		}
		var p Parsed
		kind := ParseStamp(b, &p)
		if kind != c.want || kind != KindOther && (p.Partial != (c.flags&0x2000 != 0) || !VerifyChecksums(b, &p)) {
			t.Errorf("flags and offset %#04x: %v %+v, want %v", c.flags, kind, p, c.want)
		}
	}
}

// Whatever bit a path flips in what checksums cover, the frame is either not
// taken for ours or seen to be corrupt. (An IPv6 header's traffic class, flow
// label and hop limit are covered by nothing but the FCS.)
func TestCorruptionIsSeen(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := testSpec(v6, true)
		s.Size += 13 // odd: the last octet is half a word
		tm := compile(t, s)
		b := tm.Bytes()
		tm.Apply(b, 0x12345678, 0x187d1f2ea5b6c7d8)
		seen := 0
		for bit := 18 * 8; bit < len(b)*8; bit++ {
			if v6 && (bit/8 < 22 && bit >= 18*8+4 || bit/8 == 25) {
				continue
			}
			b[bit/8] ^= 0x80 >> (bit % 8)
			var p Parsed
			if ParseStamp(b, &p) != KindOther {
				seen++
				if VerifyChecksums(b, &p) {
					t.Errorf("v6=%v: bit %d of octet %d flipped: not seen", v6, bit%8, bit/8)
				}
			}
			b[bit/8] ^= 0x80 >> (bit % 8)
		}
		if seen < 200 {
			t.Errorf("v6=%v: only %d frames were taken for ours", v6, seen)
		}
	}
}

// A UDP checksum 0 means none in IPv4, and is an error in IPv6 (RFC 8200, section 8.1).
func TestChecksumLeftOut(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := testSpec(v6, false)
		b := compile(t, s).Bytes()
		binary.BigEndian.PutUint16(b[s.headers()-2:], 0)
		var p Parsed
		if ParseStamp(b, &p) != KindTest || VerifyChecksums(b, &p) == v6 {
			t.Errorf("v6=%v: %+v, right: %v", v6, p, !v6)
		}
	}
}

// The header of the Linux kernel's pktgen: struct pktgen_hdr in
// net/core/pktgen.c. TestTshark has the second opinion.
const kernelFrame = macs + ethV4 + "4500002e 00290000 20110000 c6120001 c6120002 00090009 001a0000" +
	"be9be955 0000002a 6553f100 0001e240 0000"

func TestParseKernelPktgen(t *testing.T) {
	b := hexBytes(kernelFrame)
	binary.BigEndian.PutUint16(b[24:], ^slowSum(b[14:34]))
	var p Parsed
	kind := ParseStamp(b, &p)
	want := Stamp{Kind: KindKernelPktgen, Seq: 42, TimeNs: 1_700_000_000_123_456_000}
	if kind != KindKernelPktgen || p.Stamp != want || !VerifyChecksums(b, &p) {
		t.Errorf("%v %+v, want %+v", kind, p, want)
	}
	clear(b[50:58]) // flag NO_TIMESTAMP
	if ParseStamp(b, &p); p.Stamp.TimeNs != 0 || p.Stamp.Seq != 42 {
		t.Errorf("without a time: %+v", p.Stamp)
	}
	b[42]++
	if kind := ParseStamp(b, &p); kind != KindOther {
		t.Errorf("another magic: %v", kind)
	}
}

func FuzzParseStamp(f *testing.F) {
	text, err := os.ReadFile("testdata/vectors.hex")
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range strings.Fields(string(text)) {
		f.Add(hexBytes(v))
	}
	f.Add(hexBytes(kernelFrame))
	for _, proto := range []byte{0, 43, 44, 51, 60, 6, 58} {
		f.Add(hexBytes(macs + ethV6 + ipv6Of(proto, hexBytes("11000001 00000001"+udpHdr+testStamp+testStamp))))
	}
	f.Fuzz(checkParse)
}

// checkParse has any bytes parsed: offsets lie in order and inside of them, and
// VerifyChecksums agrees with its slow twin.
func checkParse(t *testing.T, b []byte) {
	b = b[:len(b):len(b)]
	before := bytes.Clone(b)
	stale := Stamp{Kind: 99, RunID: 1, StreamID: 2, Seq: 3, TimeNs: 4, Count: 5}
	p := Parsed{Stamp: stale, L3: -1, L4: 1 << 40, Payload: -7, End: 99, Proto: 200, V6: true, VLANs: 77, Partial: true}
	kind := ParseStamp(b, &p)
	if kind != KindOther {
		ok := VerifyChecksums(b, &p)
		if p.Stamp.Kind != kind || p.VLANs > maxTags || p.L3 != 14+4*p.VLANs || p.L4 < p.L3+20 || p.Payload < p.L4+8 || p.Payload+kernelHdrLen > p.End || p.End > len(b) {
			t.Fatalf("%x: %v %+v", b, kind, p)
		}
		if want := slowVerify(b, &p); ok != want {
			t.Fatalf("%x: VerifyChecksums says %v, the slow twin %v (%+v)", b, ok, want, p)
		}
		// What an earlier frame left in p has no influence.
		var q Parsed
		if ParseStamp(b, &q) != kind || q != p {
			t.Fatalf("%x: %+v, from a clean start %+v", b, p, q)
		}
	}
	if !bytes.Equal(before, b) {
		t.Fatal("the frame was written to")
	}
}

// Every octet of frames of each kind takes every value, in the
// whole frame and with the last 10 octets missing.
func TestParseAnyOctet(t *testing.T) {
	for _, frame := range []string{
		macs + ethV4 + ipv4Of(17, "94040000", hexBytes(udpHdr+testStamp)),
		macs + ethV4 + ipv4Of(6, "", hexBytes(tcpHdrTS+testStamp)),
		macs + ethV4 + ipv4Of(1, "", hexBytes("0800 0000 0001 0001"+testStamp)),
		macs + "8100 a064" + ethV6 + ipv6Of(0, hexBytes("3c 00 050200000100 2b 00 010400000000 2c 00 02 00 00000000 33 00 0000 00000001 11 04 0000 00000001 00000001"+strings.Repeat("aa", 12)+udpHdr+testStamp)),
		macs + ethV6 + ipv6Of(58, hexBytes("8000 0000 0001 0001"+testStamp)),
		kernelFrame,
	} {
		b := hexBytes(frame)
		if ParseStamp(b, new(Parsed)) == KindOther {
			t.Fatalf("not ours: %x", b)
		}
		for i, v := range b {
			for other := range 256 {
				b[i] = byte(other)
				checkParse(t, b)
				checkParse(t, b[:len(b)-10])
			}
			b[i] = v
		}
	}
}

// slowVerify is VerifyChecksums as the RFCs put it: the pseudo-header is built
// and everything is added word by word.
func slowVerify(b []byte, p *Parsed) bool {
	if !p.V6 && slowSum(b[p.L3:p.L4]) != 0xffff {
		return false
	}
	if p.Partial {
		return true
	}
	l4 := b[p.L4:p.End]
	if p.Proto == 17 {
		n := int(l4[4])<<8 | int(l4[5])
		if n < 8 || n > len(l4) {
			return false
		}
		l4 = l4[:n]
		if l4[6] == 0 && l4[7] == 0 {
			return !p.V6
		}
	}
	var all []byte
	switch {
	case p.V6:
		all = append(all, b[p.L3+8:p.L3+40]...)
	case p.Proto != 1:
		all = append(all, b[p.L3+12:p.L3+20]...)
	}
	if all != nil {
		all = append(all, byte(len(l4)>>24), byte(len(l4)>>16), byte(len(l4)>>8), byte(len(l4)), 0, 0, 0, p.Proto)
	}
	return slowSum(append(all, l4...)) == 0xffff
}

func BenchmarkParseStamp(b *testing.B) {
	benchFrames(b, func(b *testing.B, frame []byte, p *Parsed) {
		for b.Loop() {
			ParseStamp(frame, p)
		}
	})
}

func BenchmarkVerifyChecksums(b *testing.B) {
	benchFrames(b, func(b *testing.B, frame []byte, p *Parsed) {
		for b.Loop() {
			VerifyChecksums(frame, p)
		}
	})
}

func benchFrames(b *testing.B, loop func(b *testing.B, frame []byte, p *Parsed)) {
	for _, v6 := range []bool{false, true} {
		for _, tagged := range []bool{false, true} {
			for _, size := range []units.FrameSize{0, 1518} {
				s := testSpec(v6, tagged)
				s.Size = max(s.Size, size)
				b.Run(fmt.Sprintf("ip=%d/tags=%d/size=%d", ipVersion(v6), btoi(tagged), s.Size), func(b *testing.B) {
					frame := compile(b, s).Bytes()
					var p Parsed
					if ParseStamp(frame, &p) != KindTest || !VerifyChecksums(frame, &p) {
						b.Fatal("not a good frame")
					}
					loop(b, frame, &p)
				})
			}
		}
	}
}

func BenchmarkApply(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		for _, flows := range []uint32{1, 1000} {
			for _, sum := range []ChecksumMode{ChecksumFull, ChecksumZero} {
				s := testSpec(v6, false)
				s.Flows, s.UDPChecksum = flows, sum
				tm, err := s.Compile()
				if err != nil {
					continue // IPv6 has no ChecksumZero
				}
				b.Run(fmt.Sprintf("ip=%d/size=%d/flows=%d/checksum=%d", ipVersion(v6), s.Size, flows, 1-sum), func(b *testing.B) {
					slot := tm.Bytes()
					n := uint64(0)
					for b.Loop() {
						tm.Apply(slot, n, int64(n)<<10)
						n++
					}
				})
			}
		}
	}
}

func ipVersion(v6 bool) int { return 4 + 2*btoi(v6) }

func btoi(v bool) int {
	if v {
		return 1
	}
	return 0
}
