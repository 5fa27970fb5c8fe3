package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/internal/netdev"
	"pktgen/internal/xdp"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/sink/count"
)

// Exit codes, as the help says.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitLimit     = 3
	exitPrivilege = 4
	exitSignal    = 128 // + the signal's number
)

// usageError is wrong on any machine.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// hinted carries the way out beside an error.
type hinted struct {
	error
	hint string
}

func (e hinted) Unwrap() error { return e.error }

func withHint(err error, format string, a ...any) error {
	return hinted{err, fmt.Sprintf(format, a...)}
}

// limitError: a limit that the user stated was missed.
type limitError struct{ error }

// finished carries the exit code of a run whose result, error included, has
// been printed.
type finished struct{ code int }

func (f *finished) Error() string { return fmt.Sprintf("exit code %d", f.code) }

// explain gives the exit code of an error, and the way out where there is one.
func explain(err error) (code int, hint string) {
	var h hinted
	if errors.As(err, &h) {
		hint = h.hint
	}
	code, own := classify(err)
	if hint == "" {
		hint = own
	}
	return code, hint
}

func classify(err error) (code int, hint string) {
	var usage usageError
	var size *frames.SizeError
	var stop interrupted
	var asked cli.ExitCoder
	switch {
	case errors.As(err, &usage), errors.As(err, &asked): // the latter: help on what is not there
		return exitUsage, ""
	case errors.As(err, &size):
		return exitUsage, fmt.Sprintf("use --size %d or more, or --no-stamp", size.Min)
	case errors.As(err, new(limitError)):
		return exitLimit, ""
	case errors.As(err, &stop):
		return exitSignal + int(stop.signal), ""
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return exitPrivilege, "run it as root, or give the binary what it needs: setcap cap_net_raw,cap_net_admin+ep pktgen"
	case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EAFNOSUPPORT):
		return exitPrivilege, "this kernel lacks a feature that pktgen needs: AF_PACKET rings, Linux 4.20 or newer"
	case errors.Is(err, xdp.ErrTaken):
		return exitFailed, "ip link show tells which; ip link set IFACE xdp off takes it away"
	case errors.Is(err, errNoLaunchTimes), unable(err), errors.Is(err, count.ErrUnable):
		return exitPrivilege, ""
	case errors.Is(err, netdev.ErrNoHardwareStamps):
		return exitPrivilege, "ethtool -T shows what the NIC notes; without --rx-time hardware the kernel's receive times serve"
	case errors.Is(err, netdev.ErrNotFound):
		return exitFailed, "ip link shows the interfaces; NAMESPACE/NAME means one in a network namespace"
	case errors.Is(err, netdev.ErrNoNamespace):
		return exitFailed, "ip netns shows the namespaces; /proc/PID/ns/net/NAME is one without a name"
	case errors.Is(err, lab.ErrNoUserNamespace):
		return exitPrivilege, "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns"
	case errors.Is(err, ring.ErrLinkDown), errors.Is(err, netdev.ErrLost):
		return exitFailed, "the interface was set down or removed during the run; what is printed was measured until then"
	case errors.Is(err, gen.ErrStalled):
		return exitFailed, "look at the link, flow control (pause frames), and the driver's log"
	case errors.Is(err, unix.ENOMEM):
		return exitFailed, "use fewer queues, or free memory: each queue maps its rings"
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno == unix.ENOSPC {
		return exitFailed, "the disk is full"
	}
	return exitFailed, ""
}
