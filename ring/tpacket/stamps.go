package tpacket

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
)

var _ ring.Stamper = (*TX)(nil)

// Stamp implements ring.Stamper by SO_TIMESTAMPING (timestamping.rst): software
// stamps, which the driver takes as it hands the frame to the device, with
// OPT_ID and OPT_TSONLY, so that the frame itself, whose slot may have been used
// again by then, does not come back.
func (t *TX) Stamp(on bool) error {
	flags := unix.SOF_TIMESTAMPING_SOFTWARE // without it those under way would come without their time
	if on {
		flags |= unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY
	}
	if err := unix.SetsockoptInt(t.sock.FD, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return t.sock.Errorf("SO_TIMESTAMPING", err)
	}
	return nil
}

// ReadStamp implements ring.Stamper.
func (t *TX) ReadStamp() (n uint32, timeNs int64, ok bool) {
	length, err := shm.RecvControl(t.sock.FD, t.oob[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil { // none, or the link is lost, which Kick says
		return 0, 0, false
	}
	return parseStamp(t.oob[:length])
}

// stampOOB holds struct scm_timestamping (three times) and struct
// sock_extended_err (linux/errqueue.h), each with its header.
const stampOOB = 128

// parseStamp reads the frame's number and the software time out of the control
// messages of one stamp.
func parseStamp(oob []byte) (n uint32, timeNs int64, ok bool) {
	var haveTime, haveNumber bool
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0, 0, false
		}
		switch {
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPING && len(data) >= 16:
			// struct timespec: the first of three is the software's.
			timeNs = int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
			haveTime = timeNs > 0
		case h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_TX_TIMESTAMP && len(data) >= 16:
			if origin := data[4]; origin == unix.SO_EE_ORIGIN_TIMESTAMPING {
				n, haveNumber = binary.NativeEndian.Uint32(data[12:]), true // ee_data
			}
		}
		oob = rest
	}
	return n, timeNs, haveTime && haveNumber
}
