package frames

import "encoding/binary"

// EtherTypes and protocol numbers (IANA).
const (
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	etherDot1Q  = 0x8100
	etherDot1AD = 0x88a8
	etherQinQ   = 0x9100 // before 802.1ad was a standard

	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoICMPv6   = 58
	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoDestOpts = 60

	ethernetLen = 14
	tagLen      = 4
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8

	maxTags    = 4 // deeper stacks of VLAN tags are not ours
	maxHeaders = 8 // longer chains of IPv6 extension headers are not ours
)

// Parsed is what ParseStamp found in a frame: offsets into it, in octets.
type Parsed struct {
	Stamp   Stamp
	L3      int   // IP header
	L4      int   // transport header
	Payload int   // transport payload: the stamp
	End     int   // end of the IP packet; padding follows
	Proto   uint8 // transport protocol
	V6      bool
	VLANs   int  // tags in the frame itself
	Partial bool // the frame alone does not tell its transport checksum: the first fragment of several, or on its way along a source route
}

// ParseStamp recognises a received frame, from destination MAC to the end of
// the packet or of its padding: its headers down to the stamp, through up to 4
// VLAN tags (or none, where the NIC took them out), IPv4 options, and up to 8
// IPv6 extension headers. The stamp stands at the start of a UDP, TCP or ICMP
// echo payload. p is filled for all kinds but KindOther, for which it is filled as
// far as the headers are understood: with Proto, up to the payload. It does not
// check checksums, does not allocate, and takes any bytes; p keeps no reference to
// them.
func ParseStamp(frame []byte, p *Parsed) Kind {
	if len(frame) < ethernetLen+ipv4Len+udpLen+kernelHdrLen {
		return KindOther
	}
	l3, tags := ethernetLen, 0
	etherType := binary.BigEndian.Uint16(frame[ethernetLen-2:])
	for etherType == etherDot1Q || etherType == etherDot1AD || etherType == etherQinQ {
		if tags++; tags > maxTags {
			return KindOther
		}
		l3 += tagLen
		etherType = binary.BigEndian.Uint16(frame[l3-2:]) // 4 tags fit the least length
	}
	p.L3, p.VLANs = l3, tags
	switch etherType {
	case etherIPv4:
		return p.ipv4(frame, l3)
	case etherIPv6:
		return p.ipv6(frame, l3)
	}
	return KindOther
}

func (p *Parsed) ipv4(frame []byte, l3 int) Kind {
	if len(frame)-l3 < ipv4Len {
		return KindOther
	}
	h := (*[ipv4Len]byte)(frame[l3:])
	headerLen, total := int(h[0]&0xf)*4, int(binary.BigEndian.Uint16(h[2:]))
	fragment := binary.BigEndian.Uint16(h[6:])
	if h[0]>>4 != 4 || headerLen < ipv4Len || total < headerLen || total > len(frame)-l3 || fragment&0x1fff != 0 {
		return KindOther
	}
	p.V6, p.Partial = false, fragment&0x2000 != 0
	return p.transport(frame[:l3+total], l3+headerLen, h[9])
}

func (p *Parsed) ipv6(frame []byte, l3 int) Kind {
	if len(frame)-l3 < ipv6Len {
		return KindOther
	}
	h := (*[ipv6Len]byte)(frame[l3:])
	l4 := l3 + ipv6Len
	end := l4 + int(binary.BigEndian.Uint16(h[4:]))
	if h[0]>>4 != 6 || end > len(frame) {
		return KindOther
	}
	p.V6, p.Partial = true, false
	if h[6] == protoUDP {
		return p.transport(frame[:end], l4, protoUDP)
	}
	return p.extensions(frame[:end], l4, h[6])
}

// extensions walks the IPv6 extension headers from off, where the first, of
// type next, begins; packet ends where the IP packet does.
func (p *Parsed) extensions(packet []byte, off int, next uint8) Kind {
	for range maxHeaders {
		h := packet[off:]
		if len(h) < 8 {
			return KindOther
		}
		n := int(h[1])*8 + 8
		switch next {
		case protoHopByHop, protoDestOpts:
		case protoRouting:
			if h[3] != 0 {
				// Segments are left: the checksum is of the last destination, not
				// of the one in the header (RFC 8200, section 8.1).
				p.Partial = true
			}
		case protoAH: // its length counts words of 4 octets, less 2 (RFC 4302)
			n = int(h[1])*4 + 8
		case protoFragment:
			if binary.BigEndian.Uint16(h[2:])&0xfff8 != 0 {
				return KindOther // a later one has no transport header
			}
			p.Partial = p.Partial || h[3]&1 != 0
			n = 8
		default:
			return p.transport(packet, off, next)
		}
		if n > len(h) {
			return KindOther
		}
		next = h[0]
		off += n
	}
	return p.transport(packet, off, next)
}

// transport finds the payload behind the transport header at l4; packet ends
// where the IP packet does.
func (p *Parsed) transport(packet []byte, l4 int, proto uint8) Kind {
	h := packet[l4:]
	if len(h) < udpLen {
		return KindOther
	}
	n := udpLen
	switch proto {
	case protoUDP:
	case protoTCP:
		if len(h) < 20 {
			return KindOther
		}
		if n = int(h[12]>>4) * 4; n < 20 || n > len(h) {
			return KindOther
		}
	case protoICMP: // echo and its reply (RFC 792)
		if p.V6 || (h[0] != 8 && h[0] != 0) {
			return KindOther
		}
	case protoICMPv6: // echo and its reply (RFC 4443, section 4)
		if !p.V6 || (h[0] != 128 && h[0] != 129) {
			return KindOther
		}
	default:
		return KindOther
	}
	p.L4, p.Payload, p.End, p.Proto = l4, l4+n, len(packet), proto
	return readStamp(h[n:], &p.Stamp)
}

// Unchecked says that no checksum of the frame, for which ParseStamp has just
// filled p, covers its stamp: a damaged number in it cannot be told.
func Unchecked(frame []byte, p *Parsed) bool {
	return p.Partial || (p.Proto == protoUDP && binary.BigEndian.Uint16(frame[p.L4+6:]) == 0)
}

// VerifyChecksums says that the frame, for which ParseStamp has just filled p
// (any kind but KindOther), holds the bytes that were sent, as far as checksums
// tell: the IPv4 header's and the transport's (unless a UDP sender left it out,
// or the frame is Partial), and the lengths agree. It does not allocate.
func VerifyChecksums(frame []byte, p *Parsed) bool {
	l3 := frame[p.L3:p.L4]
	var addresses []byte
	if p.V6 {
		addresses = l3[8:40]
	} else {
		if fold(add(0, l3)) != 0xffff {
			return false
		}
		addresses = l3[12:20]
	}
	if p.Partial {
		return true
	}
	l4 := frame[p.L4:p.End]
	switch p.Proto {
	case protoUDP:
		length := int(binary.BigEndian.Uint16(l4[4:]))
		if length < udpLen || length > len(l4) {
			return false
		}
		l4 = l4[:length]
		if binary.BigEndian.Uint16(l4[6:]) == 0 {
			return !p.V6 // RFC 8200, section 8.1: in IPv6 it may not be left out
		}
	case protoICMP:
		return fold(add(0, l4)) == 0xffff
	}
	return fold(add(pseudoSum(addresses, p.Proto, len(l4)), l4)) == 0xffff
}
