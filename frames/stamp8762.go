package frames

import "encoding/binary"

// STAMP, the Simple Two-way Active Measurement Protocol (RFC 8762), in its
// unauthenticated mode, which TWAMP Light (RFC 5357, appendix I) shares: the
// packet of the Session-Sender (section 4.2.1) and that of the Session-Reflector
// (section 4.3.1), in octets from the start of the UDP payload.
const (
	STAMPPort = 862 // UDP (RFC 8762, section 4.1)
	// STAMPLen is the length of the base packet of either side; octets behind it
	// (RFC 8972) are sent back as they are.
	STAMPLen = 44

	stampSendTime  = 4  // sender: 64 bits
	stampSendError = 12 // sender: 16 bits

	stampReflTime       = 4  // 64 bits: time sent back
	stampReflError      = 12 // 16 bits
	stampReflReceived   = 16 // 64 bits: time received
	stampReflSeq        = 24 // 32 bits: the sender's sequence number
	stampReflSendTime   = 28 // 64 bits: the sender's time
	stampReflSendError  = 36 // 16 bits: the sender's error estimate
	stampReflTTL        = 40 // 8 bits: TTL or hop limit as received
	stampSynchronised   = 1 << 7
	stampPTP            = 1 << 6 // Z of the error estimate: PTPv2 truncated times (RFC 8186, section 2.3)
	stampUnknownQuality = 0x3f01 // error estimate: scale 63, multiplier 1: 2^31 s, none at all (RFC 4656, section 4.1.2)
	ntpEpoch            = 2208988800

	kindSTAMP Kind = 0xff // of a Reflection only
)

// ParseSTAMP says whether a received frame is a STAMP Session-Sender's packet to
// UDP port port, and fills p's offsets. It takes any bytes, checks no checksum,
// and does not allocate.
func ParseSTAMP(frame []byte, port uint16, p *Parsed) bool {
	*p = Parsed{}
	return ParseStamp(frame, p) == KindOther && p.Proto == protoUDP && !p.Partial &&
		binary.BigEndian.Uint16(frame[p.L4+2:]) == port && p.End-p.Payload >= STAMPLen
}

// ReflectSTAMP writes a Session-Reflector's answer to a Session-Sender's packet,
// for which ParseSTAMP has just filled p, into slot. It is stateless (RFC 8762,
// section 4.3): the sequence number is the sender's. Times are in the format of
// the sender's. synchronised says that this host's clock is that of UTC. ok is
// false where the slot is too small.
func ReflectSTAMP(slot, frame []byte, p *Parsed, tpid, tci uint16, partial bool, receivedNs int64, synchronised bool) (r Reflection, ok bool) {
	if r, ok = turn(slot, frame, p, tpid, tci, partial); !ok {
		return r, false
	}
	r.kind = kindSTAMP
	sent := frame[p.Payload:]
	ptp := sent[stampSendError]&stampPTP != 0
	estimate := uint16(stampUnknownQuality)
	if synchronised {
		// 2^-10 s: NTP's usual worst; scale 22, multiplier 1.
		estimate = stampSynchronised<<8 | 22<<8 | 1
	}
	if ptp {
		estimate |= stampPTP << 8
	}
	ttl := frame[p.L3+8]
	if p.V6 {
		ttl = frame[p.L3+7]
	}
	at := r.stamp
	r.put16(at+stampReflError, estimate)
	r.put16(at+14, 0)
	r.put64(at+stampReflReceived, stampTimestamp(receivedNs, ptp))
	r.put32(at+stampReflSeq, binary.BigEndian.Uint32(sent))
	r.put64(at+stampReflSendTime, binary.BigEndian.Uint64(sent[stampSendTime:]))
	r.put16(at+stampReflSendError, binary.BigEndian.Uint16(sent[stampSendError:]))
	r.put16(at+38, 0)
	r.put32(at+stampReflTTL, uint32(ttl)<<24)
	return r, true
}

// stampTimestamp is a time in ns since the Unix epoch as NTP's 32 bits of seconds
// since 1900 and 32 of their fraction (RFC 5905, section 6), or as PTP's 32 bits of
// seconds and 32 of ns (RFC 8186).
func stampTimestamp(ns int64, ptp bool) uint64 {
	sec, nsec := uint64(ns/1e9), uint64(ns%1e9)
	if ptp {
		return sec<<32 | nsec
	}
	return (sec+ntpEpoch)<<32 | nsec<<32/1e9
}
