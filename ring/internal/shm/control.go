package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendControl sends what a socket's ring holds, with control messages, of which
// there are some. flags must have MSG_DONTWAIT, as those of RecvControl. It does
// not allocate. Errors: sendmsg(2)'s.
func SendControl(fd int, oob []byte, flags int) error {
	msg := unix.Msghdr{Control: &oob[0]}
	msg.SetControllen(len(oob))
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), uintptr(flags))
	if errno != 0 {
		return errno
	}
	return nil
}

// RecvControl reads the control messages of the next message of a socket into
// oob, which is not empty, and returns their length; the message's own octets are
// dropped. flags must have MSG_DONTWAIT: the runtime does not know that the thread
// is in the kernel. Unlike unix.Recvmsg it does not allocate. Errors: recvmsg(2)'s.
func RecvControl(fd int, oob []byte, flags int) (int, error) {
	msg := unix.Msghdr{Control: &oob[0]}
	msg.SetControllen(len(oob))
	_, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(msg.Controllen), nil
}

// Send sends b, which is not empty, as one message: 0, or send(2)'s error. flags
// must have MSG_DONTWAIT, as those of RecvControl.
func Send(fd int, b []byte, flags int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(flags), 0, 0)
	return errno
}

// Getsockopt reads a socket option, of which there is a struct, into b, which is not
// empty, and returns its length. Errors: getsockopt(2)'s.
func Getsockopt(fd, level, opt int, b []byte) (int, error) {
	n := uint32(len(b))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
