package tpacket_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
	"pktgen/ring"
	"pktgen/ring/tpacket"
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

func openTX(t testing.TB, r netdev.Ref, o tpacket.TXOptions) *tpacket.TX {
	t.Helper()
	o.Interface, o.Index = r.Name, index(t, r)
	if o.MaxFrame == 0 {
		o.MaxFrame = 1518
	}
	var tx *tpacket.TX
	testnet.In(t, r, func() (err error) {
		tx, err = tpacket.OpenTX(o)
		return err
	})
	t.Cleanup(func() {
		if err := tx.Close(); err != nil {
			t.Error(err)
		}
	})
	return tx
}

func openRX(t testing.TB, r netdev.Ref, o tpacket.RXOptions) *tpacket.RX {
	t.Helper()
	o.Interface, o.Index = r.Name, index(t, r)
	var rx *tpacket.RX
	testnet.In(t, r, func() (err error) {
		rx, err = tpacket.OpenRX(o)
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
// many as the kernel says.
func TestFramesArrive(t *testing.T) {
	const total = 10_000
	for _, c := range []struct {
		size, mtu int
		qdisc     bool
	}{
		{60, 1500, false}, {60, 1500, true}, {61, 1500, false}, {590, 1500, false}, {1514, 1500, false},
		{9014, 9000, false}, {65_000, 65_000, false},
	} {
		t.Run(fmt.Sprintf("size=%d/qdisc=%v", c.size, c.qdisc), func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: c.mtu})
			tx := openTX(t, txEnd, tpacket.TXOptions{MaxFrame: c.size, Slots: 200, Qdisc: c.qdisc})
			rx := openRX(t, rxEnd, tpacket.RXOptions{})

			// Frame n ends with some of noise, from another place each time.
			noise := make([]byte, c.size+255)
			rnd := rand.New(rand.NewPCG(1, uint64(c.size)))
			for i := range noise {
				noise[i] = byte(rnd.Uint32())
			}
			body := func(n uint32) []byte { return noise[n%256:][:c.size-18] }
			tx.Prefill(func(slot []byte) int { return copy(slot, frame(c.size, local, 0)) })

			start, sent, got := time.Now().UnixNano(), uint32(0), uint32(0)
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
				for end := time.Now().Add(patience); tx.Outstanding() > 0; {
					if err := tx.Kick(); err != nil && !errors.Is(err, ring.ErrBusy) || time.Now().After(end) {
						t.Fatalf("%d outstanding, %v", tx.Outstanding(), err)
					}
				}
				receive(t, rx, int(sent-got), func(f *ring.Frame) {
					n := binary.BigEndian.Uint32(f.Data[14:])
					if n != got || len(f.Data) != c.size || f.WireLen != c.size || !bytes.Equal(f.Data[18:], body(n)) {
						t.Fatalf("frame %d instead of %d, %d octets, %d on the wire", n, got, len(f.Data), f.WireLen)
					}
					if now := time.Now().UnixNano(); f.TimeNs < start || f.TimeNs > now {
						t.Fatalf("received at %d, not from %d to %d", f.TimeNs, start, now)
					}
					if f.TPID != 0 || f.VLAN != 0 || f.ChecksumPartial {
						t.Fatalf("%+v", f)
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
			if d, err := rx.Drops(); err != nil || d != (ring.KernelDrops{Packets: total}) {
				t.Errorf("%+v, %v, want %d packets and no drop", d, err, total)
			}
		})
	}
}

// TestVLAN: a tag, which the kernel takes off, is told, and counts as on the wire.
func TestVLAN(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx, rx := openTX(t, txEnd, tpacket.TXOptions{}), openRX(t, rxEnd, tpacket.RXOptions{})
	inner := frame(60, local, 7)
	tag := func(f []byte, tpid, tci uint16) []byte {
		out := binary.BigEndian.AppendUint16(bytes.Clone(f[:12]), tpid)
		return append(binary.BigEndian.AppendUint16(out, tci), f[12:]...)
	}
	for _, c := range []struct {
		name      string
		sent      []byte
		data      []byte
		tpid, tci uint16
	}{
		{"no tag", inner, inner, 0, 0},
		{"802.1Q", tag(inner, 0x8100, 0xafff), inner, 0x8100, 0xafff},
		{"VLAN 0", tag(inner, 0x8100, 0), inner, 0x8100, 0},
		{"802.1ad", tag(inner, 0x88a8, 0x2001), inner, 0x88a8, 0x2001},
		{"two tags", tag(tag(inner, 0x8100, 5), 0x88a8, 6), tag(inner, 0x8100, 5), 0x88a8, 6},
	} {
		send(t, tx, c.sent)
		receive(t, rx, 1, func(f *ring.Frame) {
			if !bytes.Equal(f.Data, c.data) || f.WireLen != len(c.sent) || f.TPID != c.tpid || f.VLAN != c.tci {
				t.Errorf("%s: %d octets, %d on the wire, TPID %#x, TCI %#x, % x", c.name, len(f.Data), f.WireLen, f.TPID, f.VLAN, f.Data)
			}
		})
	}
}

// TestDrops: a ring that is full drops, counts each, and goes on when it is read.
func TestDrops(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, tpacket.TXOptions{MaxFrame: 60})
	rx := openRX(t, rxEnd, tpacket.RXOptions{BlockSize: os.Getpagesize(), Blocks: 2})
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(60, local, 0)) })

	sent, received := uint64(0), uint64(0)
	var freezes uint64
	for range 5 {
		for range 10 {
			slots := tx.Reserve(64)
			tx.Commit(slots)
			sent += uint64(len(slots))
			if err := tx.Kick(); err != nil {
				t.Fatal(err)
			}
		}
		// All have come to the socket: Packets counts dropped ones, too. It is asked
		// again and again, so that the sum must survive the kernel's own clearing.
		var d ring.KernelDrops
		for end := time.Now().Add(patience); d.Packets < sent; {
			var err error
			if d, err = rx.Drops(); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d frames have come", d.Packets, sent)
			}
		}
		var f ring.Frame
		for {
			b, err := rx.Next(50 * time.Millisecond) // longer than the kernel keeps a block
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
		if d.Packets != sent || received+d.Drops != sent || d.Drops == 0 || d.Freezes <= freezes {
			t.Fatalf("%d received and %d dropped of %d sent; %+v", received, d.Drops, sent, d)
		}
		freezes = d.Freezes
	}
	if n := counters(t, rxEnd).RxPackets; n != sent {
		t.Errorf("the kernel has received %d, want %d", n, sent)
	}
}

