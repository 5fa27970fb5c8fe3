// Package testnet gives integration tests a test bed of network namespaces.
package testnet

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/lab"
)

// Require skips the test, with the reason, where network namespaces cannot be
// made; with PKTGEN_REQUIRE_NET=1 it fails instead.
func Require(t testing.TB) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&hdr, &data[0])
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	if err == nil && data[0].Effective&need == need {
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

// In runs f on a thread in the interface's network namespace.
func In(t testing.TB, r netdev.Ref, f func() error) {
	t.Helper()
	if err := r.Do(f); err != nil {
		t.Fatal(err)
	}
}
