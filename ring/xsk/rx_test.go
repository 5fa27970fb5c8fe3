package xsk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"pktgen/frames"
	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/internal/xdp"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/ring/xsk"
	"pktgen/units"
)

func openPort(t testing.TB, r netdev.Ref, queues int) *xsk.Port {
	t.Helper()
	var p *xsk.Port
	testnet.In(t, r, func() (err error) {
		p, err = xsk.OpenPort(xsk.PortOptions{Interface: r.Name, Index: index(t, r), Queues: queues})
		return err
	})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func openRX(t testing.TB, r netdev.Ref, o xsk.RXOptions) *xsk.RX {
	t.Helper()
	o.Interface, o.Index = r.Name, index(t, r)
	if o.Port == nil {
		o.Port = openPort(t, r, 1)
	}
	if o.MaxFrame == 0 {
		o.MaxFrame = 1518
	}
	if o.Slots == 0 {
		o.Slots = 2048
	}
	var rx *xsk.RX
	testnet.In(t, r, func() (err error) {
		rx, err = xsk.OpenRX(o)
		return err
	})
	if err := rx.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rx.Close(); err != nil {
			t.Error(err)
		}
	})
	return rx
}

func spec(size units.FrameSize) frames.Spec {
	return frames.Spec{
		Size: size, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		SrcPort: 1024, DstPort: 9, Stamp: true, RunID: 77, StreamID: 5,
	}
}

func compile(t testing.TB, s frames.Spec) *frames.Template {
	t.Helper()
	tmpl, err := s.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// TestReceive: every frame of every size, whole, once, in order, and at its time.
func TestReceive(t *testing.T) {
	const total = 10_000
	for _, c := range []struct{ size, mtu int }{{60, 1500}, {61, 1500}, {590, 1500}, {1514, 1500}, {1792, 2000}, {1793, 2000}, {xsk.MaxReceived, 5000}} {
		t.Run(fmt.Sprintf("size=%d", c.size), func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: c.mtu})
			tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: c.size})
			rx := openRX(t, rxEnd, xsk.RXOptions{MaxFrame: c.size, Slots: 600})
			tmpl := compile(t, spec(units.FrameSize(c.size+4)))
			tx.Prefill(func(slot []byte) int { return copy(slot, tmpl.Bytes()) })
			var p frames.Parsed
			last := time.Now().UnixNano()
			for sent, got := uint32(0), uint32(0); got < total; {
				for window := sent + 500; sent < min(window, total); {
					slots := tx.Reserve(min(64, int(min(window, total)-sent)))
					for i, s := range slots {
						tmpl.Apply(s, uint64(sent)+uint64(i), time.Now().UnixNano())
					}
					tx.Commit(slots)
					sent += uint32(len(slots))
					if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
						t.Fatal(err)
					}
				}
				drain(t, tx)
				receive(t, rx, int(sent-got), func(f *ring.Frame) {
					kind := frames.ParseStamp(f.Data, &p)
					if kind != frames.KindTest || p.Stamp.Seq != got || len(f.Data) != c.size || f.WireLen != c.size || frames.VerifyChecksums(f.Data, &p) != true {
						t.Fatalf("frame %d: %+v, %d octets", got, p, len(f.Data))
					}
					if now := time.Now().UnixNano(); f.TimeNs < p.Stamp.TimeNs-1000 || f.TimeNs < last-1000 || f.TimeNs > now {
						t.Fatalf("sent at %d, received at %d, after one at %d; now %d", p.Stamp.TimeNs, f.TimeNs, last, now)
					}
					last = f.TimeNs
					got++
				})
			}
			if d, err := rx.Drops(); err != nil || d != (ring.KernelDrops{Packets: total}) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// TestTimes: the time of a frame is when it came, not when it was read.