// TestSnapLength: of a frame larger than a block the beginning comes, and its
// whole length is told.
func TestSnapLength(t *testing.T) {
	page := os.Getpagesize()
	size := page + 1000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: size})
	tx := openTX(t, txEnd, tpacket.TXOptions{MaxFrame: size})
	rx := openRX(t, rxEnd, tpacket.RXOptions{BlockSize: page, Blocks: 4})
	want := frame(size, local, 1)
	want[100] = 0xaa
	send(t, tx, want)
	receive(t, rx, 1, func(f *ring.Frame) {
		if f.WireLen != size || len(f.Data) >= page || len(f.Data) < page-200 || !bytes.Equal(f.Data, want[:len(f.Data)]) {
			t.Errorf("%d octets, %d on the wire, want the first of %d", len(f.Data), f.WireLen, size)
		}
	})
}

// TestIncomingOnly: the ring has what arrives, and not what this host sends.
func TestIncomingOnly(t *testing.T) {
	a, b := testnet.Wire(t, lab.Options{})
	rx := openRX(t, a, tpacket.RXOptions{})
	out, in := openTX(t, a, tpacket.TXOptions{Qdisc: true}), openTX(t, b, tpacket.TXOptions{})
	far := openRX(t, b, tpacket.RXOptions{})
	send(t, out, frame(60, local, 1))
	receive(t, far, 1, func(*ring.Frame) {}) // it has left, past any tap
	send(t, in, frame(60, local, 2))
	receive(t, rx, 1, func(f *ring.Frame) {
		if n := binary.BigEndian.Uint32(f.Data[14:]); n != 2 {
			t.Errorf("frame %d", n)
		}
	})
}

