package live_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/gen/live"
	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/internal/xdp"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/ring/tpacket"
	"pktgen/units"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func lookup(t testing.TB, r netdev.Ref) netdev.Info {
	t.Helper()
	info, err := netdev.Lookup(r)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// config is that of one worker's frames of a spec.
func config(t testing.TB, r netdev.Ref, spec frames.Spec, workers int) gen.Config {
	t.Helper()
	info := lookup(t, r)
	var tmpls []*frames.Template
	for range workers {
		tmpl, err := spec.Compile()
		if err != nil {
			t.Fatal(err)
		}
		tmpls = append(tmpls, tmpl)
		spec.StreamID++
	}
	cpus := make([]int, workers)
	for i := range cpus {
		cpus[i] = i
	}
	return gen.Config{
		Workers: workers, CPUs: cpus, Enter: r.Enter,
		Open: func(worker int) (ring.TX, error) {
			return tpacket.OpenTX(tpacket.TXOptions{Interface: r.Name, Index: info.Index, Queue: worker, MaxFrame: tmpls[worker].Len()})
		},
		Template: func(i int) *frames.Template { return tmpls[i] },
	}
}

func spec(size units.FrameSize) frames.Spec {
	return frames.Spec{
		Size: size, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Stamp: true, RunID: 77, StreamID: 5,
	}
}

func TestRefused(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	_, err := live.Open(config(t, tx, spec(64), 1), live.Port{Name: tx.Name, Index: lookup(t, tx).Index})
	if !errors.Is(err, live.ErrUnable) || !errors.Is(err, live.ErrRefused) {
		t.Errorf("a veth whose peer has neither XDP nor GRO: %v", err)
	}
}

// TestObject: the objects that are built in were compiled from the source beside
// them. How they send is tested where they are used, in cmd/pktgen.
func TestObject(t *testing.T) {
	if err := xdp.Compiled("live.bpf.c", "live_bpfel.o", "live_bpfeb.o"); err != nil {
		t.Error(err)
	}
}
