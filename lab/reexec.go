package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
)

// inside marks the environment of a process that Reexec started.
const inside = "PKTGEN_LAB_INSIDE"

// Reexec runs this process's command line again in a user namespace where it
// may make network namespaces, if it may not do so here; did says that it has,
// and code is the exit code. When ctx ends, the process gets a SIGTERM, or the
// signal that signal tells.
func Reexec(ctx context.Context, signal func() syscall.Signal) (code int, did bool, err error) {
	if os.Getenv(inside) != "" {
		return 0, false, ownNames()
	}
	if privileged() {
		return 0, false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGTERM,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(signal()) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), true, nil
		}
		return exit.ExitCode(), true, nil
	case err != nil:
		return 0, false, fmt.Errorf("%w: %w", ErrNoUserNamespace, err)
	}
	return 0, true, nil
}

// ErrNoUserNamespace: an ordinary user may not make a user namespace here.
var ErrNoUserNamespace = errors.New("this system lets no ordinary user make a test bed (user namespaces)")

// privileged says that this process may make and mount network namespaces.
func privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&need == need
}

// ownNames gives this process, in its mount namespace, a place for namespaces'
// names that is its own.
func ownNames() error {
	dir := netdev.NamedNamespaces
	if _, err := os.Stat(dir); err != nil {
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on /run: %w", err)
		}
		return os.Mkdir(dir, 0o755)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}