func TestTimes(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{}), openRX(t, rxEnd, xsk.RXOptions{})
	before := time.Now().UnixNano()
	send(t, tx, compile(t, spec(64)).Bytes())
	after := time.Now().UnixNano()
	time.Sleep(50 * time.Millisecond)
	receive(t, rx, 1, func(f *ring.Frame) {
		if f.TimeNs < before-1000 || f.TimeNs > after+20_000_000 {
			t.Errorf("received %d ns after it was sent", f.TimeNs-before)
		}
	})
}

// wrap puts tags and IPv4 options or IPv6 extension headers around a payload.
func wrap(tags int, v6 bool, proto byte, extra []byte, payload []byte) []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for i := range tags {
		f = binary.BigEndian.AppendUint16(f, []uint16{0x88a8, 0x8100, 0x9100}[i%3])
		f = append(f, 0, 42)
	}
	l4 := make([]byte, 8)
	switch proto {
	case 6:
		l4 = make([]byte, 20)
		l4[12] = 5 << 4
	case 1:
		l4[0] = 8
	case 58:
		l4[0] = 128
	}
	payload = append(l4, payload...)
	if v6 {
		f = append(f, 0x86, 0xdd)
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		if len(extra) > 0 {
			ip[6] = 60 // destination options
			extra[0] = proto
		}
		binary.BigEndian.PutUint16(ip[4:], uint16(len(extra)+len(payload)))
		return append(append(append(f, ip...), extra...), payload...)
	}
	f = append(f, 8, 0)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x40|byte(5+len(extra)/4), 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(extra)+len(payload)))
	return append(append(append(f, ip...), extra...), payload...)
}

