package tpacket

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
)

var _ ring.Launcher = (*TX)(nil)

// useLaunchTimes lets each frame carry the time at which it is to leave (SO_TXTIME,
// tc-etf(8)). struct sock_txtime, linux/net_tstamp.h: clockid, flags.
func (t *TX) useLaunchTimes(clockid int) error {
	var b [8]byte
	binary.NativeEndian.PutUint32(b[:], uint32(clockid))
	if err := unix.SetsockoptString(t.sock.FD, unix.SOL_SOCKET, unix.SO_TXTIME, string(b[:])); err != nil {
		return t.sock.Errorf("SO_TXTIME", err)
	}
	// One control message, SCM_TXTIME, with 64 bits of ns.
	t.launch = make([]byte, unix.CmsgSpace(8))
	binary.NativeEndian.PutUint64(t.launch, uint64(unix.CmsgLen(8)))
	binary.NativeEndian.PutUint32(t.launch[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(t.launch[12:], unix.SCM_TXTIME)
	return nil
}

// KickAt implements ring.Launcher. The kernel gives the time to every frame that is
// committed and not yet sent.
func (t *TX) KickAt(launchNs int64) error {
	binary.NativeEndian.PutUint64(t.launch[unix.CmsgLen(0):], uint64(launchNs))
	err := shm.SendControl(t.sock.FD, t.launch, unix.MSG_DONTWAIT)
	if err == nil {
		return nil
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return t.kickError(errno)
	}
	return err
}
