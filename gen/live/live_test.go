package live_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

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

// attach puts a program of one answer on a port.
func attach(t testing.TB, r netdev.Ref, answer int32) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, answer), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	var a *xdp.Attached
	testnet.In(t, r, func() error {
		a, err = xdp.Attach(r.Name, lookup(t, r).Index, prog)
		return err
	})
	t.Cleanup(func() { a.Close(); prog.Close() })
}

// received is what a port itself has counted.
func received(t testing.TB, r netdev.Ref) uint64 {
	t.Helper()
	p, err := netdev.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.RxPackets
}

const (
	drop = 1
	pass = 2
)

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

func run(t testing.TB, r netdev.Ref, cfg gen.Config) []gen.Result {
	t.Helper()
	s, err := live.Open(cfg, live.Port{Name: r.Name, Index: lookup(t, r).Index})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	rs := s.Wait()
	if err := s.Close(3); err != nil {
		t.Error(err)
	}
	for _, r := range rs {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
	return rs
}

func TestRefused(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	_, err := live.Open(config(t, tx, spec(64), 1), live.Port{Name: tx.Name, Index: lookup(t, tx).Index})
	if !errors.Is(err, live.ErrUnable) || !errors.Is(err, live.ErrRefused) {
		t.Errorf("a veth whose peer has neither XDP nor GRO: %v", err)
	}
}

func TestRate(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	attach(t, rx, drop)
	cfg := config(t, tx, spec(64), 1)
	cfg.Duration = 2 * time.Second
	before := received(t, rx)
	rs := run(t, tx, cfg)
	t.Log(received(t, rx) - before)
	for _, r := range rs {
		t.Logf("%+v %.3f M/s", r, float64(r.Sent)/float64(r.LastNs-r.FirstNs)*1e3)
	}
}