// TestOurs: the program takes what frames.ParseStamp says is ours, and leaves the rest
// to the kernel.
func TestOurs(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx, kernel := openTX(t, txEnd, xsk.TXOptions{}), openRX(t, rxEnd, xsk.RXOptions{}), openPacket(t, rxEnd)
	payload := func(magic uint32, n int) []byte {
		b := make([]byte, n)
		var m [4]byte
		binary.BigEndian.PutUint32(m[:], magic)
		copy(b, m[:])
		return b
	}
	var all [][]byte
	for _, magic := range []uint32{0x9e37_0000, 0x9e38_0000, 0x9e39_0000, 0x9e36_0000, 0xbe9be955, 0x379e_0000} {
		for _, n := range []int{0, 15, 16, 17, 18, 33, 34, 100} {
			for _, tags := range []int{0, 1, 2, 4, 5} {
				for _, proto := range []byte{17, 6, 1, 58, 132} {
					for _, v6 := range []bool{false, true} {
						for _, extra := range []int{0, 8, 24} {
							all = append(all, wrap(tags, v6, proto, make([]byte, extra), payload(magic, n)))
						}
					}
				}
			}
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for whole := all; len(all) < len(whole)+3000; {
		f := bytes.Clone(whole[rnd.IntN(len(whole))])
		for range 1 + rnd.IntN(3) {
			f[12+rnd.IntN(min(len(f)-12, 60))] = byte(rnd.Uint32())
		}
		if rnd.IntN(2) == 0 {
			f = f[:14+rnd.IntN(len(f)-13)]
		}
		all = append(all, f)
	}
	var p frames.Parsed
	ours, others, taken, passed := 0, 0, 0, 0
	for _, f := range all {
		send(t, tx, f)
		var g ring.Frame
		if frames.ParseStamp(f, &p) == frames.KindOther {
			// Of frames with a tag the kernel itself drops those that are too short.
			if tag := binary.BigEndian.Uint16(f[12:]); tag != 0x8100 && tag != 0x88a8 {
				others++
			}
			b, err := rx.Next(0)
			if !errors.Is(err, ring.ErrTimeout) {
				b.Next(&g)
				t.Fatalf("taken: % x", g.Data)
			}
			continue
		}
		ours++
		b, err := rx.Next(time.Second)
		if err != nil {
			t.Fatalf("%v, but it is ours: % x", err, f)
		}
		for b.Next(&g) {
			taken++
			if !bytes.Equal(g.Data, f) {
				t.Fatalf("% x\ninstead of\n% x", g.Data, f)
			}
		}
		rx.Release(b)
	}
	if ours < 1000 || others < 1000 || taken != ours {
		t.Errorf("%d ours, %d taken, %d others", ours, taken, others)
	}
	for passed < others {
		b, err := kernel.Next(patience)
		if err != nil {
			t.Fatalf("%v: of %d others the kernel has %d", err, others, passed)
		}
		var f ring.Frame
		for b.Next(&f) {
			if f.TPID == 0 && bytes.Equal(f.Data[6:12], []byte{2, 0, 0, 0, 0, 1}) {
				passed++
			}
		}
		kernel.Release(b)
	}
	if passed != others {
		t.Errorf("the kernel has %d, want %d", passed, others)
	}
}

// TestKernelTraffic: what is not ours reaches the host: an echo comes back, and a
// datagram its socket.
func TestKernelTraffic(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	rx := openRX(t, rxEnd, xsk.RXOptions{})
	address := func(r netdev.Ref, a string) {
		link(t, r, func(l netlink.Link) error {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, addr)
		})
	}
	address(txEnd, "192.0.2.1/24")
	address(rxEnd, "192.0.2.2/24")
	var server net.PacketConn
	testnet.In(t, rxEnd, func() (err error) {
		server, err = net.ListenPacket("udp4", "192.0.2.2:4711")
		return err
	})
	defer server.Close()
	var client net.Conn
	testnet.In(t, txEnd, func() (err error) {
		client, err = net.Dial("udp4", "192.0.2.2:4711")
		return err
	})
	defer client.Close()
	stamp := make([]byte, 18)
	binary.BigEndian.PutUint16(stamp, frames.MagicTest)
	for _, m := range []string{"hello", string(stamp), "goodbye"} {
		if _, err := client.Write([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 100)
	for _, want := range []string{"hello", "goodbye"} {
		_ = server.SetReadDeadline(time.Now().Add(patience))
		n, from, err := server.ReadFrom(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v, want %q", b[:n], err, want)
		}
		if _, err := server.WriteTo(b[:n], from); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(patience))
		if n, err := client.Read(b); err != nil || string(b[:n]) != want {
			t.Fatalf("back: %q, %v", b[:n], err)
		}
	}
	receive(t, rx, 1, func(f *ring.Frame) {
		if !bytes.HasSuffix(f.Data, stamp) {
			t.Errorf("% x", f.Data)
		}
	})
}

// TestReceiveQueues: a ring has the frames of its queue alone, and none from before
// its Start.
func TestReceiveQueues(t *testing.T) {
	const queues = 2
	txEnd, rxEnd := testnet.Wire(t, lab.Options{Queues: queues})
	port := openPort(t, rxEnd, queues)
	kernel := openPacket(t, rxEnd)
	var txs []*xsk.TX
	tmpl := compile(t, spec(64))
	for q := range queues {
		txs = append(txs, openTX(t, txEnd, xsk.TXOptions{Queue: q}))
		send(t, txs[q], tmpl.Bytes())
	}
	receive(t, kernel, queues, func(*ring.Frame) {})
	for q := range queues {
		rx := openRX(t, rxEnd, xsk.RXOptions{Queue: q, Port: port})
		for n := range 100 {
			for i, tx := range txs {
				if q == 0 && i > 0 {
					continue // its ring is not there yet
				}
				slots := tx.Reserve(1)
				slots[0] = slots[0][:copy(slots[0][:60], tmpl.Bytes())]
				tmpl.Apply(slots[0], uint64(n*queues+i), 0)
				tx.Commit(slots)
				if err := tx.Kick(); err != nil {
					t.Fatal(err)
				}
			}
		}
		next := uint32(q)
		receive(t, rx, 100, func(f *ring.Frame) {
			var p frames.Parsed
			if frames.ParseStamp(f.Data, &p); p.Stamp.Seq != next {
				t.Fatalf("queue %d: frame %d, want %d", q, p.Stamp.Seq, next)
			}
			next += queues
		})
	}
}

// TestDrops: a ring that is full drops, counts each, and goes on when it is read.
func TestDrops(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60})
	rx := openRX(t, rxEnd, xsk.RXOptions{Slots: 64})
	tmpl := compile(t, spec(64))
	tx.Prefill(func(slot []byte) int { return copy(slot, tmpl.Bytes()) })
	sent, received := uint64(0), uint64(0)
	for range 5 {
		for range 5 {
			slots := tx.Reserve(64)
			tx.Commit(slots)
			sent += uint64(len(slots))
			if err := tx.Kick(); err != nil {
				t.Fatal(err)
			}
		}
		var d ring.KernelDrops
		for end := time.Now().Add(patience); d.Packets < sent; {
			var err error
			if d, err = rx.Drops(); err != nil || time.Now().After(end) {
				t.Fatalf("%d of %d frames have come, %v", d.Packets, sent, err)
			}
		}
		var f ring.Frame
		for {
			b, err := rx.Next(10 * time.Millisecond)
			if errors.Is(err, ring.ErrTimeout) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for b.Next(&f) {
				received++
			}
			rx.Release(b)
		}
		if d.Packets != sent || received+d.Drops != sent || d.Drops == 0 || d.Freezes == 0 {
			t.Fatalf("%d received and %d dropped of %d sent; %+v", received, d.Drops, sent, d)
		}
	}
}

