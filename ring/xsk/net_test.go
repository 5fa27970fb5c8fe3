package xsk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/internal/xdp"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/ring/tpacket"
	"pktgen/ring/xsk"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// patience is how long a test waits for what should come at once.
const patience = 10 * time.Second

func index(t testing.TB, r netdev.Ref) int {
	t.Helper()
	info, err := netdev.Lookup(r)
	if err != nil {
		t.Fatal(err)
	}
	return info.Index
}

func openTX(t testing.TB, r netdev.Ref, o xsk.TXOptions) *xsk.TX {
	t.Helper()
	o.Interface, o.Index = r.Name, index(t, r)
	if o.MaxFrame == 0 {
		o.MaxFrame = 1518
	}
	var tx *xsk.TX
	testnet.In(t, r, func() (err error) {
		tx, err = xsk.OpenTX(o)
		return err
	})
	t.Cleanup(func() {
		if err := tx.Close(); err != nil {
			t.Error(err)
		}
	})
	return tx
}

// openPacket is a receiver of another kind: what arrives, by a second source.
func openPacket(t testing.TB, r netdev.Ref) *tpacket.RX {
	t.Helper()
	var rx *tpacket.RX
	testnet.In(t, r, func() (err error) {
		rx, err = tpacket.OpenRX(tpacket.RXOptions{Interface: r.Name, Index: index(t, r)})
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

// counters are those of the interface itself.
func counters(t testing.TB, r netdev.Ref) netdev.Counters {
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
	return c
}

// send sends one frame.
func send(t testing.TB, tx ring.TX, frame []byte) {
	t.Helper()
	s := tx.Reserve(1)
	if len(s) != 1 {
		t.Fatal("no free slot")
	}
	s[0] = s[0][:len(frame)]
	copy(s[0], frame)
	tx.Commit(s)
	if err := tx.Kick(); err != nil {
		t.Fatal(err)
	}
}

// drain waits until the kernel has finished with every frame.
func drain(t testing.TB, tx ring.TX) {
	t.Helper()
	for end := time.Now().Add(patience); tx.Outstanding() > 0; {
		if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) || time.Now().After(end) {
			t.Fatalf("%d outstanding, %v", tx.Outstanding(), err)
		}
	}
}

// receive hands n frames to f; it fails when they do not come.
func receive(t testing.TB, rx ring.RX, n int, each func(f *ring.Frame)) {
	t.Helper()
	var f ring.Frame
	for n > 0 {
		b, err := rx.Next(patience)
		if err != nil {
			t.Fatalf("%v, with %d frames to come", err, n)
		}
		for b.Next(&f) {
			each(&f)
			n--
		}
		if b.Malformed() {
			t.Fatal("a malformed block")
		}
		rx.Release(b)
	}
	if n != 0 {
		t.Fatalf("%d frames too many", -n)
	}
}

// frame begins as an Ethernet frame of the EtherType, and tells its number.
func frame(size int, etherType uint16, number uint32) []byte {
	b := make([]byte, size)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(b[12:], etherType)
	binary.BigEndian.PutUint32(b[14:], number)
	return b
}

const local = 0x88b6 // EtherType for local experiments, IEEE 802 clause 9

// TestFramesArrive: every frame of every size, whole, once and in order, and as
// many as the kernel says at both ends, through the first queue and another.
func TestFramesArrive(t *testing.T) {
	const total = 10_000
	for _, c := range []struct{ size, mtu, queue int }{
		{60, 1500, 0}, {61, 1500, 0}, {64, 1500, 0}, {65, 1500, 0}, {590, 1500, 0}, {1514, 1500, 0},
		{2048, 9000, 0}, {2049, 9000, 0}, {xsk.MaxFrame, 9000, 0},
		{60, 1500, 1}, {1514, 1500, 1}, {xsk.MaxFrame, 9000, 1},
	} {
		t.Run(fmt.Sprintf("size=%d/queue=%d", c.size, c.queue), func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: c.mtu, Queues: 2})
			tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: c.size, Slots: 200, Queue: c.queue})
			rx := openPacket(t, rxEnd)

			// Frame n ends with some of noise, from another place each time.
			noise := make([]byte, c.size+255)
			rnd := rand.New(rand.NewPCG(1, uint64(c.size)))
			for i := range noise {
				noise[i] = byte(rnd.Uint32())
			}
			body := func(n uint32) []byte { return noise[n%256:][:c.size-18] }
			tx.Prefill(func(slot []byte) int { return copy(slot, frame(c.size, local, 0)) })

			sent, got := uint32(0), uint32(0)
			for sent < total {
				// What is under way stays below what the kernel queues for an
				// interface (net.core.netdev_max_backlog, 1000).
				for window := sent + 500; sent < min(window, total); {
					slots := tx.Reserve(min(64, int(min(window, total)-sent)))
					for i, s := range slots {
						binary.BigEndian.PutUint32(s[14:], sent+uint32(i))
						copy(s[18:], body(sent+uint32(i)))
					}
					tx.Commit(slots)
					sent += uint32(len(slots))
					if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
						t.Fatal(err)
					}
					if err := tx.Wait(time.Millisecond); err != nil {
						t.Fatal(err)
					}
				}
				drain(t, tx)
				receive(t, rx, int(sent-got), func(f *ring.Frame) {
					n := binary.BigEndian.Uint32(f.Data[14:])
					if n != got || len(f.Data) != c.size || !bytes.Equal(f.Data[18:], body(n)) {
						t.Fatalf("frame %d instead of %d, %d octets", n, got, len(f.Data))
					}
					got++
				})
			}
			if c := tx.Counts(); c.Sent != total || c.Rejected != 0 || tx.Outstanding() != 0 {
				t.Errorf("%+v, %d outstanding, want %d sent", c, tx.Outstanding(), total)
			}
			if n := counters(t, txEnd).TxPackets; n != total {
				t.Errorf("the kernel has sent %d, want %d", n, total)
			}
			if n := counters(t, rxEnd).RxPackets; n != total {
				t.Errorf("the kernel has received %d, want %d", n, total)
			}
		})
	}
}

