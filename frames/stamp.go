package frames

import "encoding/binary"

const (
	MagicTest    = 0x9e37
	MagicClosing = 0x9e38
	StampLen     = 18 // octets

	stampRun    = 2
	stampStream = 4
	stampSeq    = 6
	stampTime   = 10

	// MagicKernel begins the header of the Linux kernel's pktgen: be32 magic,
	// sequence number, seconds, microseconds (struct pktgen_hdr, net/core/pktgen.c).
	MagicKernel  = 0xbe9be955
	kernelHdrLen = 16
)

// Kind says whose a frame is.
type Kind uint8

const (
	KindOther        Kind = iota // not ours
	KindTest                     // with our stamp
	KindClosing                  // the end of a stream
	KindKernelPktgen             // of the Linux kernel's pktgen
)

// Stamp is what a frame says of itself.
type Stamp struct {
	Kind     Kind
	RunID    uint16
	StreamID uint16
	Seq      uint32 // closing: which repeat of the closing frame
	TimeNs   int64  // time sent, ns since the Unix epoch; 0: not told
	Count    uint64 // closing: frames sent in the stream
}

// put writes the part of the stamp that is the same in every frame of a stream.
func putStamp(b []byte, magic, runID, streamID uint16) {
	binary.BigEndian.PutUint16(b, magic)
	binary.BigEndian.PutUint16(b[stampRun:], runID)
	binary.BigEndian.PutUint16(b[stampStream:], streamID)
}

// readStamp reads what stands at the start of a payload.
func readStamp(payload []byte, s *Stamp) Kind {
	if len(payload) >= StampLen {
		switch binary.BigEndian.Uint16(payload) {
		case MagicTest:
			*s = Stamp{
				Kind:  KindTest,
				RunID: binary.BigEndian.Uint16(payload[stampRun:]), StreamID: binary.BigEndian.Uint16(payload[stampStream:]),
				Seq: binary.BigEndian.Uint32(payload[stampSeq:]), TimeNs: int64(binary.BigEndian.Uint64(payload[stampTime:])),
			}
			return KindTest
		case MagicClosing:
			*s = Stamp{
				Kind:  KindClosing,
				RunID: binary.BigEndian.Uint16(payload[stampRun:]), StreamID: binary.BigEndian.Uint16(payload[stampStream:]),
				Seq: binary.BigEndian.Uint32(payload[stampSeq:]), Count: binary.BigEndian.Uint64(payload[stampTime:]),
			}
			return KindClosing
		}
	}
	if len(payload) >= kernelHdrLen && binary.BigEndian.Uint32(payload) == MagicKernel {
		sec, usec := binary.BigEndian.Uint32(payload[8:]), binary.BigEndian.Uint32(payload[12:])
		*s = Stamp{Kind: KindKernelPktgen, Seq: binary.BigEndian.Uint32(payload[4:])}
		if sec != 0 {
			s.TimeNs = int64(sec)*1e9 + int64(usec)*1e3
		}
		return KindKernelPktgen
	}
	return KindOther
}