// TestOverMTU: the kernel drops what is too large for the interface, which only
// the interface's counters show, and the ring goes on. One 802.1Q tag may stand beside the MTU.
func TestOverMTU(t *testing.T) {
	const mtu = 1000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{MTU: mtu})
	tx, rx := openTX(t, txEnd, tpacket.TXOptions{MaxFrame: 1600}), openRX(t, rxEnd, tpacket.RXOptions{})
	var want, got []int
	frames := tx.Reserve(100)
	for i, f := range frames {
		etherType, most := uint16(local), mtu+14
		if i%2 == 1 {
			etherType, most = unix.ETH_P_8021Q, most+4
		}
		size := most - 2 + i%5 // up to two too large
		frames[i] = f[:size]
		copy(f[:size], frame(size, etherType, 0))
		if size <= most {
			want = append(want, size)
		}
	}
	tx.Commit(frames)
	if err := tx.Kick(); err != nil {
		t.Fatal(err)
	}
	send(t, tx, frame(60, local, 0))
	want = append(want, 60)
	receive(t, rx, len(want), func(f *ring.Frame) { got = append(got, f.WireLen) })
	if !slices.Equal(got, want) {
		t.Errorf("lengths %d, want %d", got, want)
	}
	if c := tx.Counts(); tx.Outstanding() != 0 || c != (ring.TXCounts{Sent: 101}) {
		t.Errorf("%+v, %d outstanding, want 101 done with", c, tx.Outstanding())
	}
	if n := counters(t, txEnd).TxPackets; n != uint64(len(want)) {
		t.Errorf("the kernel has sent %d, want %d", n, len(want))
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

// TestLinkLost: a ring whose interface is set down or removed says so, by its
// name, to the sender and to a receiver that waits.
func TestLinkLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(netlink.Link) error
		qdisc  bool
	}{
		{"down", netlink.LinkSetDown, false},
		{"down, qdisc", netlink.LinkSetDown, true},
		{"deleted", netlink.LinkDel, false},
		{"deleted, qdisc", netlink.LinkDel, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			txEnd, rxEnd := testnet.Wire(t, lab.Options{})
			tx := openTX(t, txEnd, tpacket.TXOptions{Queue: 4, Qdisc: c.qdisc})
			rx := openRX(t, rxEnd, tpacket.RXOptions{Queue: 5})
			send(t, tx, frame(60, local, 1))
			receive(t, rx, 1, func(*ring.Frame) {})

			waiting := make(chan error)
			go func() {
				_, err := rx.Next(patience)
				waiting <- err
			}()
			link(t, rxEnd, c.change)
			if err := <-waiting; !errors.Is(err, ring.ErrLinkDown) || !strings.HasPrefix(err.Error(), "eth32 queue 5: poll: ") {
				t.Errorf("Next: %v", err)
			}
			if !strings.HasPrefix(c.name, "deleted") { // a pair goes as one
				link(t, txEnd, c.change)
			}
			slots := tx.Reserve(1)
			slots[0] = slots[0][:60]
			tx.Commit(slots)
			if err := tx.Kick(); !errors.Is(err, ring.ErrLinkDown) || !strings.HasPrefix(err.Error(), "eth31 queue 4: send: ") {
				t.Errorf("Kick: %v", err)
			}
			if c := tx.Counts(); c.Sent != 1 || tx.Outstanding() != 1 {
				t.Errorf("%+v, %d outstanding, want 1 and 1", c, tx.Outstanding())
			}
		})
	}
}

