package frames

import (
	"encoding/binary"
	"math/bits"
)

// The Internet checksum is the complement of the one's complement sum of 16-bit
// words (RFC 1071). Sums here are kept in more bits and folded at the end:
// addition is associative, and its carries come back in at the low end, so that
// 64-bit words may be added as well as 16-bit ones (RFC 1071, section 2).

// add adds b's 16-bit big-endian words to a sum, a last odd octet taken as the
// high one of its word. It is not folded: one fold does for many an add.
func add(sum uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:]), carry)
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	if len(b) >= 4 {
		sum, carry = bits.Add64(sum, uint64(binary.BigEndian.Uint32(b)), carry)
		b = b[4:]
	}
	if len(b) >= 2 {
		sum, carry = bits.Add64(sum, uint64(binary.BigEndian.Uint16(b)), carry)
		b = b[2:]
	}
	if len(b) == 1 {
		sum, carry = bits.Add64(sum, uint64(b[0])<<8, carry)
	}
	return sum + carry // never beyond 64 bits: all ones with a carry comes of nothing but itself
}

// fold adds the 16-bit words of a sum until one is left.
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff // 33 bits
	sum = sum>>16 + sum&0xffff     // 18
	sum = sum>>16 + sum&0xffff     // at most 10000 hex
	return uint16(sum>>16 + sum&0xffff)
}

// pseudoSum is the sum of the pseudo-header of TCP, UDP or ICMPv6: addresses as
// they stand in the IP header, protocol, and transport length (RFC 768; RFC
// 8200, section 8.1).
func pseudoSum(addresses []byte, proto uint8, length int) uint64 {
	return add(uint64(proto)+uint64(length), addresses)
}
