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
	KindReturned                 // with our stamp, sent back by a reflector
)

// Stamp is what a frame says of itself.
type Stamp struct {
	Kind     Kind
	RunID    uint16
	StreamID uint16
	Seq      uint32 // closing: which repeat of the closing frame
	TimeNs   int64  // time sent, ns since the Unix epoch; 0: not told
	Count    uint64 // closing: frames sent in the stream

	// Returned: when the reflector received it and sent it back, by its own clock,
	// ns since the Unix epoch; undefined for all other kinds.
	ReceivedNs, ReturnedNs int64
}

// putStamp writes the part of the stamp that is the same in every frame of a stream.
func putStamp(b []byte, magic, runID, streamID uint16) {
	binary.BigEndian.PutUint16(b, magic)
	binary.BigEndian.PutUint16(b[stampRun:], runID)
	binary.BigEndian.PutUint16(b[stampStream:], streamID)
}

// readStamp reads what stands at the start of a payload. Fields are written one
// by one: a composite literal is built apart and copied, twice the time.
func readStamp(payload []byte, s *Stamp) Kind {
	if len(payload) >= StampLen {
		b := (*[StampLen]byte)(payload)
		switch binary.BigEndian.Uint16(b[:]) {
		case MagicTest:
			s.Kind = KindTest
			s.TimeNs, s.Count = int64(binary.BigEndian.Uint64(b[stampTime:])), 0
		case MagicReturned:
			if len(payload) < ReturnedLen {
				return KindOther
			}
			s.Kind = KindReturned
			s.TimeNs, s.Count = int64(binary.BigEndian.Uint64(b[stampTime:])), 0
			s.ReceivedNs = int64(binary.BigEndian.Uint64(payload[returnedReceived:]))
			s.ReturnedNs = int64(binary.BigEndian.Uint64(payload[returnedSent:]))
		case MagicClosing:
			s.Kind = KindClosing
			s.TimeNs, s.Count = 0, binary.BigEndian.Uint64(b[stampTime:])
		default:
			return readKernel(payload, s)
		}
		s.RunID = binary.BigEndian.Uint16(b[stampRun:])
		s.StreamID = binary.BigEndian.Uint16(b[stampStream:])
		s.Seq = binary.BigEndian.Uint32(b[stampSeq:])
		return s.Kind
	}
	return readKernel(payload, s)
}

// readKernel reads the header of the kernel's pktgen.
func readKernel(payload []byte, s *Stamp) Kind {
	if len(payload) < kernelHdrLen || binary.BigEndian.Uint32(payload) != MagicKernel {
		return KindOther
	}
	*s = Stamp{Kind: KindKernelPktgen, Seq: binary.BigEndian.Uint32(payload[4:])}
	sec, usec := binary.BigEndian.Uint32(payload[8:]), binary.BigEndian.Uint32(payload[12:])
	s.TimeNs = int64(sec)*1e9 + int64(usec)*1e3 // the kernel's NO_TIMESTAMP leaves both 0
	return KindKernelPktgen
}