// TestPromiscuous: counted by the kernel, and gone with the socket.
func TestPromiscuous(t *testing.T) {
	_, rxEnd := testnet.Wire(t, lab.Options{})
	promisc := func() (n int) {
		link(t, rxEnd, func(l netlink.Link) error { n = l.Attrs().Promisc; return nil })
		return n
	}
	open := func(on bool) *tpacket.RX {
		o := tpacket.RXOptions{Interface: rxEnd.Name, Index: index(t, rxEnd), Promisc: on, Blocks: 4}
		var rx *tpacket.RX
		testnet.In(t, rxEnd, func() (err error) {
			rx, err = tpacket.OpenRX(o)
			return err
		})
		return rx
	}
	rings := []*tpacket.RX{open(false), open(true), open(true)}
	for i, want := range []int{2, 2, 1, 0} {
		if got := promisc(); got != want {
			t.Errorf("with %d rings closed the kernel counts %d, want %d", i, got, want)
		}
		if i < len(rings) {
			if err := rings[i].Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWait: a ring without frames under way may be written to at once.
func TestWait(t *testing.T) {
	txEnd, _ := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, tpacket.TXOptions{})
	start := time.Now()
	if err := tx.Wait(patience); err != nil || time.Since(start) > patience/2 {
		t.Errorf("%v, after %v", err, time.Since(start))
	}
	if err := tx.Kick(); err != nil { // with nothing to send
		t.Error(err)
	}
}

// addQdisc puts a root qdisc on the interface; it skips where the kernel has none
// of its kind.
func addQdisc(t *testing.T, r netdev.Ref, q func(netlink.QdiscAttrs) netlink.Qdisc) netlink.Qdisc {
	t.Helper()
	qdisc := q(netlink.QdiscAttrs{LinkIndex: index(t, r), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	var err error
	testnet.In(t, r, func() error { err = netlink.QdiscAdd(qdisc); return nil })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("no qdisc %s in this kernel: %v", qdisc.Type(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return qdisc
}

// TestQdisc: frames go past the queueing discipline, unless they are to go
// through it.
func TestQdisc(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	addQdisc(t, txEnd, func(a netlink.QdiscAttrs) netlink.Qdisc {
		return &netlink.GenericQdisc{QdiscAttrs: a, QdiscType: "pfifo"}
	})
	queued := func() (n uint32) {
		link(t, txEnd, func(l netlink.Link) error {
			qs, err := netlink.QdiscList(l)
			for _, q := range qs {
				if q.Type() == "pfifo" {
					n = q.Attrs().Statistics.Basic.Packets
				}
			}
			return err
		})
		return n
	}
	rx := openRX(t, rxEnd, tpacket.RXOptions{Blocks: 4})
	for _, c := range []struct {
		qdisc bool
		want  uint32
	}{{false, 0}, {true, 10}} {
		tx := openTX(t, txEnd, tpacket.TXOptions{Qdisc: c.qdisc})
		for range 10 {
			send(t, tx, frame(60, local, 0))
		}
		receive(t, rx, 10, func(*ring.Frame) {})
		if got := queued(); got != c.want {
			t.Errorf("qdisc %v: %d frames went through it, want %d", c.qdisc, got, c.want)
		}
	}
}

// TestFullRing: every slot can be on its way at once; Wait then waits, until one
// is free.
func TestFullRing(t *testing.T) {
	for _, size := range []int{60, 1514, 9014} {
		t.Run(fmt.Sprintf("size=%d", size), func(t *testing.T) { fullRing(t, size) })
	}
}

func fullRing(t *testing.T, size int) {
	txEnd, _ := testnet.Wire(t, lab.Options{MTU: 9000})
	slow := addQdisc(t, txEnd, func(a netlink.QdiscAttrs) netlink.Qdisc {
		// A frame a second, and a bucket of 17 s, which is told in ticks of 64 ns.
		return &netlink.Tbf{QdiscAttrs: a, Rate: uint64(size), Buffer: 1 << 28, Limit: 1 << 30}
	})
	const slots = 2048
	tx := openTX(t, txEnd, tpacket.TXOptions{MaxFrame: size, Slots: slots, Qdisc: true})
	tx.Prefill(func(slot []byte) int { return copy(slot, frame(size, local, 0)) })
	for sent := 0; ; {
		frames := tx.Reserve(slots)
		if len(frames) == 0 {
			break
		}
		tx.Commit(frames)
		sent += len(frames)
		if err := tx.Kick(); err != nil {
			t.Fatalf("%v, with %d of %d slots", err, sent, slots)
		}
		if sent > 2*slots {
			t.Fatal("frames are sent, not held")
		}
	}
	start := time.Now()
	err := tx.Wait(time.Millisecond)
	took := time.Since(start)
	if full := len(tx.Reserve(1)) == 0; err != nil || full && took < time.Millisecond {
		t.Errorf("%v; full: %v, after %v", err, full, took)
	}
	waited := make(chan error)
	go func() { waited <- tx.Wait(patience) }()
	start = time.Now()
	testnet.In(t, txEnd, func() error { return netlink.QdiscDel(slow) })
	if err := <-waited; err != nil || time.Since(start) > patience/2 {
		t.Errorf("%v, after %v", err, time.Since(start))
	}
	for end := time.Now().Add(patience); tx.Outstanding() > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d still outstanding", tx.Outstanding())
		}
	}
	if c := tx.Counts(); c.Busy != 0 {
		t.Errorf("%+v", c)
	}
}

// TestSockets: as the kernel sees them. A sender takes no part in receiving what
// others send, and no socket goes to a program that is started.
func TestSockets(t *testing.T) {
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	openTX(t, rxEnd, tpacket.TXOptions{}) // nobody reads from it
	openRX(t, rxEnd, tpacket.RXOptions{Blocks: 4})
	far := openTX(t, txEnd, tpacket.TXOptions{})
	for range 10 {
		send(t, far, frame(60, unix.ETH_P_IP, 0))
	}
	var table string
	testnet.In(t, rxEnd, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/packet")
		table = string(b)
		return err
	})
	memory := map[string]string{} // by protocol
	for _, line := range strings.Split(table, "\n")[1:] {
		if f := strings.Fields(line); len(f) == 9 { // sk RefCnt Type Proto Iface R Rmem User Inode
			memory[f[3]] = f[6]
		}
	}
	if d := cmp.Diff(map[string]string{"0003": "0", "88b5": "0"}, memory); d != "" {
		t.Errorf("protocols and memory: %s\n%s", d, table)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	sockets := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + filepath.Base(fd))
		if err != nil {
			t.Fatal(err)
		}
		var flags uint
		for _, line := range strings.Split(string(info), "\n") {
			fmt.Sscanf(line, "flags: %o", &flags)
		}
		if flags&unix.O_CLOEXEC == 0 {
			t.Errorf("%s is not closed on exec:\n%s", fd, info)
		}
		sockets++
	}
	if sockets < 3 {
		t.Errorf("%d sockets", sockets)
	}
}

// udp is a frame of IPv4 or IPv6, from its EtherType on, with options octets of
// IPv4 options.
func udp(v6 bool, options int, payload []byte) []byte {
	if v6 {
		ip := make([]byte, 2+40+8)
		binary.BigEndian.PutUint16(ip, unix.ETH_P_IPV6)
		ip[2], ip[2+6], ip[2+7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(ip[2+4:], uint16(8+len(payload)))
		return append(ip, payload...)
	}
	ip := make([]byte, 2+20+options+8)
	binary.BigEndian.PutUint16(ip, unix.ETH_P_IP)
	ip[2], ip[2+8], ip[2+9] = 0x40|byte((20+options)/4), 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2+2:], uint16(20+options+8+len(payload)))
	return append(ip, payload...)
}

// TestFanout: of several rings exactly one gets a stream, whatever it travels
// in; the first gets what is no stream's.
func TestFanout(t *testing.T) {
	const rings, streams = 3, 8
	stamp := func(magic, stream uint16, kind byte) []byte {
		b := make([]byte, 18)
		binary.BigEndian.PutUint16(b, magic)
		binary.BigEndian.PutUint16(b[2:], 4711) // the run
		binary.BigEndian.PutUint16(b[4:], stream)
		b[17] = kind
		return b
	}
	tagged := func(f []byte) []byte { return append([]byte{0x81, 0, 0, 42}, f...) }
	kinds := []func(stream uint16, kind byte) []byte{
		func(s uint16, k byte) []byte { return udp(false, 0, stamp(0x9e37, s, k)) },
		func(s uint16, k byte) []byte { return udp(false, 0, stamp(0x9e38, s, k)) },
		func(s uint16, k byte) []byte { return udp(false, 12, stamp(0x9e37, s, k)) },
		func(s uint16, k byte) []byte { return udp(true, 0, stamp(0x9e37, s, k)) },
		func(s uint16, k byte) []byte { return udp(true, 0, stamp(0x9e38, s, k)) },
		func(s uint16, k byte) []byte { return tagged(udp(false, 0, stamp(0x9e37, s, k))) },
		func(s uint16, k byte) []byte { return tagged(udp(true, 0, stamp(0x9e37, s, k))) },
		func(s uint16, k byte) []byte { return udp(false, 0, stamp(0x9e36, s, k)) }, // no stamp
		func(s uint16, k byte) []byte { return append([]byte{0x08, 0x06}, stamp(0x9e37, s, k)...) },
	}
	const stamped = 7 // of these kinds

	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, tpacket.TXOptions{})
	var fanout tpacket.Fanout
	var rxs []*tpacket.RX
	for i := range rings {
		rxs = append(rxs, openRX(t, rxEnd, tpacket.RXOptions{Queue: i, Fanout: &fanout, Blocks: 4}))
	}
	// A second group on the same interface is another, and gets everything, too.
	var other tpacket.Fanout
	second := openRX(t, rxEnd, tpacket.RXOptions{Fanout: &other, Blocks: 4})

	want := make([]map[[3]byte]int, rings) // ring -> stream and kind -> frames
	for i := range want {
		want[i] = map[[3]byte]int{}
	}
	total := 0
	for kind, make := range kinds {
		for stream := range uint16(streams) {
			f := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, make(stream, byte(kind))...)
			send(t, tx, f)
			r := int(stream) % rings
			if kind >= stamped {
				r = 0
			}
			want[r][[3]byte{0, byte(stream), byte(kind)}]++
			total++
		}
	}
	got := func(rx *tpacket.RX, n int) map[[3]byte]int {
		m := map[[3]byte]int{}
		receive(t, rx, n, func(f *ring.Frame) {
			p := f.Data[len(f.Data)-18:]
			m[[3]byte{p[4], p[5], p[17]}]++
		})
		return m
	}
	count := 0
	for i, rx := range rxs {
		n := 0
		for _, c := range want[i] {
			n += c
		}
		count += n
		if d := cmp.Diff(want[i], got(rx, n)); d != "" {
			t.Errorf("ring %d: %s", i, d)
		}
		if dr, err := rx.Drops(); err != nil || dr.Packets != uint64(n) { // and no more will come
			t.Errorf("ring %d: %+v, %v, want %d packets", i, dr, err, n)
		}
	}
	if count != total || len(got(second, total)) != total {
		t.Errorf("%d frames of %d", count, total)
	}
}

