package count_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/gen/live"
	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/ring/tpacket"
	"pktgen/sink"
	"pktgen/sink/count"
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

func spec(size units.FrameSize) frames.Spec {
	return frames.Spec{
		Size: size, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Stamp: true, RunID: 77, StreamID: 5,
	}
}

func open(t testing.TB, r netdev.Ref, cfg count.Config) *count.Sink {
	t.Helper()
	info := lookup(t, r)
	cfg.Name, cfg.Index, cfg.MTU, cfg.Enter = r.Name, info.Index, info.MTU, r.Enter
	s, err := count.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if err := s.Wait().Err; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestLive(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	for _, verify := range []bool{false, true} {
		s := open(t, rx, count.Config{NoVerify: !verify})
		s.Start()
		tmpl, err := spec(64).Compile()
		if err != nil {
			t.Fatal(err)
		}
		g, err := live.Open(gen.Config{
			Workers: 1, CPUs: []int{0}, Enter: tx.Enter, Duration: 2 * time.Second,
			Open: func(worker int) (ring.TX, error) {
				return tpacket.OpenTX(tpacket.TXOptions{Interface: tx.Name, Index: lookup(t, tx).Index, Queue: worker, MaxFrame: tmpl.Len()})
			},
			Template: func(i int) *frames.Template { return tmpl },
		}, live.Port{Name: tx.Name, Index: lookup(t, tx).Index})
		if err != nil {
			t.Fatal(err)
		}
		g.Start()
		rs := g.Wait()
		if err := g.Close(3); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond)
		s.Stop()
		r := s.Wait()
		t.Logf("%+v %.3f M/s", rs[0], float64(rs[0].Sent)/float64(rs[0].LastNs-rs[0].FirstNs)*1e3)
		t.Logf("%+v", r.Counts)
		for _, st := range r.Streams {
			t.Logf("%d lost %d %+v %+v", st.ID, st.Lost(), st.Latency.Summary(), st.Jitter.Summary())
		}
	}
}

var _ = sink.Open