// TestSlotsKeepFrames: a slot comes back with the bytes and the length of its last use.
func TestSlotsKeepFrames(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 200, Slots: 64}), openPacket(t, rxEnd)
	n := 0
	tx.Prefill(func(slot []byte) int {
		if len(slot) != 200 {
			t.Fatalf("a slot of %d octets", len(slot))
		}
		n++
		return copy(slot, frame(60+n%100, local, uint32(n-1)))
	})
	rnd := rand.New(rand.NewPCG(1, 2))
	slots := n
	last := make([][]byte, slots)
	for i := range last {
		last[i] = frame(60+(i+1)%100, local, uint32(i))
	}
	for at := 0; at < 1000; {
		frames := tx.Reserve(1 + rnd.IntN(20))
		for i, f := range frames {
			if !bytes.Equal(f, last[(at+i)%slots]) || cap(f) != 200 {
				t.Fatalf("slot %d holds % x, want % x", (at+i)%slots, f, last[(at+i)%slots])
			}
		}
		frames = frames[:rnd.IntN(len(frames)+1)]
		for i := range frames {
			if rnd.IntN(2) == 0 {
				frames[i] = frames[i][:60+rnd.IntN(140)]
				frames[i][50]++
			}
			last[(at+i)%slots] = bytes.Clone(frames[i])
		}
		tx.Commit(frames)
		if err := tx.Kick(); err != nil {
			t.Fatal(err)
		}
		receive(t, rx, len(frames), func(f *ring.Frame) {
			if want := last[at%slots]; !bytes.Equal(f.Data, want) {
				t.Fatalf("frame %d is % x, want % x", at, f.Data, want)
			}
			at++
		})
	}
}

