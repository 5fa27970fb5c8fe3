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
	Partial bool // the first fragment of several: its transport checksum is of more than the frame holds
}

// ParseStamp recognises a received frame: its headers down to the stamp,
// through VLAN tags, IPv4 options and IPv6 extension headers. p is filled for
// all kinds but KindOther. It does not check checksums, does not allocate, and
// takes any bytes.
func ParseStamp(frame []byte, p *Parsed) Kind {
	if len(frame) < ethernetLen+ipv4Len+udpLen+kernelHdrLen {
		return KindOther
	}
	off := ethernetLen
	et := binary.BigEndian.Uint16(frame[off-2:])
	p.VLANs = 0
	for et == etherDot1Q || et == etherDot1AD || et == etherQinQ {
		p.VLANs++
		off += tagLen
		if p.VLANs > maxTags || len(frame) < off {
			return KindOther
		}
		et = binary.BigEndian.Uint16(frame[off-2:])
	}
	p.L3 = off
	switch et {
	case etherIPv4:
		return p.ipv4(frame)
	case etherIPv6:
		return p.ipv6(frame)
	}
	return KindOther
}

func (p *Parsed) ipv4(frame []byte) Kind {
	h := frame[p.L3:]
	if len(h) < ipv4Len || h[0]>>4 != 4 {
		return KindOther
	}
	headerLen, total := int(h[0]&0xf)*4, int(binary.BigEndian.Uint16(h[2:]))
	fragment := binary.BigEndian.Uint16(h[6:])
	if headerLen < ipv4Len || total < headerLen || total > len(h) || fragment&0x1fff != 0 {
		return KindOther
	}
	p.V6, p.Partial = false, fragment&0x2000 != 0
	p.L4, p.End, p.Proto = p.L3+headerLen, p.L3+total, h[9]
	return p.transport(frame)
}

func (p *Parsed) ipv6(frame []byte) Kind {
	h := frame[p.L3:]
	if len(h) < ipv6Len || h[0]>>4 != 6 {
		return KindOther
	}
	length := ipv6Len + int(binary.BigEndian.Uint16(h[4:]))
	if length > len(h) {
		return KindOther
	}
	p.V6, p.Partial = true, false
	p.L4, p.End, p.Proto = p.L3+ipv6Len, p.L3+length, h[6]
	for range maxHeaders {
		if p.Proto == protoUDP {
			return p.transport(frame)
		}
		n := 0
		h := frame[p.L4:p.End]
		switch p.Proto {
		case protoHopByHop, protoRouting, protoDestOpts:
			if len(h) < 8 {
				return KindOther
			}
			n = int(h[1])*8 + 8
		case protoAH: // its length counts words of 4 octets, less 2 (RFC 4302)
			if len(h) < 8 {
				return KindOther
			}
			n = int(h[1])*4 + 8
		case protoFragment:
			if len(h) < 8 || binary.BigEndian.Uint16(h[2:])&0xfff8 != 0 {
				return KindOther
			}
			p.Partial = h[3]&1 != 0
			n = 8
		default:
			return p.transport(frame)
		}
		if n > len(h) {
			return KindOther
		}
		p.Proto = h[0]
		p.L4 += n
	}
	return KindOther
}

// transport finds the payload behind the transport header.
func (p *Parsed) transport(frame []byte) Kind {
	h := frame[p.L4:p.End]
	n := udpLen
	switch p.Proto {
	case protoUDP:
	case protoTCP:
		if len(h) < 20 {
			return KindOther
		}
		if n = int(h[12]>>4) * 4; n < 20 {
			return KindOther
		}
	case protoICMP: // echo and its reply (RFC 792)
		if p.V6 || len(h) < 8 || (h[0] != 8 && h[0] != 0) {
			return KindOther
		}
	case protoICMPv6: // echo and its reply (RFC 4443, section 4)
		if !p.V6 || len(h) < 8 || (h[0] != 128 && h[0] != 129) {
			return KindOther
		}
	default:
		return KindOther
	}
	if n > len(h) {
		return KindOther
	}
	p.Payload = p.L4 + n
	return readStamp(h[n:], &p.Stamp)
}

// VerifyChecksums says that the frame, for which ParseStamp has filled p, holds
// the bytes that were sent, as far as checksums tell: the IPv4 header's and the
// transport's (unless a UDP sender left it out), and the lengths agree.
func VerifyChecksums(frame []byte, p *Parsed) bool {
	l3 := frame[p.L3:p.L4]
	var addresses []byte
	if p.V6 {
		addresses = l3[8:40]
	} else {
		if sum16(l3) != 0xffff {
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
		return sum16(l4) == 0xffff
	}
	return fold(uint64(sum16(l4))+pseudoSum(addresses, p.Proto, len(l4))) == 0xffff
}