// TestFanoutUnderTraffic: the rings of a group that open one after the other
// while frames come in see each frame once, and none from before all of them
// have joined.
func TestFanoutUnderTraffic(t *testing.T) {
	const rings = 4
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	tx := openTX(t, txEnd, tpacket.TXOptions{})
	next := uint64(0)
	sendSome := func() { // of every stream
		for range 4 * rings {
			b := make([]byte, 18)
			binary.BigEndian.PutUint16(b, 0x9e37)
			binary.BigEndian.PutUint16(b[4:], uint16(next%rings))
			binary.BigEndian.PutUint64(b[10:], next)
			send(t, tx, append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, udp(false, 0, b)...))
			next++
		}
	}
	var fanout tpacket.Fanout
	var rxs []*tpacket.RX
	for i := range rings {
		var rx *tpacket.RX
		testnet.In(t, rxEnd, func() (err error) {
			rx, err = tpacket.OpenRX(tpacket.RXOptions{Interface: rxEnd.Name, Index: index(t, rxEnd), Queue: i, Fanout: &fanout, Blocks: 4})
			return err
		})
		defer rx.Close()
		rxs = append(rxs, rx)
		sendSome()
	}
	joined := next
	for _, rx := range rxs {
		if err := rx.Start(); err != nil {
			t.Fatal(err)
		}
	}
	sendSome()
	seen := map[uint64]bool{}
	for i, rx := range rxs {
		receive(t, rx, 4, func(f *ring.Frame) {
			n := binary.BigEndian.Uint64(f.Data[len(f.Data)-8:])
			if n < joined || seen[n] || n%rings != uint64(i) {
				t.Errorf("ring %d: frame %d, the first that counts being %d; seen before: %v", i, n, joined, seen[n])
			}
			seen[n] = true
		})
		if d, err := rx.Drops(); err != nil || d.Packets != 4 {
			t.Errorf("ring %d: the kernel counts %+v, %v", i, d, err)
		}
	}
}

