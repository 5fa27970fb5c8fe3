package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
)

// inside tells the process that Reexec starts which user namespace it was
// started from: user:[INODE]. Where that is still its own, somebody else has set it.
const inside = "PKTGEN_LAB_INSIDE"

// Reexec runs this process's command line again in a user, mount and network
// namespace of its own, where it may make network namespaces, if it may not do
// so here; did says that it has, and code is the exit code. When ctx ends, that
// process gets the signal that signal tells; when this one is killed, SIGTERM.
// There, /run/netns is private, so that nothing of it is left when it ends.
//
// Errors: ErrNoUserNamespace.
func Reexec(ctx context.Context, signal func() syscall.Signal) (code int, did bool, err error) {
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // not there: a kernel without user namespaces
		return 0, false, err
	}
	if from := os.Getenv(inside); from != "" && own != "" && from != own {
		// Once only: for what is started from here, this is how things are.
		if err := os.Unsetenv(inside); err != nil {
			return 0, false, err
		}
		if err := ownNames(); err != nil {
			return 0, false, noUserNamespace(err)
		}
		return 0, false, nil
	}
	if Privileged() {
		return 0, false, nil
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"="+own)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGTERM,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(signal()) }
	cmd.WaitDelay = 5 * time.Second
	// Pdeathsig tells of the death of the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A binary with file capabilities is not dumpable, and then /proc/PID/uid_map
	// of what it starts belongs to root (proc(5)). Without privilege this is no loss.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return 0, false, fmt.Errorf("prctl PR_SET_DUMPABLE: %w", err)
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return 0, false, err
		}
		return 0, false, noUserNamespace(err)
	}
	err = cmd.Wait()
	if state := cmd.ProcessState; state != nil {
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), true, nil
		}
		return state.ExitCode(), true, nil
	}
	return 0, true, err
}

// ErrNoUserNamespace: an ordinary user may not make a test bed here.
var ErrNoUserNamespace = errors.New("this system lets no ordinary user make a test bed (user namespaces)")

// noUserNamespace does not wrap the cause: as EPERM it would say that a file
// capability helps.
func noUserNamespace(cause error) error {
	return fmt.Errorf("%w: %v%s", ErrNoUserNamespace, cause, forbidding(os.DirFS("/proc/sys")))
}

// forbidding names the settings in /proc/sys that forbid user namespaces:
// Debian's, that of user_namespaces(7), and Ubuntu's.
func forbidding(sys fs.FS) string {
	var set []string
	for _, s := range []struct{ path, name, forbids string }{
		{"kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone", "0"},
		{"user/max_user_namespaces", "user.max_user_namespaces", "0"},
		{"kernel/apparmor_restrict_unprivileged_userns", "kernel.apparmor_restrict_unprivileged_userns", "1"},
	} {
		b, err := fs.ReadFile(sys, s.path)
		if value := strings.TrimSpace(string(b)); err == nil && value == s.forbids {
			set = append(set, s.name+" = "+value)
		}
	}
	if len(set) == 0 {
		return ""
	}
	return " (" + strings.Join(set, ", ") + ")"
}

// Privileged says that this process has what test beds need: CAP_SYS_ADMIN,
// CAP_NET_ADMIN and CAP_NET_RAW.
func Privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&need == need
}

// ownNames gives this process, in its mount namespace, a place for namespaces'
// names that is its own.
func ownNames() error {
	dir := netdev.NamedNamespaces
	if _, err := os.Stat(dir); err == nil {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
		return nil
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on /run: %w", err)
	}
	return os.Mkdir(dir, 0o755)
}