// TestQueues: each ring sends through its queue, and all at once lose nothing, by
// the counters of either end.
func TestQueues(t *testing.T) {
	const queues, total = 2, 200_000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{Queues: queues})
	dropAll(t, rxEnd)
	done := make(chan error)
	for q := range queues {
		tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60, Queue: q})
		tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
		go func() { done <- flood(tx, total) }()
	}
	for range queues {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := counters(t, txEnd).TxPackets; n != queues*total {
		t.Errorf("the kernel has sent %d, want %d", n, queues*total)
	}
	// The driver counts what its program drops as received, once it has come to it.
	for end := time.Now().Add(patience); counters(t, rxEnd).RxPackets != queues*total; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the other end has received %d, want %d", counters(t, rxEnd).RxPackets, queues*total)
		}
	}
}

// flood sends n frames as they are and returns when the kernel has finished with all.
func flood(tx *xsk.TX, n int) error {
	for end := time.Now().Add(patience); n > 0 || tx.Outstanding() > 0; {
		frames := tx.Reserve(min(256, n))
		tx.Commit(frames)
		n -= len(frames)
		if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
			return err
		}
		if len(frames) == 0 {
			if err := tx.Wait(time.Millisecond); err != nil {
				return err
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d to go, %d outstanding", n, tx.Outstanding())
		}
	}
	return nil
}

// dropAll drops every frame in the driver of the interface.
func dropAll(t testing.TB, r netdev.Ref) {
	t.Helper()
	attach(t, r, asm.Instructions{asm.Mov.Imm(asm.R0, 1 /* XDP_DROP */), asm.Return()})
}

// attach has the driver of the interface run a program for every frame.
func attach(t testing.TB, r netdev.Ref, program asm.Instructions) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "test", Type: ebpf.XDP, License: "MIT", Instructions: program,
	})
	if err != nil {
		t.Fatal(err)
	}
	var a *xdp.Attached
	testnet.In(t, r, func() (err error) {
		a, err = xdp.Attach(r.Name, index(t, r), prog)
		return err
	})
	t.Cleanup(func() {
		if err := errors.Join(a.Close(), prog.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestNoRoom: what the other end has no room for is a refused attempt. Nothing is
// lost, nothing changes its place, and what counts as sent has been.
//
// Alone a sender never fills a veth pair, for its own CPU takes the frames out at the
// other end as it goes. So that end is slow, and a second sender, whose frames nobody
// counts, keeps it on another CPU.
func TestNoRoom(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	const least = 50_000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	attach(t, rxEnd, asm.Instructions{
		asm.Mov.Imm(asm.R1, 4000),
		asm.Sub.Imm(asm.R1, 1).WithSymbol("again"),
		asm.JNE.Imm(asm.R1, 0, "again"),
		asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return(),
	})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60, Slots: 512}), openPacket(t, rxEnd)
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
	var other *tpacket.TX
	testnet.In(t, txEnd, func() (err error) {
		other, err = tpacket.OpenTX(tpacket.TXOptions{Index: index(t, txEnd), MaxFrame: 60})
		return err
	})
	other.Prefill(func(slot []byte) int { return copy(slot, frame(60, local+1, 0)) })

	var work sync.WaitGroup
	defer func() {
		work.Wait()
		other.Close()
	}()
	stop := make(chan bool)
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				other.Commit(other.Reserve(64))
				_ = other.Kick()
			}
		}
	})
	type result struct {
		sent uint32
		err  error
	}
	done := make(chan result, 1)
	work.Go(func() {
		defer close(stop)
		n := uint32(0)
		for end := time.Now().Add(patience); n < least || tx.Counts().Busy == 0 && time.Now().Before(end); {
			frames := tx.Reserve(256)
			for i := range frames {
				binary.BigEndian.PutUint32(frames[i][14:], n+uint32(i))
			}
			tx.Commit(frames)
			n += uint32(len(frames))
			if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
				done <- result{n, err}
				return
			}
		}
		done <- result{n, flood(tx, 0)}
	})
	want, ended := uint32(0), (*result)(nil)
	for quiet := 0; quiet < 3; { // all is there, and no more comes
		if ended == nil {
			select {
			case r := <-done:
				ended = &r
			default:
			}
		}
		b, err := rx.Next(100 * time.Millisecond)
		if errors.Is(err, ring.ErrTimeout) {
			if ended != nil {
				quiet++
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var f ring.Frame
		for b.Next(&f) {
			if binary.BigEndian.Uint16(f.Data[12:]) != local {
				continue
			}
			if n := binary.BigEndian.Uint32(f.Data[14:]); n != want {
				t.Fatalf("frame %d instead of %d", n, want)
			}
			want++
		}
		rx.Release(b)
	}
	if ended.err != nil {
		t.Fatal(ended.err)
	}
	c := tx.Counts()
	t.Logf("%+v", c)
	if want != ended.sent || c.Sent != uint64(ended.sent) || tx.Outstanding() != 0 {
		t.Errorf("%d have arrived, the ring has sent %d, want %d", want, c.Sent, ended.sent)
	}
	if c.Busy == 0 {
		t.Error("the other end always had room: nothing was tested")
	}
	if d, err := rx.Drops(); err != nil || d.Drops != 0 {
		t.Errorf("the receiver: %+v, %v", d, err)
	}
}

// TestOverMTU: what is too large for the interface is dropped, which only the
// interface's counters show, and the ring goes on.
func TestOverMTU(t *testing.T) {
	const mtu = 1000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: mtu})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 1600}), openPacket(t, rxEnd)
	frames := tx.Reserve(100)
	for i, f := range frames {
		size := mtu + 14
		if i%3 > 0 {
			size = mtu + 100 + i
		}
		frames[i] = f[:size]
		copy(f[:size], frame(size, local, uint32(i)))
	}
	tx.Commit(frames)
	if err := tx.Kick(); err != nil {
		t.Fatal(err)
	}
	drain(t, tx)
	next := uint32(0)
	receive(t, rx, 34, func(f *ring.Frame) {
		if n := binary.BigEndian.Uint32(f.Data[14:]); n != next {
			t.Fatalf("frame %d, want %d", n, next)
		}
		next += 3
	})
	if c := tx.Counts(); c != (ring.TXCounts{Sent: 100}) {
		t.Errorf("%+v, want 100 done with", c)
	}
	if n := counters(t, txEnd).TxPackets; n != 34 {
		t.Errorf("the kernel has sent %d, want 34", n)
	}
}