// TestOpenErrors: they name interface, queue and operation, wrap what the kernel
// said, and leave nothing open.
func TestOpenErrors(t *testing.T) {
	_, rxEnd := testnet.Wire(t, lab.Options{})
	i := index(t, rxEnd)
	before := open(t)
	unprivileged := func(f func() error) func() error {
		return func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&hdr, &none[0]); err != nil { // this thread's alone
				return err
			}
			return f()
		}
	}
	tx := func(o tpacket.TXOptions) func() error {
		o.Interface, o.Queue = "eth31", 2
		return func() error { _, err := tpacket.OpenTX(o); return err }
	}
	rx := func(o tpacket.RXOptions) func() error {
		o.Interface, o.Queue = "eth32", 3
		return func() error { _, err := tpacket.OpenRX(o); return err }
	}
	for _, c := range []struct {
		name   string
		open   func() error
		prefix string
		is     error
	}{
		{"no privilege, TX", unprivileged(tx(tpacket.TXOptions{Index: i, MaxFrame: 60})), "eth31 queue 2: socket(AF_PACKET): ", unix.EPERM},
		{"no privilege, RX", unprivileged(rx(tpacket.RXOptions{Index: i})), "eth32 queue 3: socket(AF_PACKET): ", unix.EPERM},
		{"no such interface, TX", tx(tpacket.TXOptions{Index: 9999, MaxFrame: 60}), "eth31 queue 2: bind: ", unix.ENODEV},
		{"no such interface, RX", rx(tpacket.RXOptions{Index: 9999, Blocks: 4}), "eth32 queue 3: bind: ", ring.ErrLinkDown},
		{"no interface, promiscuous", rx(tpacket.RXOptions{Index: 9999, Blocks: 4, Promisc: true}), "eth32 queue 3: bind: ", unix.ENODEV},
		{"no frame", tx(tpacket.TXOptions{Index: i}), "eth31 queue 2: frame of 0 octets: ", nil},
		{"no slot", tx(tpacket.TXOptions{Index: i, MaxFrame: 60, Slots: -1}), "eth31 queue 2: ring of -1 slots: ", nil},
		{"odd block", rx(tpacket.RXOptions{Index: i, BlockSize: 5000, Blocks: 4}), "eth32 queue 3: PACKET_RX_RING of 19 KiB: ", unix.EINVAL},
		{"fanout, no interface", rx(tpacket.RXOptions{Index: 9999, Blocks: 4, Fanout: new(tpacket.Fanout)}), "eth32 queue 3: bind: ", unix.ENODEV},
	} {
		err := netdev.OnThread(func() error {
			if err := rxEnd.Enter(); err != nil {
				return err
			}
			return c.open()
		})
		if err == nil || !strings.HasPrefix(err.Error(), c.prefix) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %s%v", c.name, err, c.prefix, c.is)
		}
	}
	if after := open(t); after != before {
		t.Errorf("open before %+v, after %+v", before, after)
	}
}

