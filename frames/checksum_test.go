package frames

import (
	"testing"

	"pgregory.net/rapid"
)

// slowSum is RFC 1071, section 4.1, word for word.
func slowSum(b []byte) uint16 {
	sum := 0
	for len(b) > 1 {
		sum += int(b[0])<<8 + int(b[1])
		b = b[2:]
	}
	if len(b) > 0 {
		sum += int(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func TestSumRFC1071(t *testing.T) {
	// RFC 1071, section 3: the sum of 0001 f203 f4f5 f6f7 is ddf2.
	if got := fold(add(0, []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7})); got != 0xddf2 {
		t.Errorf("sum %#04x, RFC 1071 says 0xddf2", got)
	}
}

// RFC 1624, section 4: the header whose checksum is dd2f and one word of which
// goes from 5555 to 3285 has the checksum 0000 by equation 3 (RFC 1141 gave ffff).
func TestFoldRFC1624(t *testing.T) {
	hc, m, m1 := uint16(0xdd2f), uint16(0x5555), uint16(0x3285)
	if got := ^fold(uint64(^hc) + uint64(^m) + uint64(m1)); got != 0 {
		t.Errorf("checksum %#04x, RFC 1624 says 0", got)
	}
	// In a UDP header that is sent as ffff (RFC 768).
	if got := udpChecksum(uint64(^hc) + uint64(^m) + uint64(m1)); got != 0xffff {
		t.Errorf("UDP checksum %#04x, RFC 768 says 0xffff", got)
	}
}

func TestSumAgainstSlowTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Half of all octets are ff: carries out of every word.
		octet := rapid.OneOf(rapid.Just(byte(0xff)), rapid.Byte())
		b := rapid.SliceOfN(octet, 0, 200).Draw(t, "b")
		if got, want := fold(add(0, b)), slowSum(b); got != want {
			t.Fatalf("%x: %#04x, want %#04x", b, got, want)
		}
		at := 2 * rapid.IntRange(0, len(b)/2).Draw(t, "at")
		if got, want := fold(add(add(0, b[:at]), b[at:])), slowSum(b); got != want {
			t.Fatalf("%x, in two at %d: %#04x, want %#04x", b, at, got, want)
		}
	})
}

func TestFoldAgainstModulo(t *testing.T) {
	for _, edge := range []uint64{0, 1, 0xffff, 0x10000, 0x1ffff, 0xffff_ffff, 0x1_0000_0000, 1<<64 - 1, 1<<64 - 0xffff} {
		if got := fold(edge); uint64(got)%0xffff != edge%0xffff || (got == 0) != (edge == 0) {
			t.Errorf("fold(%#x) = %#04x", edge, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64().Draw(t, "v")
		// One's complement addition is arithmetic modulo ffff, in which only the
		// sum of nothing is 0 and not ffff.
		if got := fold(v); uint64(got)%0xffff != v%0xffff || (got == 0) != (v == 0) {
			t.Fatalf("fold(%#x) = %#04x", v, got)
		}
	})
}
