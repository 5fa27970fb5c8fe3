package frames

import "encoding/binary"

// The stamp of a frame that a reflector has sent back stands where the stamp
// stood, with two times of the reflector's clock behind it.
const (
	MagicReturned = 0x9e39
	// ReturnedLen is the room, octets, that a frame has to have behind its
	// transport header for a reflector to send it back.
	ReturnedLen = StampLen + 16

	returnedReceived = StampLen     // 64 bits: time received, ns since the Unix epoch
	returnedSent     = StampLen + 8 // 64 bits: time sent back

	// returnedClosing is set in the repeat number of a closing frame that has come
	// back, so that two reflectors do not send it to and fro for ever.
	returnedClosing = 1 << 31
)

// Reflection is a frame on its way back, that lacks the time at which it is sent.
type Reflection struct {
	frame    []byte
	checksum int // of the transport; 0: there is none to keep right
	kind     Kind
	stamp    int // offset; of a STAMP packet: of its payload
}

// Reflect writes the way back of a received frame, for which ParseStamp has just
// filled p, into slot: MAC addresses, IP addresses and UDP ports changed over. A
// VLAN tag that was taken off the frame (tpid not 0) is put back, and a checksum
// that its sender left to the NIC (partial) is made. ok is false for a
// frame that is not to be sent back: not ours, come back already, too short for the
// times (short is true), or too large for the slot. It does not allocate.
func Reflect(slot, frame []byte, p *Parsed, tpid, tci uint16, partial bool, receivedNs int64) (r Reflection, short, ok bool) {
	kind := p.Stamp.Kind
	room := p.End - p.Payload
	switch {
	case p.Proto != protoUDP || p.Partial:
		return r, false, false
	case kind == KindTest:
		if room < ReturnedLen {
			return r, true, false
		}
	case kind == KindClosing:
		if p.Stamp.Seq&returnedClosing != 0 {
			return r, false, false
		}
	default:
		return r, false, false
	}
	if r, ok = turn(slot, frame, p, tpid, tci, partial); !ok {
		return r, false, false
	}
	r.kind = kind
	if kind == KindClosing {
		r.put32(r.stamp+stampSeq, p.Stamp.Seq|returnedClosing)
		return r, false, true
	}
	r.put16(r.stamp, MagicReturned)
	r.put64(r.stamp+returnedReceived, uint64(receivedNs))
	return r, false, true
}

// turn copies a UDP frame with its two ends changed over.
func turn(slot, frame []byte, p *Parsed, tpid, tci uint16, partial bool) (r Reflection, ok bool) {
	tag := 0
	if tpid != 0 {
		tag = tagLen
	}
	if len(frame)+tag > cap(slot) {
		return r, false
	}
	b := slot[:len(frame)+tag]
	copy(b, frame[6:12])
	copy(b[6:], frame[:6])
	if tag != 0 {
		binary.BigEndian.PutUint16(b[12:], tpid)
		binary.BigEndian.PutUint16(b[14:], tci)
	}
	copy(b[12+tag:], frame[12:])
	l3, l4 := b[p.L3+tag:], b[p.L4+tag:]
	if p.V6 {
		swap(l3[8:24], l3[24:40])
	} else {
		swap(l3[12:16], l3[16:20])
	}
	swap(l4[0:2], l4[2:4])
	r = Reflection{frame: b, stamp: p.Payload + tag}
	switch {
	case partial:
		addresses := l3[12:20]
		if p.V6 {
			addresses = l3[8:40]
		}
		datagram := b[p.L4+tag : p.End+tag]
		if n := int(binary.BigEndian.Uint16(datagram[4:])); n >= udpLen && n <= len(datagram) {
			datagram = datagram[:n]
		}
		binary.BigEndian.PutUint16(datagram[6:], 0)
		binary.BigEndian.PutUint16(datagram[6:], udpChecksum(add(pseudoSum(addresses, protoUDP, len(datagram)), datagram)))
		r.checksum = p.L4 + tag + 6
	case binary.BigEndian.Uint16(l4[6:]) != 0:
		r.checksum = p.L4 + tag + 6
	}
	return r, true
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// Sent completes the frame, which leaves now, and returns it: a part of the slot.
func (r *Reflection) Sent(nowNs int64) []byte {
	switch r.kind {
	case KindTest:
		r.put64(r.stamp+returnedSent, uint64(nowNs))
	case kindSTAMP:
		r.put64(r.stamp+stampReflTime, stampTimestamp(nowNs, r.frame[r.stamp+stampReflError]&stampPTP != 0))
	}
	return r.frame
}

// put16 changes 16 bits, on an even octet of the payload, and the checksum with
// them (RFC 1624, equation 3).
func (r *Reflection) put16(off int, v uint16) {
	b := r.frame[off:]
	old := binary.BigEndian.Uint16(b)
	binary.BigEndian.PutUint16(b, v)
	if r.checksum != 0 {
		c := r.frame[r.checksum:]
		sum := uint64(^binary.BigEndian.Uint16(c)) + uint64(^old) + uint64(v)
		binary.BigEndian.PutUint16(c, udpChecksum(sum))
	}
}

func (r *Reflection) put32(off int, v uint32) {
	r.put16(off, uint16(v>>16))
	r.put16(off+2, uint16(v))
}

func (r *Reflection) put64(off int, v uint64) {
	r.put32(off, uint32(v>>32))
	r.put32(off+4, uint32(v))
}