// things are what a process has open of the kernel's.
type things struct {
	fds, mappings int
}

func open(t testing.TB) (o things) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			o.fds++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	o.mappings = strings.Count(string(maps), "socket:")
	return o
}

// TestNoLeak: a ring that is closed, once or twice, leaves no descriptor, no
// mapping and no socket, however often.
func TestNoLeak(t *testing.T) {
	const times = 1000
	txEnd, rxEnd := testnet.Wire(t, lab.Options{})
	before := open(t)
	sockets := func(r netdev.Ref) (n int) {
		testnet.In(t, r, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/packet")
			n = bytes.Count(b, []byte("\n")) - 1 // the heading
			return err
		})
		return n
	}
	// Many at once: the kernel lets a closing socket wait for the other CPUs.
	var all sync.WaitGroup
	errs := make(chan error, 2)
	run := func(r netdev.Ref, openRing func(index int) (interface{ Close() error }, error)) {
		i := index(t, r)
		each := func() error {
			for range times / 10 {
				o, err := openRing(i)
				if err != nil {
					return err
				}
				if err := errors.Join(o.Close(), o.Close()); err != nil {
					return err
				}
			}
			return nil
		}
		for range 10 {
			all.Go(func() {
				if err := r.Do(each); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			})
		}
	}
	run(txEnd, func(i int) (interface{ Close() error }, error) {
		return tpacket.OpenTX(tpacket.TXOptions{Index: i, MaxFrame: 1514, Slots: 16})
	})
	run(rxEnd, func(i int) (interface{ Close() error }, error) {
		return tpacket.OpenRX(tpacket.RXOptions{Index: i, BlockSize: 1 << 14, Blocks: 4, Promisc: true, Fanout: new(tpacket.Fanout)})
	})
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	if after := open(t); after != before {
		t.Errorf("open before %+v, after %+v", before, after)
	}
	if a, b := sockets(txEnd), sockets(rxEnd); a != 0 || b != 0 {
		t.Errorf("the kernel has %d and %d sockets", a, b)
	}
}

// BenchmarkTX is a frame's way through the kernel into a veth pair on whose far
// end nothing listens.
func BenchmarkTX(b *testing.B) {
	for _, size := range []int{64, 1518} {
		for _, batch := range []int{8, 64, 256} {
			b.Run(fmt.Sprintf("backend=tpacket/size=%d/batch=%d", size, batch), func(b *testing.B) {
				txEnd, _ := testnet.Wire(b, lab.Options{})
				tx := openTX(b, txEnd, tpacket.TXOptions{MaxFrame: size - 4})
				tx.Prefill(func(slot []byte) int { return copy(slot, frame(size-4, local, 0)) })
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
			})
		}
	}
}

