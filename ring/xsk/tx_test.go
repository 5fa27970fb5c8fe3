package xsk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
	"pktgen/ring/internal/sock"
)

// TestMirrors holds our offsets to golang.org/x/sys, which is generated from the
// kernel's headers.
func TestMirrors(t *testing.T) {
	d := reflect.TypeFor[unix.XDPDesc]()
	at := func(field string) int {
		f, ok := d.FieldByName(field)
		if !ok {
			t.Fatal(field)
		}
		return int(f.Offset)
	}
	if descAddr != at("Addr") || descLen != at("Len") || descOptions != at("Options") || descSize != int(d.Size()) {
		t.Errorf("%v", d)
	}
	if headroom != unix.XDP_PACKET_HEADROOM {
		t.Error(unix.XDP_PACKET_HEADROOM)
	}
}

// TestLayout: slots are enough, large enough, and none is in two chunks.
func TestLayout(t *testing.T) {
	for maxFrame := 1; maxFrame <= MaxFrame; maxFrame++ {
		for _, slots := range []int{1, 2, 3, 31, 32, 33, 200, 4096} {
			g, err := txLayout(maxFrame, slots)
			if err != nil {
				t.Fatal(err)
			}
			if g.slots < slots || g.slots&(g.slots-1) != 0 || g.length()%g.chunk != 0 || g.chunk != minChunk && g.chunk != maxChunk {
				t.Fatalf("%d slots of %d: %+v", slots, maxFrame, g)
			}
			for i := range g.slots {
				off := g.offset(i)
				if off/g.chunk != (off+maxFrame-1)/g.chunk || off+maxFrame > g.offset(i+1) || g.slot(uint64(off)) != i {
					t.Fatalf("%d slots of %d, slot %d: %+v", slots, maxFrame, i, g)
				}
			}
		}
	}
	for _, c := range []struct{ maxFrame, chunk int }{{60, 2048}, {1792, 2048}, {1793, 4096}, {3840, 4096}} {
		if g, err := rxLayout(c.maxFrame, 100); err != nil || g.chunk != c.chunk || g.slots != 128 || g.length() != 128*c.chunk {
			t.Errorf("%d: %+v, %v", c.maxFrame, g, err)
		}
	}
}

// kernel is the other side of a TX ring without zero-copy, by the rules of
// __xsk_generic_xmit (net/xdp/xsk.c).
type kernel struct {
	s        *socket
	peeked   uint32 // cached_prod
	consumed uint32 // cached_cons
	filled   uint32 // position in the completion ring

	sent   [][]byte
	later  []uint64 // addresses of frames that the NIC has not finished with
	budget int
}

// memoryTX is a ring over memory that a kernel in memory shares.
func memoryTX(t testing.TB, maxFrame, slots int) (*TX, *kernel) {
	t.Helper()
	g, err := txLayout(maxFrame, slots)
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{Socket: &sock.Socket{FD: -1, Name: "mem0", Queue: 3}, umem: shm.Alloc(g.length())}
	off := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	s.ring.view(shm.Alloc(192+g.slots*descSize), off, g.slots, descSize)
	s.completion.view(shm.Alloc(192+g.slots*addrSize), off, g.slots, addrSize)
	tx := &TX{sock: s, geo: g, mtu: maxFrame - ethernetHeader}
	tx.view(maxFrame)
	return tx, &kernel{s: s, budget: 32}
}

// xmit is one sendto(2). drop says which frames the driver does not take.
func (k *kernel) xmit(drop func(frame []byte) bool, hold bool) unix.Errno {
	r := &k.s.ring
	sent := false
	release := func() unix.Errno {
		r.consumer.Store(k.consumed)
		return 0
	}
	for n := 0; ; n++ {
		if k.peeked == k.consumed {
			release()
			k.peeked = r.producer.Load()
		}
		if k.peeked == k.consumed {
			return 0
		}
		if n == k.budget {
			if sent {
				release()
			}
			return unix.EAGAIN
		}
		d := r.entry(k.consumed)
		addr, length := binary.NativeEndian.Uint64(d[descAddr:]), binary.NativeEndian.Uint32(d[descLen:])
		if c := &k.s.completion; k.filled+uint32(len(k.later))-c.consumer.Load() > c.mask {
			if sent {
				release()
			}
			return unix.EAGAIN // xsk_cq_reserve_addr_locked
		}
		frame := bytes.Clone(k.s.umem.Bytes(int(addr), int(length)))
		k.consumed++
		if drop(frame) {
			k.complete(addr)
			if sent {
				release()
			}
			return unix.EBUSY
		}
		sent = true
		k.sent = append(k.sent, frame)
		if hold {
			k.later = append(k.later, addr)
		} else {
			k.complete(addr)
		}
	}
}

func (k *kernel) complete(addr uint64) {
	c := &k.s.completion
	if k.filled-c.consumer.Load() > c.mask {
		panic("the completion ring is full")
	}
	binary.NativeEndian.PutUint64(c.addr(k.filled), addr)
	k.filled++
	c.producer.Store(k.filled)
}

