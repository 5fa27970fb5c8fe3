package tpacket

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// message is a control message with its header.
func message(level, kind int32, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(len(data))))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

func stampMessages(sec, nsec uint64, origin byte, number uint32) []byte {
	times := make([]byte, 48)
	binary.NativeEndian.PutUint64(times, sec)
	binary.NativeEndian.PutUint64(times[8:], nsec)
	err := make([]byte, 16)
	err[4] = origin
	binary.NativeEndian.PutUint32(err[12:], number)
	return append(message(unix.SOL_SOCKET, unix.SCM_TIMESTAMPING, times), message(unix.SOL_PACKET, unix.PACKET_TX_TIMESTAMP, err)...)
}

func TestParseStamp(t *testing.T) {
	good := stampMessages(1_800_000_000, 123_456_789, unix.SO_EE_ORIGIN_TIMESTAMPING, 4711)
	if n, ns, ok := parseStamp(good); !ok || n != 4711 || ns != 1_800_000_000_123_456_789 {
		t.Errorf("frame %d at %d, %v", n, ns, ok)
	}
	for name, b := range map[string][]byte{
		"nothing":         nil,
		"no time":         stampMessages(0, 0, unix.SO_EE_ORIGIN_TIMESTAMPING, 1), // hardware only
		"no stamp at all": stampMessages(1, 1, 1, 1),                              // some other error
		"cut":             good[:len(good)-8],
		"time only":       good[:unix.CmsgSpace(48)],
	} {
		if n, ns, ok := parseStamp(b); ok {
			t.Errorf("%s: frame %d at %d", name, n, ns)
		}
	}
}

func FuzzParseStamp(f *testing.F) {
	f.Add(stampMessages(1, 2, unix.SO_EE_ORIGIN_TIMESTAMPING, 3))
	f.Fuzz(func(t *testing.T, oob []byte) {
		if _, ns, ok := parseStamp(oob); ok && ns <= 0 {
			t.Errorf("time %d", ns)
		}
	})
}