func TestOpenRXFails(t *testing.T) {
	_, rxEnd := testnet.Wire(t, lab.Options{})
	var large *xsk.TooLargeError
	testnet.In(t, rxEnd, func() error {
		_, err := xsk.OpenRX(xsk.RXOptions{Interface: "eth32", Queue: 2, Index: index(t, rxEnd), MaxFrame: 3841})
		if !errors.As(err, &large) || !errors.Is(err, xsk.ErrUnable) || err.Error() != "eth32 queue 2: frame of 3841 octets: AF_XDP takes up to 3840" {
			t.Error(err)
		}
		return nil
	})
	// A queue that the program does not know.
	port := openPort(t, rxEnd, 1)
	_, wide := testnet.Wire(t, lab.Options{Queues: 2})
	testnet.In(t, wide, func() error {
		rx, err := xsk.OpenRX(xsk.RXOptions{Interface: "eth32", Queue: 1, Index: index(t, wide), MaxFrame: 60, Slots: 64, Port: port})
		if err != nil {
			return err
		}
		defer rx.Close()
		if err := rx.Start(); err == nil || err.Error() != "eth32 queue 1: XSKMAP: update: key too big for map: argument list too long" {
			t.Error(err)
		}
		return nil
	})
}

// TestReceiverLinkLost: a receiver that waits is told, by the interface's name.
func TestReceiverLinkLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(netlink.Link) error
	}{{"down", netlink.LinkSetDown}, {"deleted", netlink.LinkDel}} {
		t.Run(c.name, func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{})
			tx, rx := openTX(t, txEnd, xsk.TXOptions{}), openRX(t, rxEnd, xsk.RXOptions{})
			send(t, tx, compile(t, spec(64)).Bytes())
			receive(t, rx, 1, func(*ring.Frame) {})
			waiting := make(chan error)
			go func() {
				_, err := rx.Next(patience)
				waiting <- err
			}()
			time.Sleep(20 * time.Millisecond)
			start := time.Now()
			link(t, rxEnd, c.change)
			if err := <-waiting; !errors.Is(err, ring.ErrLinkDown) || !strings.HasPrefix(err.Error(), "eth32 queue 0: ") || time.Since(start) > patience/2 {
				t.Errorf("Next: %v", err)
			}
		})
	}
}

