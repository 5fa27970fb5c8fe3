package frames

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/gopacket"
)

// Template is a Spec compiled: the prototype of its frames, and the table of
// what differs between them. Safe from any goroutine.
type Template struct {
	proto []byte
	edits []edit
	stamp int    // offset of the stamp; 0: none
	sum   uint64 // of the checksummed octets that no edit changes
}

// edit is one row of the table.
type edit struct {
	kind editKind
	off  int    // octet in the frame
	base uint32 // editPort: the first port
	span uint64 // editPort: number of ports
}

type editKind uint8

const (
	editPort     editKind = iota // 16 bits: base + n mod span
	editSeq                      // 32 bits: n
	editTime                     // 64 bits: time sent
	editChecksum                 // 16 bits: over the sum of the template and of all rows before
)

// Compile builds the prototype through gopacket, and the table.
func (s Spec) Compile() (*Template, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, s.layers()...); err != nil {
		return nil, fmt.Errorf("build the frame: %w", err)
	}
	t := &Template{proto: buf.Bytes()}
	if len(t.proto) != s.Size.Socket() {
		return nil, fmt.Errorf("the frame built has %d octets instead of %d", len(t.proto), s.Size.Socket())
	}
	udp := s.headers() - udpLen
	if s.Flows > 1 {
		t.edits = append(t.edits, edit{kind: editPort, off: udp, base: uint32(s.SrcPort), span: uint64(s.Flows)})
	}
	if s.Stamp {
		t.stamp = s.headers()
		t.edits = append(t.edits,
			edit{kind: editSeq, off: t.stamp + stampSeq},
			edit{kind: editTime, off: t.stamp + stampTime})
	}
	checksum := udp + 6
	switch s.UDPChecksum {
	case ChecksumZero:
		binary.BigEndian.PutUint16(t.proto[checksum:], 0)
		return t, nil
	case ChecksumPartial:
		addresses := append(s.Src.AsSlice(), s.Dst.AsSlice()...)
		binary.BigEndian.PutUint16(t.proto[checksum:], fold(pseudoSum(addresses, protoUDP, len(t.proto)-udp)))
		return t, nil
	}
	t.edits = append(t.edits, edit{kind: editChecksum, off: checksum})
	t.sum = s.fixedSum(t.proto[udp:])
	t.Apply(t.proto, 0, 0)
	return t, nil
}

// fixedSum is the sum over pseudo-header and datagram, with what edits write
// taken as 0. The stamp's number and time still are.
func (s Spec) fixedSum(datagram []byte) uint64 {
	d := append([]byte(nil), datagram...)
	binary.BigEndian.PutUint16(d[6:], 0)
	if s.Flows > 1 {
		binary.BigEndian.PutUint16(d, 0)
	}
	addresses := append(s.Src.AsSlice(), s.Dst.AsSlice()...)
	return uint64(fold(add(pseudoSum(addresses, protoUDP, len(d)), d))) // folded: Apply adds to it without looking for carries
}

// Layout is where the frame's IP and UDP headers begin, in octets from its start.
func (s Spec) Layout() (ip, udp int) {
	ip = ethernetLen
	if s.VLAN != nil {
		ip += tagLen
	}
	return ip, s.headers() - udpLen
}

// Fields is where a Template's edits are, for what writes frames without Apply,
// such as a program in the kernel: octets from the start of the frame, 0 where
// there is none.
type Fields struct {
	Stamp     int // sequence number and time stand within it
	Port      int // source port, FirstPort + n mod Ports
	FirstPort uint16
	Ports     uint32
	Checksum  int    // of UDP
	Sum       uint64 // of the octets under it that no edit changes: the ones' complement of Sum, port, number and both halves of the time, folded, is the checksum
}

// Fields tells them.
func (t *Template) Fields() Fields {
	f := Fields{Stamp: t.stamp, Ports: 1, Sum: t.sum}
	for _, e := range t.edits {
		switch e.kind {
		case editPort:
			f.Port, f.FirstPort, f.Ports = e.off, uint16(e.base), uint32(e.span)
		case editChecksum:
			f.Checksum = e.off
		}
	}
	return f
}

// Len is the frame's length in octets, without FCS.
func (t *Template) Len() int { return len(t.proto) }

// Bytes is a copy of the prototype: the frame of n = 0 sent at time 0.
func (t *Template) Bytes() []byte { return append([]byte(nil), t.proto...) }

// Apply makes slot, which holds the prototype or an earlier frame of this
// template, frame n sent at nowNs (since the Unix epoch). It is a pure function
// of the template, n and nowNs, and does not allocate. It panics when the slot
// is shorter than the frame.
//
// The checksum is not updated from the old one (RFC 1624) but made from the sum
// of all that never varies: the same number, without reading the slot.
func (t *Template) Apply(slot []byte, n uint64, nowNs int64) {
	slot = slot[:len(t.proto)]
	sum := t.sum
	for i := range t.edits {
		e := &t.edits[i]
		switch e.kind {
		case editPort:
			port := e.base + uint32(n%e.span)
			binary.BigEndian.PutUint16(slot[e.off:], uint16(port))
			sum += uint64(port)
		case editSeq:
			binary.BigEndian.PutUint32(slot[e.off:], uint32(n))
			sum += uint64(uint32(n))
		case editTime:
			binary.BigEndian.PutUint64(slot[e.off:], uint64(nowNs))
			sum += uint64(nowNs)>>32 + uint64(nowNs)&0xffffffff
		case editChecksum:
			binary.BigEndian.PutUint16(slot[e.off:], udpChecksum(sum))
		}
	}
}

// udpChecksum is the checksum field for a sum: never 0, which would say that
// there is none (RFC 768).
func udpChecksum(sum uint64) uint16 {
	if c := ^fold(sum); c != 0 {
		return c
	}
	return 0xffff
}

// ApplyClosing makes slot, which holds the prototype or an earlier frame of
// this template, a closing frame: repeat says which one it is, count how many
// frames the stream has. For Apply, the slot must be given the prototype again.
// It panics when the template has no stamp, or the slot is shorter than the frame.
func (t *Template) ApplyClosing(slot []byte, repeat uint32, count uint64) {
	if t.stamp == 0 {
		panic("frames: a closing frame of a template without a stamp")
	}
	t.Apply(slot, uint64(repeat), int64(count))
	binary.BigEndian.PutUint16(slot[t.stamp:], MagicClosing)
	for _, e := range t.edits {
		if e.kind == editChecksum {
			old := ^binary.BigEndian.Uint16(slot[e.off:])
			// RFC 1624, equation 3: HC' = ~(~HC + ~m + m')
			sum := uint64(old) + uint64(^uint16(MagicTest)) + MagicClosing
			binary.BigEndian.PutUint16(slot[e.off:], udpChecksum(sum))
		}
	}
}

// Edits is the table as text, a row a line.
func (t *Template) Edits() string {
	var b strings.Builder
	for _, e := range t.edits {
		switch e.kind {
		case editPort:
			fmt.Fprintf(&b, "%3d 2 source port %d..%d\n", e.off, e.base, uint64(e.base)+e.span-1)
		case editSeq:
			fmt.Fprintf(&b, "%3d 4 sequence number\n", e.off)
		case editTime:
			fmt.Fprintf(&b, "%3d 8 time sent\n", e.off)
		case editChecksum:
			fmt.Fprintf(&b, "%3d 2 UDP checksum\n", e.off)
		}
	}
	return b.String()
}
