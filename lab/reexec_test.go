package lab_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func sigterm() syscall.Signal { return syscall.SIGTERM }

// reexecPass is a program that makes a test bed as whatever user it is started
// by, and passes frames in it: exit code 7 and a line when all went well.
func reexecPass() int {
	code, did, err := lab.Reexec(context.Background(), sigterm)
	if errors.Is(err, lab.ErrNoUserNamespace) {
		fmt.Println("SKIP", err)
		return 0
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if did {
		return code
	}
	err = func() error {
		if !lab.Privileged() {
			return errors.New("not privileged")
		}
		for _, e := range os.Environ() {
			if strings.HasPrefix(e, "PKTGEN_LAB_INSIDE=") {
				return fmt.Errorf("what it starts would inherit %s", e)
			}
		}
		if code, did, err := lab.Reexec(context.Background(), sigterm); did || err != nil {
			return fmt.Errorf("a second time: %d, %v, %v", code, did, err)
		}
		entries, err := os.ReadDir(netdev.NamedNamespaces)
		if err != nil || len(entries) != 0 {
			return fmt.Errorf("at first: %v, %v", entries, err)
		}
		l, err := lab.Wire(lab.Options{Queues: 2, Pairs: 2})
		if err != nil {
			return err
		}
		for _, p := range l.Pairs {
			if err := errors.Join(pass(p.TX, p.RX, 60, 1), pass(p.RX, p.TX, 1514, 2)); err != nil {
				return err
			}
		}
		if all, err := lab.List(); err != nil || len(all) != 2 || !all[0].Held {
			return fmt.Errorf("List: %v, %v", all, err)
		}
		return l.Close()
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("passed, as", os.Getuid(), os.Args[1:])
	return 7
}

// reexecWait waits in its namespace for a signal, and says which in its exit code.
func reexecWait() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	code, did, err := lab.Reexec(ctx, sigterm)
	if errors.Is(err, lab.ErrNoUserNamespace) {
		fmt.Println("SKIP", err)
		return 0
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if did {
		return code
	}
	fmt.Println("ready", os.Getppid(), os.Getpid())
	<-ctx.Done()
	return 42
}

// ordinary is a command that runs a copy of the test binary as an ordinary user.
func ordinary(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), helper+"="+name)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	return cmd
}

// skipped says that user namespaces are forbidden here.
func skipped(t *testing.T, out string) {
	t.Helper()
	why, yes := strings.CutPrefix(out, "SKIP ")
	if !yes {
		return
	}
	if os.Getenv("PKTGEN_REQUIRE_NET") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func TestReexec(t *testing.T) {
	cmd := ordinary(t, "reexec", "an argument", "--flag")
	out, _ := cmd.CombinedOutput()
	skipped(t, string(out))
	if code := cmd.ProcessState.ExitCode(); code != 7 || string(out) != "passed, as 0 [an argument --flag]\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestReexecPrivileged: root stays where it is, whatever its environment says.
func TestReexecPrivileged(t *testing.T) {
	alone(t)
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	wire(t, lab.Options{})
	t.Setenv("PKTGEN_LAB_INSIDE", own)
	before := names(t)
	if code, did, err := lab.Reexec(t.Context(), sigterm); code != 0 || did || err != nil {
		t.Errorf("%d, %v, %v", code, did, err)
	}
	if after := names(t); len(after) != len(before) || len(after) != 2 {
		t.Errorf("names before %q, after %q", before, after)
	}
}

// TestReexecFileCapabilities: as the package installs the binary, which makes
// /proc/PID of what it starts root's.
func TestReexecFileCapabilities(t *testing.T) {
	testnet.Require(t)
	cmd := ordinary(t, "reexec")
	without := *cmd
	out, _ := without.CombinedOutput()
	skipped(t, string(out))
	// struct vfs_cap_data, linux/capability.h: VFS_CAP_REVISION_2 with
	// VFS_CAP_FLAGS_EFFECTIVE, permitted, inheritable, and their upper halves.
	var data [20]byte
	binary.LittleEndian.PutUint32(data[0:], 0x02000000|1)
	binary.LittleEndian.PutUint32(data[4:], 1<<unix.CAP_NET_RAW)
	if err := unix.Setxattr(cmd.Path, "security.capability", data[:], 0); err != nil {
		t.Skipf("setcap: %v", err)
	}
	// By way of a shell: only who gains capabilities by the exec is not dumpable.
	cmd.Args = []string{"sh", "-c", `"$0"; exit $?`, cmd.Path}
	cmd.Path = "/bin/sh"
	out, _ = cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestReexecSignals: what ends the first process ends the one it has started; of
// a signal that one learns, and its exit code comes back.
func TestReexecSignals(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGTERM, 42}, {syscall.SIGKILL, -1}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			cmd := ordinary(t, "reexec-wait")
			out, err := cmd.StdoutPipe() // of both: it ends with the last of them
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var inner atomic.Int64
			limit := time.AfterFunc(20*time.Second, func() { // ends only a test that fails
				_ = cmd.Process.Kill()
				if pid := inner.Load(); pid != 0 {
					_ = unix.Kill(int(pid), unix.SIGKILL)
				}
				_ = out.Close()
			})
			lines := bufio.NewReader(out)
			line, _ := lines.ReadString('\n')
			skipped(t, line)
			var parent, pid int64
			if _, err := fmt.Sscanf(line, "ready %d %d\n", &parent, &pid); err != nil || parent != int64(cmd.Process.Pid) {
				t.Errorf("it says %q (%v)", line, err)
			}
			inner.Store(pid)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Error(err)
			}
			rest, err := io.ReadAll(lines)
			if err != nil || len(rest) > 0 || !limit.Stop() {
				t.Errorf("it does not end: %q, %v", rest, err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
		})
	}
}

// TestReexecForbidden: where user namespaces are forbidden, the error says by what.
func TestReexecForbidden(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{nil, ""},
		{map[string]string{
			"kernel/unprivileged_userns_clone": "1", "user/max_user_namespaces": "96362", "kernel/apparmor_restrict_unprivileged_userns": "0",
		}, ""},
		{map[string]string{"kernel/unprivileged_userns_clone": "0"}, " (kernel.unprivileged_userns_clone = 0)"},
		{map[string]string{"user/max_user_namespaces": "0", "kernel/apparmor_restrict_unprivileged_userns": "1"},
			" (user.max_user_namespaces = 0, kernel.apparmor_restrict_unprivileged_userns = 1)"},
	} {
		sys := fstest.MapFS{}
		for name, value := range c.files {
			sys[name] = &fstest.MapFile{Data: []byte(value + "\n")}
		}
		if got := lab.Forbidding(sys); got != c.want {
			t.Errorf("%v: %q, want %q", c.files, got, c.want)
		}
	}
}