// TestNothingAttached: after Close the port has no program; while there is one,
// another is refused.
func TestNothingAttached(t *testing.T) {
	_, rxEnd := testnet.Wire(t, lab.Options{})
	attached := func() (yes bool) {
		link(t, rxEnd, func(l netlink.Link) error { yes = l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached; return nil })
		return yes
	}
	open := func() (p *xsk.Port, err error) {
		testnet.In(t, rxEnd, func() error {
			p, err = xsk.OpenPort(xsk.PortOptions{Interface: "eth32", Index: index(t, rxEnd)})
			return nil
		})
		return p, err
	}
	for range 3 {
		p, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if mode, why := p.Mode(); mode != xdp.Native || why != "" || !attached() {
			t.Errorf("%s, %s", mode, why)
		}
		if _, err := open(); !errors.Is(err, xdp.ErrTaken) || !errors.Is(err, xsk.ErrUnable) {
			t.Errorf("a second program: %v", err)
		}
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
		if attached() {
			t.Error("a program is left")
		}
	}
}

// TestRXAllocations: none for a frame, none for a block.
func TestRXAllocations(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{}), openRX(t, rxEnd, xsk.RXOptions{})
	tmpl := compile(t, spec(64))
	tx.Prefill(func(slot []byte) int { return copy(slot, tmpl.Bytes()) })
	var f ring.Frame
	if n := testing.AllocsPerRun(200, func() {
		tx.Commit(tx.Reserve(16))
		_ = tx.Kick()
		for got := 0; got < 16; {
			b, err := rx.Next(patience)
			if err != nil {
				t.Fatal(err)
			}
			for b.Next(&f) {
				got++
			}
			rx.Release(b)
		}
	}); n != 0 {
		t.Errorf("%v allocations a block", n)
	}
}

// TestObjects: the BPF objects are of the source beside them.
func TestObjects(t *testing.T) {
	source, err := os.ReadFile("xsk.bpf.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"xsk_bpfel.o", "xsk_bpfeb.o"} {
		object, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(source)); !bytes.Contains(object, []byte(want)) {
			t.Errorf("%s is of another source: BPF_CLANG=clang-16 go generate ./ring/xsk", name)
		}
		if _, err := ebpf.LoadCollectionSpec(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkRX is a frame's way from a ring to another one: sent, received and looked at
// by turns.
func BenchmarkRX(b *testing.B) {
	for _, slots := range []int{2048, xsk.DefaultRXSlots} {
		b.Run(fmt.Sprintf("backend=xsk/size=64/slots=%d", slots), func(b *testing.B) {
			txEnd, rxEnd := testnet.Wire(b, lab.Options{})
			benchmarkRX(b, openTX(b, txEnd, xsk.TXOptions{MaxFrame: 60}), openRX(b, rxEnd, xsk.RXOptions{Slots: slots}))
		})
	}
	b.Run("backend=tpacket/size=64", func(b *testing.B) {
		txEnd, rxEnd := testnet.Wire(b, lab.Options{})
		benchmarkRX(b, openTX(b, txEnd, xsk.TXOptions{MaxFrame: 60}), openPacket(b, rxEnd))
	})
}

func benchmarkRX(b *testing.B, tx ring.TX, rx ring.RX) {
	tmpl := compile(b, spec(64))
	tx.Prefill(func(slot []byte) int { return copy(slot, tmpl.Bytes()) })
	var f ring.Frame
	var p frames.Parsed
	took := func(wait time.Duration) (n int) {
		for {
			block, err := rx.Next(wait)
			if err != nil {
				return n
			}
			for block.Next(&f) {
				frames.ParseStamp(f.Data, &p)
				n++
			}
			rx.Release(block)
		}
	}
	b.ResetTimer()
	got := 0
	for n := 0; n < b.N; {
		slots := tx.Reserve(min(64, b.N-n))
		tx.Commit(slots)
		n += len(slots)
		if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
			b.Fatal(err)
		}
		got += took(0)
	}
	b.StopTimer()
	got += took(10 * time.Millisecond)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/frame")
	b.ReportMetric(float64(b.N-got), "lost")
}
