package neigh

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// message is a question (ARP request, Neighbor Solicitation) or an answer (ARP
// reply, Neighbor Advertisement), whichever protocol it came by.
type message struct {
	answer   bool
	sender   net.HardwareAddr // link-layer address that it tells of its sender
	senderIP netip.Addr
	target   netip.Addr // the address that is asked for, or told of; not multicast
}

const (
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd

	ethernetLen = 14
	arpLen      = 28
	ipv6Len     = 40
	ndpLen      = 24 // a solicitation or advertisement without options

	icmpv6         = 58
	solicitation   = 135 // RFC 4861, section 4.3
	advertisement  = 136 // section 4.4
	optionSource   = 1   // section 4.6.1
	optionTarget   = 2
	hopLimit       = 255 // section 7.1: from this link, unforwarded
	flagSolicited  = 0x40000000
	flagOverride   = 0x20000000
	minEthernetLen = 60 // without FCS
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// parse reads a frame that begins with its destination MAC.
func parse(frame []byte) (message, bool) {
	if len(frame) < ethernetLen {
		return message{}, false
	}
	switch body := frame[ethernetLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return parseARP(body)
	case etherIPv6:
		return parseNDP(body)
	}
	return message{}, false
}

func parseARP(b []byte) (m message, ok bool) {
	// Ethernet (1), IPv4 (0x0800), address lengths 6 and 4: RFC 826.
	if len(b) < arpLen || !bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) {
		return m, false
	}
	op := binary.BigEndian.Uint16(b[6:])
	m.answer = op == 2
	m.sender = bytes.Clone(b[8:14])
	m.senderIP = netip.AddrFrom4([4]byte(b[14:18]))
	m.target = netip.AddrFrom4([4]byte(b[24:28]))
	if m.answer {
		m.target = m.senderIP
	}
	return m, (op == 1 || op == 2) && unicast(m.sender) && !m.target.IsMulticast()
}

// parseNDP reads an IPv6 packet. The rules for what is valid are those of RFC 4861,
// sections 7.1.1 and 7.1.2.
func parseNDP(b []byte) (m message, ok bool) {
	if len(b) < ipv6Len+ndpLen || b[0]>>4 != 6 || b[6] != icmpv6 || b[7] != hopLimit {
		return m, false
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < ndpLen || length > len(b)-ipv6Len {
		return m, false
	}
	icmp := b[ipv6Len : ipv6Len+length]
	if icmp[1] != 0 || icmpChecksum(b[8:40], icmp) != 0 {
		return m, false
	}
	option := byte(optionSource)
	switch icmp[0] {
	case solicitation:
	case advertisement:
		m.answer, option = true, optionTarget
		if toAll := b[24] == 0xff; toAll && binary.BigEndian.Uint32(icmp[4:])&flagSolicited != 0 {
			return m, false
		}
	default:
		return m, false
	}
	m.senderIP = netip.AddrFrom16([16]byte(b[8:24]))
	m.target = netip.AddrFrom16([16]byte(icmp[8:24]))
	for opts := icmp[ndpLen:]; len(opts) > 0; {
		if len(opts) < 8 || opts[1] == 0 || int(opts[1])*8 > len(opts) {
			return m, false // a length of 0 makes the message invalid
		}
		if opts[0] == option && opts[1] == 1 {
			m.sender = bytes.Clone(opts[2:8])
		}
		opts = opts[int(opts[1])*8:]
	}
	return m, (m.sender == nil || unicast(m.sender)) && !m.target.IsMulticast()
}

func unicast(mac net.HardwareAddr) bool { return mac[0]&1 == 0 && !bytes.Equal(mac, make([]byte, 6)) }

// ask builds the question for target, of the same family as fromIP.
func ask(from net.HardwareAddr, fromIP, target netip.Addr, tag *VLAN) []byte {
	if target.Is4() {
		return arp(1, broadcast, from, fromIP, make(net.HardwareAddr, 6), target, tag)
	}
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]}) // RFC 4291, section 2.7.1
	mac := net.HardwareAddr{0x33, 0x33, 0xff, t[13], t[14], t[15]}                                       // RFC 2464, section 7
	return ndp(solicitation, 0, mac, from, fromIP, group, target, optionSource, tag)
}

// announce builds what tells everybody on the link, unasked, who has ip: an ARP
// announcement (RFC 5227, section 2.3), or an unsolicited advertisement to all
// nodes (RFC 4861, section 7.2.6).
func announce(mac net.HardwareAddr, ip netip.Addr, tag *VLAN) []byte {
	if ip.Is4() {
		return arp(1, broadcast, mac, ip, make(net.HardwareAddr, 6), ip, tag)
	}
	allNodes := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	return ndp(advertisement, flagOverride, allNodes, mac, ip, netip.IPv6LinkLocalAllNodes(), ip, optionTarget, tag)
}

// reply builds the answer to a question, from the one who has mac.
func reply(mac net.HardwareAddr, m message, to net.HardwareAddr, tag *VLAN) []byte {
	if m.target.Is4() {
		return arp(2, to, mac, m.target, m.sender, m.senderIP, tag)
	}
	return ndp(advertisement, flagSolicited|flagOverride, to, mac, m.target, m.senderIP, m.target, optionTarget, tag)
}

func ethernet(dst, src net.HardwareAddr, etherType uint16, tag *VLAN) []byte {
	b := append(bytes.Clone(dst), src...)
	if tag != nil {
		b = binary.BigEndian.AppendUint16(b, etherVLAN)
		b = binary.BigEndian.AppendUint16(b, uint16(tag.PCP)<<13|tag.ID)
	}
	return binary.BigEndian.AppendUint16(b, etherType)
}

func arp(op uint16, dst, mac net.HardwareAddr, ip netip.Addr, targetMAC net.HardwareAddr, target netip.Addr, tag *VLAN) []byte {
	b := ethernet(dst, mac, etherARP, tag)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, mac...), ip.AsSlice()...)
	b = append(append(b, targetMAC...), target.AsSlice()...)
	if len(b) < minEthernetLen {
		b = append(b, make([]byte, minEthernetLen-len(b))...)
	}
	return b
}

func ndp(kind byte, flags uint32, dst, mac net.HardwareAddr, src, to, target netip.Addr, option byte, tag *VLAN) []byte {
	icmp := []byte{kind, 0, 0, 0}
	icmp = binary.BigEndian.AppendUint32(icmp, flags)
	icmp = append(icmp, target.AsSlice()...)
	if !src.IsUnspecified() { // section 4.3: then there is nobody to tell of
		icmp = append(append(icmp, option, 1), mac...)
	}
	addresses := append(src.AsSlice(), to.AsSlice()...)
	binary.BigEndian.PutUint16(icmp[2:], icmpChecksum(addresses, icmp))

	b := ethernet(dst, mac, etherIPv6, tag)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(icmp)))
	b = append(b, icmpv6, hopLimit)
	return append(append(b, addresses...), icmp...)
}

// icmpChecksum is the checksum of an ICMPv6 message, 0 over one that holds the
// right one (RFC 4443, section 2.3).
func icmpChecksum(addresses, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + icmpv6
	for _, part := range [][]byte{addresses, icmp} {
		for i, c := range part {
			if i%2 == 0 {
				sum += uint32(c) << 8
			} else {
				sum += uint32(c)
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