// TestEmptyFrame: a frame of no octets is refused, and its slot comes back.
func TestEmptyFrame(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60, Slots: 32}), openPacket(t, rxEnd)
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
	for range 100 {
		frames := tx.Reserve(2)
		frames[0] = frames[0][:0]
		tx.Commit(frames)
		if err := tx.Kick(); err != nil {
			t.Fatal(err)
		}
		receive(t, rx, 1, func(*ring.Frame) {})
		if tx.Outstanding() != 0 {
			t.Fatal("outstanding")
		}
		for i, f := range frames {
			frames[i] = f[:60]
		}
	}
	if c := tx.Counts(); c != (ring.TXCounts{Sent: 100, Rejected: 100}) {
		t.Errorf("%+v", c)
	}
}

// link changes the interface.
func link(t testing.TB, r netdev.Ref, change func(netlink.Link) error) {
	t.Helper()
	testnet.In(t, r, func() error {
		l, err := netlink.LinkByName(r.Name)
		if err != nil {
			return err
		}
		return change(l)
	})
}

// TestLinkLost: a ring whose interface is set down or removed says so, by its name,
// while it sends.
func TestLinkLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(netlink.Link) error
	}{{"down", netlink.LinkSetDown}, {"deleted", netlink.LinkDel}} {
		t.Run(c.name, func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{Queues: 2})
			dropAll(t, rxEnd)
			tx := openTX(t, txEnd, xsk.TXOptions{Queue: 1, MaxFrame: 60})
			tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
			ended, some := make(chan error), make(chan bool)
			go func() {
				defer close(ended)
				for n := 0; ; n++ {
					if n == 10 {
						close(some)
					}
					tx.Commit(tx.Reserve(64))
					err := tx.Kick()
					if err == nil || errors.Is(err, ring.ErrBusy) {
						err = tx.Wait(time.Millisecond)
					}
					if err != nil {
						ended <- err
						return
					}
				}
			}()
			<-some
			link(t, txEnd, c.change)
			select {
			case err := <-ended:
				if !errors.Is(err, ring.ErrLinkDown) || !strings.HasPrefix(err.Error(), "eth31 queue 1: send: ") {
					t.Errorf("Kick: %v", err)
				}
			case <-time.After(patience):
				t.Fatal("it hangs")
			}
		})
	}
}

