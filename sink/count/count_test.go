package count_test

import (
	"errors"
	"testing"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/internal/xdp"
	"pktgen/lab"
	"pktgen/sink/count"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestObject: the objects that are built in were compiled from the source beside
// them. What they count is tested where they are used, in cmd/pktgen.
func TestObject(t *testing.T) {
	if err := xdp.Compiled("count.bpf.c", "count_bpfel.o", "count_bpfeb.o"); err != nil {
		t.Error(err)
	}
}

// TestTaken: a port has one program, and a second sink is told so.
func TestTaken(t *testing.T) {
	_, rx := testnet.Wire(t, lab.Options{})
	info, err := netdev.Lookup(rx)
	if err != nil {
		t.Fatal(err)
	}
	cfg := count.Config{Name: rx.String(), Index: info.Index, MTU: info.MTU, Enter: rx.Enter}
	first, err := count.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if mode, _ := first.Mode(); mode != xdp.Native {
		t.Errorf("a veth has it %s", mode)
	}
	if _, err := count.Open(cfg); !errors.Is(err, xdp.ErrTaken) || !errors.Is(err, count.ErrUnable) {
		t.Errorf("a second sink: %v", err)
	}
	first.Stop()
	if err := first.Wait().Err; err != nil {
		t.Error(err)
	}
	again, err := count.Open(cfg)
	if err != nil {
		t.Fatalf("the port was given back: %v", err)
	}
	again.Stop()
	if err := again.Wait().Err; err != nil {
		t.Error(err)
	}
}
