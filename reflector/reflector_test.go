package reflector

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"pktgen/frames"
	"pktgen/ring"
	"pktgen/ring/ringtest"
)

// bed is a reflector between two wires in memory, and a receiver of what it sends.
type bed struct {
	t       testing.TB
	in, out *ringtest.Wire
	rx, far *ringtest.RX
	tx      *ringtest.TX
	r       *Reflector
	tmpl    *frames.Template
}

func newBed(t testing.TB, change func(*Config)) *bed {
	t.Helper()
	spec := frames.Spec{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		Size: 80, Stamp: true, RoundTrip: true, RunID: 7, StreamID: 3,
	}
	tmpl, err := spec.Compile()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, in: ringtest.NewWire(1 << 20), out: ringtest.NewWire(1 << 20), tmpl: tmpl}
	b.rx, b.far, b.tx = b.in.RX(), b.out.RX(), b.out.TX(64, 200)
	_ = b.far.Start() // it never fails
	cfg := Config{
		Workers:   1,
		OpenRX:    func(int) (ring.RX, error) { return b.rx, nil },
		OpenTX:    func(int) (ring.TX, error) { return b.tx, nil },
		STAMPPort: frames.STAMPPort,
	}
	if change != nil {
		change(&cfg)
	}
	if b.r, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	b.r.Start()
	for end := time.Now().Add(10 * time.Second); !b.rx.Started(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not start")
		}
	}
	return b
}

func (b *bed) frame(n uint64) []byte {
	f := b.tmpl.Bytes()
	b.tmpl.Apply(f, n, int64(n+1)*1000)
	return f
}

func (b *bed) end() *Result {
	b.r.Stop()
	return b.r.Wait()
}

// returned reads all that came out.
func (b *bed) returned() (stamps []frames.Stamp) {
	b.t.Helper()
	for {
		blk, err := b.far.Next(0)
		if err != nil {
			return stamps
		}
		var f ring.Frame
		for blk.Next(&f) {
			var p frames.Parsed
			frames.ParseStamp(f.Data, &p)
			if !frames.VerifyChecksums(f.Data, &p) {
				b.t.Error("a frame with a wrong checksum came back")
			}
			stamps = append(stamps, p.Stamp)
		}
		b.far.Release(blk)
	}
}

// TestReflects: each frame comes back once, in order, with the times of the
// reflector's clock; what is not to come back is counted as what it is.
func TestReflects(t *testing.T) {
	const ahead = 3_600_000_000_000
	b := newBed(t, func(c *Config) { c.Clock = func(ns int64) int64 { return ns + ahead } })
	b.in.Now = func() int64 { return 5_000 }
	const n = 1000
	for i := range uint64(n) {
		b.in.Inject(0, b.frame(i))
	}
	closing := b.frame(0)
	b.tmpl.ApplyClosing(closing, 0, n)
	b.in.Inject(0, closing)
	damaged := b.frame(n)
	damaged[50] ^= 1
	b.in.Inject(0, damaged)
	b.in.Inject(0, make([]byte, 60))
	r := b.end()
	got := b.returned()
	if len(got) != n+1 || r.Returned != n+1 || r.Corrupt != 1 || r.Other != 1 || r.Short+r.NoRoom+r.Unsent+r.STAMP != 0 || r.Err != nil {
		t.Fatalf("%d came back; %+v, %v", len(got), r.Counts, r.Err)
	}
	for i, s := range got[:n] {
		if s.Kind != frames.KindReturned || s.Seq != uint32(i) || s.TimeNs != int64(i+1)*1000 || s.ReceivedNs != 5_000+ahead || s.ReturnedNs < time.Now().Add(-time.Minute).UnixNano()+ahead {
			t.Fatalf("frame %d: %+v", i, s)
		}
	}
	if s := got[n]; s.Kind != frames.KindClosing || s.Count != n {
		t.Errorf("closing frame: %+v", s)
	}
	if r.Residence.Count() != n+1 {
		t.Errorf("%d residences", r.Residence.Count())
	}
}

// TestFullDevice: where the device takes no more, the frames are counted and the
// reflector goes on.
func TestFullDevice(t *testing.T) {
	b := newBed(t, nil)
	b.tx.Stopped = true // before anything arrives
	for i := range uint64(200) {
		b.in.Inject(0, b.frame(i))
	}
	r := b.end()
	if r.Returned != 64 || r.NoRoom != 200-64 || r.Unsent != 64 || r.Err != nil {
		t.Errorf("%+v, %v", r.Counts, r.Err)
	}
}

// TestLinkLost: the workers end, and Failed tells.
func TestLinkLost(t *testing.T) {
	b := newBed(t, nil)
	b.rx.Fail(ring.ErrLinkDown)
	select {
	case <-b.r.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if r := b.end(); !errors.Is(r.Err, ring.ErrLinkDown) {
		t.Errorf("error %v", r.Err)
	}
}

// TestOpenFails: what is open is closed again.
func TestOpenFails(t *testing.T) {
	w := ringtest.NewWire(10)
	bad := errors.New("no ring")
	rx := w.RX()
	_, err := Open(Config{
		Workers: 1,
		OpenRX:  func(int) (ring.RX, error) { return rx, nil },
		OpenTX:  func(int) (ring.TX, error) { return nil, bad },
	})
	if !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
	if err := func() (err any) { defer func() { err = recover() }(); _ = rx.Close(); return nil }(); err == nil {
		t.Error("the receive ring is still open")
	}
}