// TestBlockedLink: with the other end down the driver takes nothing; nothing counts
// as sent, and all goes when the link is back.
func TestBlockedLink(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60, Slots: 128})
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
	link(t, rxEnd, netlink.LinkSetDown)
	for tx.Outstanding() < 100 {
		tx.Commit(tx.Reserve(10))
		for range 30 {
			if err := tx.Kick(); !errors.Is(err, ring.ErrBusy) {
				t.Fatal(err)
			}
		}
	}
	if c := tx.Counts(); c.Sent != 0 || c.Busy != 300 {
		t.Errorf("%+v", c)
	}
	before := counters(t, txEnd).TxPackets
	link(t, rxEnd, netlink.LinkSetUp)
	drain(t, tx)
	if n := counters(t, txEnd).TxPackets - before; n != 100 || tx.Counts().Sent != 100 {
		t.Errorf("the kernel has sent %d, the ring %d, want 100", n, tx.Counts().Sent)
	}
}

// TestReopen: a queue whose socket has just been closed is had again, at once and
// often; one that is in use is not.
func TestReopen(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	i := index(t, txEnd)
	open := func() (tx *xsk.TX, err error) {
		testnet.In(t, txEnd, func() error {
			tx, err = xsk.OpenTX(xsk.TXOptions{Interface: "eth31", Index: i, MaxFrame: 60, Slots: 64})
			return nil
		})
		return tx, err
	}
	for range 20 {
		tx, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tx.Close(), tx.Close()); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	if _, err := open(); err == nil || err.Error() != "eth31 queue 0: bind: device or resource busy" {
		t.Errorf("a second socket: %v", err)
	}
}

func TestOpenFails(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	i := index(t, txEnd)
	var large *xsk.TooLargeError
	for _, c := range []struct {
		o    xsk.TXOptions
		want string
	}{
		{xsk.TXOptions{Index: i, MaxFrame: 4097}, "eth31 queue 0: frame of 4097 octets: AF_XDP takes up to 4096"},
		{xsk.TXOptions{Index: i}, "eth31 queue 0: frame of 0 octets: want 1 to 4096"},
		{xsk.TXOptions{Index: i, MaxFrame: 60, Slots: 1<<20 + 1}, "eth31 queue 0: ring of 1048577 slots: want 1 to 1048576"},
		{xsk.TXOptions{Index: i, MaxFrame: 60, Queue: 7}, "eth31 queue 7: bind: invalid argument"},
		{xsk.TXOptions{Index: 4711, MaxFrame: 60}, "eth31 queue 0: bind: interface is down or gone (no such device)"},
	} {
		c.o.Interface = "eth31"
		testnet.In(t, txEnd, func() error {
			_, err := xsk.OpenTX(c.o)
			if err == nil || err.Error() != c.want || errors.Is(err, xsk.ErrUnable) != errors.As(err, &large) {
				t.Errorf("%v, want %s", err, c.want)
			}
			return nil
		})
	}
}

