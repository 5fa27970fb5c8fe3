// Package testnet gives integration tests a test bed of network namespaces.
//
//	func TestMain(m *testing.M) { testnet.Main(m) }   the names of them are the test binary's own
//	tx, rx := testnet.Wire(t, lab.Options{})          a veth pair for one test
//	testnet.In(t, rx, func() error { ... })           work in a namespace
package testnet

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/lab"
)

// isolated marks the environment of a test binary that Main has isolated.
const isolated = "PKTGEN_TESTNET_ISOLATED"

// Main runs the tests of a package in a mount namespace with an empty /run/netns
// of its own, and exits. Test binaries that run at the same time then do not see,
// count or clean each other's namespaces, and however one ends, nothing is left.
// Without privilege the tests run as they are, to be skipped by Require.
func Main(m *testing.M) {
	Isolate()
	os.Exit(m.Run())
}

// Isolate is the first part of Main, for packages with a TestMain of their own.
func Isolate() {
	if os.Getenv(isolated) == "" && lab.Privileged() {
		if err := isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "testnet: a mount namespace of its own for the test binary:", err)
			os.Exit(1)
		}
	}
}

// isolate replaces the process by itself in a new mount namespace. A running
// Go process cannot go there whole: namespaces are a thread's. But of exec(2) the
// calling thread alone survives, and with it its namespaces.
func isolate() error {
	runtime.LockOSThread()
	if err := os.MkdirAll(netdev.NamedNamespaces, 0o755); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount / slave: %w", err)
	}
	if err := unix.Mount("tmpfs", netdev.NamedNamespaces, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", netdev.NamedNamespaces, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), isolated+"=1"))
}

// Require skips the test, with the reason, where network namespaces cannot be
// made; with PKTGEN_REQUIRE_NET=1 it fails instead.
func Require(t testing.TB) {
	t.Helper()
	if lab.Privileged() {
		return
	}
	const reason = "needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW): it makes network namespaces"
	if os.Getenv("PKTGEN_REQUIRE_NET") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// Wire makes a test bed with one veth pair, which goes with the test.
func Wire(t testing.TB, o lab.Options) (tx, rx netdev.Ref) {
	t.Helper()
	Require(t)
	l, err := lab.Wire(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.Pairs[0].TX, l.Pairs[0].RX
}

// In runs f on a thread in the interface's network namespace. f may end the
// test (t.Fatal).
func In(t testing.TB, r netdev.Ref, f func() error) {
	t.Helper()
	if err := r.Do(f); err != nil {
		t.Fatal(err)
	}
}
