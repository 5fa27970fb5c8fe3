package testnet_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// spy is a test that is only looked at.
type spy struct {
	testing.TB
	ended   string
	cleanup []func()
}

func (s *spy) Helper()           {}
func (s *spy) Cleanup(f func())  { s.cleanup = append(s.cleanup, f) }
func (s *spy) Error(args ...any) { s.ended += "Error: " + fmt.Sprint(args...) }
func (s *spy) Skip(args ...any)  { s.end("Skip: ", args) }
func (s *spy) Fatal(args ...any) { s.end("Fatal: ", args) }
func (s *spy) end(how string, args []any) {
	s.ended = how + fmt.Sprint(args...)
	runtime.Goexit()
}

// TestRequire: without privilege a skip with the reason, or a failure where
// tests are not to be skipped; with it, nothing.
func TestRequire(t *testing.T) {
	testnet.Require(t)
	require := func(privileged bool) string {
		s := &spy{}
		_ = netdev.OnThread(func() error {
			if !privileged {
				hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				var none [2]unix.CapUserData
				if err := unix.Capset(&hdr, &none[0]); err != nil { // this thread's alone
					t.Error(err)
				}
			}
			testnet.Require(s)
			return nil
		})
		return s.ended
	}
	t.Setenv("PKTGEN_REQUIRE_NET", "")
	if got := require(false); !strings.HasPrefix(got, "Skip: needs root (CAP_SYS_ADMIN,") {
		t.Errorf("without privilege: %q", got)
	}
	t.Setenv("PKTGEN_REQUIRE_NET", "1")
	if got := require(false); !strings.HasPrefix(got, "Fatal: needs root (CAP_SYS_ADMIN,") {
		t.Errorf("without privilege, and required: %q", got)
	}
	if got := require(true); got != "" {
		t.Errorf("with privilege: %q", got)
	}
}

// TestWire: each test has ends of its own, which go with it.
func TestWire(t *testing.T) {
	s := &spy{}
	tx, rx := testnet.Wire(t, lab.Options{})
	tx2, rx2 := testnet.Wire(s, lab.Options{MTU: 2000})
	for _, r := range []netdev.Ref{tx, rx, tx2, rx2} {
		if i, err := netdev.Lookup(r); err != nil || !i.Running || i.MTU != map[bool]int{true: 1500, false: 2000}[r == tx || r == rx] {
			t.Errorf("%v: %+v, %v", r, i, err)
		}
	}
	if tx.Netns == tx2.Netns || rx.Netns == rx2.Netns {
		t.Errorf("two tests share %v, %v", tx, rx)
	}
	for _, f := range s.cleanup {
		f()
	}
	if all, err := lab.List(); err != nil || len(all) != 2 || s.ended != "" {
		t.Errorf("after the end of one of two: %v, %v, %q", all, err, s.ended)
	}
}

// TestIn: f runs there, and its error, or end, is the test's.
func TestIn(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	here, there := "", ""
	here, _ = os.Readlink("/proc/thread-self/ns/net")
	testnet.In(t, tx, func() (err error) {
		there, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if there == "" || here == there {
		t.Errorf("ran in %q, the test in %q", there, here)
	}
	for name, f := range map[string]func() error{
		"an error": func() error { return unix.ENOTTY },
		"t.Fatal":  func() error { runtime.Goexit(); return nil },
	} {
		s := &spy{}
		_ = netdev.OnThread(func() error { testnet.In(s, tx, f); return nil })
		if !strings.HasPrefix(s.ended, "Fatal: ") {
			t.Errorf("%s: %q", name, s.ended)
		}
	}
}

// TestMainIsolates: /run/netns is this process's own.
func TestMainIsolates(t *testing.T) {
	testnet.Require(t)
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	parent, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err != nil {
		t.Skip("the parent cannot be looked at: ", err)
	}
	if own == parent {
		t.Error("the mount namespace is the one that the test binary was started in")
	}
}