// TestNoMemory: without privilege the memory of a ring is bounded (RLIMIT_MEMLOCK),
// and the error says how much was asked for.
func TestNoMemory(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	i := index(t, txEnd)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 20, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
			t.Error(err)
		}
	}()
	testnet.In(t, txEnd, func() error {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&hdr, &caps[0]); err != nil {
			return err
		}
		had := caps
		caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		if err := unix.Capset(&hdr, &caps[0]); err != nil { // this thread's alone
			return err
		}
		tx, err := xsk.OpenTX(xsk.TXOptions{Interface: "eth31", Index: i, Queue: 0, MaxFrame: 4096, Slots: 4096})
		if err == nil {
			tx.Close()
		}
		const want = "eth31 queue 0: XDP_UMEM_REG of 16 MiB: no buffer space available"
		if err == nil || err.Error() != want || !errors.Is(err, unix.ENOBUFS) || errors.Is(err, xsk.ErrUnable) {
			t.Errorf("%v, want %s", err, want)
		}
		return unix.Capset(&hdr, &had[0])
	})
}

// TestWait: a ring with free slots may be written to at once.
func TestWait(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, xsk.TXOptions{})
	start := time.Now()
	if err := tx.Wait(patience); err != nil || time.Since(start) > patience/2 {
		t.Errorf("%v, after %v", err, time.Since(start))
	}
	if err := tx.Kick(); err != nil { // with nothing to send
		t.Error(err)
	}
	if mode, why := tx.Mode(); mode != xsk.Copy || why != "the driver refused: operation not supported" {
		t.Errorf("%s, %s", mode, why)
	}
}

// TestNoLeak: a ring that is closed leaves no descriptor and no mapping.
func TestNoLeak(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	i := index(t, txEnd)
	count := func() (fds, maps int) {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(e), strings.Count(string(b), "socket:")
	}
	fds, maps := count()
	testnet.In(t, txEnd, func() error {
		for range 20 {
			tx, err := xsk.OpenTX(xsk.TXOptions{Index: i, MaxFrame: 60})
			if err != nil {
				return err
			}
			if err := tx.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if f, m := count(); f > fds || m != maps {
		t.Errorf("%d descriptors and %d mappings, before %d and %d", f, m, fds, maps)
	}
}

func TestTXAllocations(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	dropAll(t, rxEnd)
	tx := openTX(t, txEnd, xsk.TXOptions{MaxFrame: 60})
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })
	if n := testing.AllocsPerRun(1000, func() {
		tx.Commit(tx.Reserve(64))
		_ = tx.Kick()
		tx.Counts()
		tx.Outstanding()
	}); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// BenchmarkTX is a frame's way through the kernel into a veth pair, whose far end has
// nothing that listens, or drops it in XDP: the sender's CPU does the far end's work,
// too. sent/frame is the share that the interface has sent.
func BenchmarkTX(b *testing.B) {
	for _, size := range []int{64, 1518} {
		for _, batch := range []int{8, 64, 256} {
			for _, far := range []string{"none", "drop"} {
				run := func(backend string, open func(b *testing.B, r netdev.Ref) ring.TX) {
					b.Run(fmt.Sprintf("backend=%s/size=%d/batch=%d/far=%s", backend, size, batch, far), func(b *testing.B) {
						txEnd, rxEnd := testnet.Wire(b, lab.Options{})
						if far == "drop" {
							dropAll(b, rxEnd)
						}
						benchmark(b, open(b, txEnd), size-4, batch)
						b.ReportMetric(float64(counters(b, txEnd).TxPackets)/float64(b.N), "sent/frame")
					})
				}
				run("xsk", func(b *testing.B, r netdev.Ref) ring.TX {
					return openTX(b, r, xsk.TXOptions{MaxFrame: size - 4})
				})
				run("tpacket", func(b *testing.B, r netdev.Ref) ring.TX {
					var tx *tpacket.TX
					testnet.In(b, r, func() (err error) {
						tx, err = tpacket.OpenTX(tpacket.TXOptions{Index: index(b, r), MaxFrame: size - 4})
						return err
					})
					b.Cleanup(func() { tx.Close() })
					return tx
				})
			}
		}
	}
}

func benchmark(b *testing.B, tx ring.TX, size, batch int) {
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(size, local, 0)) })
	b.ResetTimer()
	for n := 0; n < b.N; {
		frames := tx.Reserve(min(batch, b.N-n))
		tx.Commit(frames)
		n += len(frames)
		if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/frame")
}