// TestSignalsAreNoTimeout: a poll that a signal has ended goes on; a sink that
// took it for a timeout would end before the last frames.
func TestSignalsAreNoTimeout(t *testing.T) {
	_, ref := testnet.Wire(t, lab.Options{})
	info, err := netdev.Lookup(ref)
	if err != nil {
		t.Fatal(err)
	}
	testnet.In(t, ref, func() error {
		rx, err := tpacket.OpenRX(tpacket.RXOptions{Interface: ref.Name, Index: info.Index, Blocks: 4})
		if err != nil {
			return err
		}
		defer rx.Close()
		if err := rx.Start(); err != nil {
			return err
		}
		const wait = 100 * time.Millisecond
		pid, tid := unix.Getpid(), unix.Gettid()
		stop := make(chan bool)
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					_ = unix.Tgkill(pid, tid, unix.SIGURG) // as the runtime does to preempt
				}
			}
		}()
		defer close(stop)
		for range 3 {
			start := time.Now()
			if _, err := rx.Next(wait); !errors.Is(err, ring.ErrTimeout) || time.Since(start) < wait {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
		return nil
	})
}

// TestStamps: the kernel tells when each frame left while it is asked to, by
// numbers that begin anew each time, between the send and the arrival.
func TestStamps(t *testing.T) {
	for _, qdisc := range []bool{false, true} {
		txEnd, rxEnd := testnet.Wire(t, lab.Options{})
		tx := openTX(t, txEnd, tpacket.TXOptions{Qdisc: qdisc})
		rx := openRX(t, rxEnd, tpacket.RXOptions{Blocks: 4})
		frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 46)...)
		for round := range 3 {
			if err := tx.Stamp(true); err != nil {
				t.Fatal(err)
			}
			var before, after, arrivals []int64
			for range 5 {
				before = append(before, time.Now().UnixNano())
				send(t, tx, frame)
				after = append(after, time.Now().UnixNano())
			}
			if err := tx.Stamp(false); err != nil {
				t.Fatal(err)
			}
			send(t, tx, frame) // of which nothing is told
			receive(t, rx, 6, func(f *ring.Frame) { arrivals = append(arrivals, f.TimeNs) })
			for i := range uint32(5) {
				n, ns, ok := tx.ReadStamp()
				if !ok || n != i || ns < before[i] || ns > after[i] || ns > arrivals[i] {
					t.Errorf("qdisc %v, round %d: frame %d, %v; left at %d, sent between %d and %d, arrived at %d", qdisc, round, n, ok, ns, before[i], after[i], arrivals[i])
				}
			}
			if n, _, ok := tx.ReadStamp(); ok {
				t.Errorf("a time for frame %d", n)
			}
		}
		if n := testing.AllocsPerRun(100, func() { tx.ReadStamp() }); n != 0 {
			t.Errorf("%v allocations where there is none", n)
		}
	}
}

// TestLaunchTime: the kernel takes the times, of either clock; a queueing discipline
// that knows nothing of them sends at once.
func TestLaunchTime(t *testing.T) {
	for _, clockid := range []int{unix.CLOCK_TAI, unix.CLOCK_MONOTONIC} {
		txEnd, rxEnd := testnet.Wire(t, lab.Options{})
		tx := openTX(t, txEnd, tpacket.TXOptions{Qdisc: true, Launch: clockid})
		rx := openRX(t, rxEnd, tpacket.RXOptions{Blocks: 4})
		frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 46)...)
		for range 3 {
			slots := tx.Reserve(1)
			slots[0] = slots[0][:copy(slots[0][:cap(slots[0])], frame)]
			tx.Commit(slots)
			var ts unix.Timespec
			if err := unix.ClockGettime(int32(clockid), &ts); err != nil {
				t.Fatal(err)
			}
			if err := tx.KickAt(ts.Nano() + 1_000_000); err != nil {
				t.Fatal(err)
			}
		}
		receive(t, rx, 3, func(*ring.Frame) {})
		if n := testing.AllocsPerRun(100, func() { _ = tx.KickAt(1) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
