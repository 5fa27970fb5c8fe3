package netdev_test

import (
	"errors"
	"testing"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// TestHardwareStamps: a veth pair has none, and says so.
func TestHardwareStamps(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	h, err := netdev.EnableHardwareStamps(tx)
	if !errors.Is(err, netdev.ErrNoHardwareStamps) {
		t.Errorf("error %v", err)
	}
	if err := h.Restore(); err != nil {
		t.Error(err)
	}
	if _, err := netdev.EnableHardwareStamps(netdev.Ref{Netns: tx.Netns, Name: "nowhere"}); err == nil {
		t.Error("an interface that is not there was set")
	}
}