// TestResend: whatever the driver refuses and whatever it finishes late, in any order,
// every frame is sent once, in its place, and its slot is not lent before it is done.
func TestResend(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tx, k := memoryTX(t, 64, 64)
		k.budget = 1 + rnd.IntN(40)
		tx.produced, tx.consumed, k.peeked, k.consumed = ^uint32(20), ^uint32(20), ^uint32(20), ^uint32(20)
		tx.sock.ring.producer.Store(tx.produced)
		tx.sock.ring.consumer.Store(tx.produced)
		refusal := rnd.Float64() * 0.9
		holds := rnd.IntN(2) == 0
		kick := func() {
			for range 100_000 {
				errno := k.xmit(func([]byte) bool { return rnd.Float64() < refusal }, holds)
				more, err := tx.kicked(errno)
				if !more && (err == nil || rnd.IntN(3) > 0) {
					return
				}
				if err != nil && !errors.Is(err, ring.ErrBusy) {
					t.Fatal(err)
				}
			}
			t.Fatal("a Kick without end")
		}
		number := uint64(0)
		inFlight := func() map[uint64]bool {
			m := map[uint64]bool{}
			for _, a := range k.later {
				m[a] = true
			}
			return m
		}
		for number < 1000 {
			frames := tx.Reserve(1 + rnd.IntN(40))
			busy := inFlight()
			for i := range frames {
				if busy[uint64(tx.geo.offset((int(number)+i)%64))] {
					t.Fatalf("seed %d: slot of frame %d is lent while the NIC has it", seed, number+uint64(i))
				}
				frames[i] = frames[i][:20+rnd.IntN(44)]
				binary.BigEndian.PutUint64(frames[i], number+uint64(i))
			}
			tx.Commit(frames)
			number += uint64(len(frames))
			kick()
			rnd.Shuffle(len(k.later), func(i, j int) { k.later[i], k.later[j] = k.later[j], k.later[i] })
			for n := rnd.IntN(len(k.later) + 1); n > 0; n-- {
				k.complete(k.later[0])
				k.later = k.later[1:]
				tx.reclaim()
			}
			if c := tx.Counts(); c.Sent+uint64(tx.Outstanding()) != number {
				t.Fatalf("seed %d: %+v and %d outstanding of %d", seed, c, tx.Outstanding(), number)
			}
		}
		for tries := 0; len(k.sent) < int(number); tries++ {
			if kick(); tries > 10_000 {
				t.Fatal("a drain without end")
			}
		}
		for _, a := range k.later {
			k.complete(a)
		}
		if c := tx.Counts(); c.Sent != number || tx.Outstanding() != 0 {
			t.Errorf("seed %d: %+v, %d outstanding, want %d", seed, c, tx.Outstanding(), number)
		}
		for i, f := range k.sent {
			if binary.BigEndian.Uint64(f) != uint64(i) {
				t.Fatalf("seed %d: frame %d in the place of %d", seed, binary.BigEndian.Uint64(f), i)
			}
		}
		if len(k.sent) != int(number) {
			t.Errorf("seed %d: %d sent, want %d", seed, len(k.sent), number)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		is    error
		busy  uint64
	}{
		{unix.EAGAIN, ring.ErrBusy, 1}, {unix.ENOBUFS, ring.ErrBusy, 1}, {unix.EBUSY, ring.ErrBusy, 1}, {unix.EINTR, ring.ErrBusy, 0},
		{unix.ENETDOWN, ring.ErrLinkDown, 0}, {unix.ENXIO, ring.ErrLinkDown, 0}, {unix.ENODEV, ring.ErrLinkDown, 0},
		{unix.EBADF, unix.EBADF, 0},
	} {
		tx, _ := memoryTX(t, 64, 64)
		tx.sock.zeroCopy = true
		more, err := tx.kicked(c.errno)
		if more || !errors.Is(err, c.is) || tx.counts.Busy != c.busy {
			t.Errorf("%v: %v, %v, %+v", c.errno, more, err, tx.counts)
		}
		if c.is != ring.ErrBusy && err.Error()[:len("mem0 queue 3: send: ")] != "mem0 queue 3: send: " {
			t.Errorf("%v", err)
		}
	}
}

// TestHostileDescriptors: whatever stands in the rings, no frame leads out of the
// memory, a walk ends, and no chunk is given back that is not there.
func TestHostileDescriptors(t *testing.T) {
	g, err := rxLayout(1518, 64)
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{Socket: &sock.Socket{FD: -1, Name: "mem0"}, umem: shm.Alloc(g.length())}
	off := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	s.ring.view(shm.Alloc(192+g.slots*descSize), off, g.slots, descSize)
	s.fill.view(shm.Alloc(192+g.slots*addrSize), off, g.slots, addrSize)
	rx := &RX{sock: s, geo: g}
	rx.view()
	rnd := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 7, 8, 256, 2048, uint64(g.length()) - 1, uint64(g.length()), 1 << 31, 1<<32 - 1, 1 << 63, ^uint64(0)}
	malformed := 0
	for range 2000 {
		for i := range uint32(g.slots) {
			e := s.ring.entry(i)
			binary.NativeEndian.PutUint64(e, values[rnd.IntN(len(values))]+uint64(rnd.IntN(3)))
			binary.NativeEndian.PutUint32(e[8:], uint32(values[rnd.IntN(len(values))])+uint32(rnd.IntN(3)))
		}
		s.ring.producer.Store(rx.next + rnd.Uint32() | 1)
		b, err := rx.Next(0)
		if err != nil {
			t.Fatal(err)
		}
		var f ring.Frame
		n := 0
		for ; b.Next(&f); n++ {
			if len(f.Data) > g.length() {
				t.Fatal(len(f.Data))
			}
		}
		if b.Malformed() {
			malformed++
		}
		if n > b.Len() || b.Len() > g.slots {
			t.Fatalf("%d frames of %d", n, b.Len())
		}
		rx.Release(b)
		for i := range uint32(g.slots) {
			if a := binary.NativeEndian.Uint64(s.fill.addr(i)); a >= uint64(g.length()) || a%uint64(g.chunk) != 0 {
				t.Fatalf("chunk %#x", a)
			}
		}
	}
	if malformed < 1000 {
		t.Errorf("%d malformed", malformed)
	}
}
