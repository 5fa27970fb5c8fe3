package ringtest_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pktgen/ring"
	"pktgen/ring/ringtest"
)

const forever = 10 * time.Second

// send sends frames of 60 octets that begin with their numbers, from first on. From any
// goroutine.
func send(t *testing.T, tx *ringtest.TX, first, n int) {
	t.Helper()
	for end := first + n; first < end; {
		slots := tx.Reserve(end - first)
		if len(slots) == 0 {
			t.Error("no free slot")
			return
		}
		for i, s := range slots {
			slots[i] = s[:60]
			binary.BigEndian.PutUint64(slots[i], uint64(first+i))
		}
		tx.Commit(slots)
		first += len(slots)
		if err := tx.Kick(); err != nil {
			t.Error(err)
			return
		}
	}
}

// numbers reads what has arrived.
func numbers(t *testing.T, rx *ringtest.RX) (ns []int) {
	t.Helper()
	var f ring.Frame
	for {
		b, err := rx.Next(0)
		if err == ring.ErrTimeout {
			return ns
		}
		if err != nil {
			t.Fatal(err)
		}
		for b.Next(&f) {
			ns = append(ns, int(binary.BigEndian.Uint64(f.Data)))
		}
		if b.Malformed() {
			t.Fatal("malformed")
		}
		rx.Release(b)
	}
}

// TestAlter: what a test asks for is what arrives.
func TestAlter(t *testing.T) {
	var kept []byte
	for _, c := range []struct {
		name  string
		alter func(n uint64, f []byte) [][]byte
		want  []int
	}{
		{"nothing", nil, []int{0, 1, 2, 3, 4, 5}},
		{"loss", func(n uint64, f []byte) [][]byte {
			if n == 2 {
				return nil
			}
			return [][]byte{f}
		}, []int{0, 1, 3, 4, 5}},
		{"duplicates", func(n uint64, f []byte) [][]byte {
			if n == 2 {
				return [][]byte{f, f, f}
			}
			return [][]byte{f}
		}, []int{0, 1, 2, 2, 2, 3, 4, 5}},
		{"reordering", func(n uint64, f []byte) [][]byte {
			switch n {
			case 2:
				kept = f
				return nil
			case 4:
				return [][]byte{f, kept}
			}
			return [][]byte{f}
		}, []int{0, 1, 3, 4, 2, 5}},
		{"corruption", func(n uint64, f []byte) [][]byte {
			if n == 2 {
				f[7] = 99
			}
			return [][]byte{f}
		}, []int{0, 1, 99, 3, 4, 5}},
	} {
		w := ringtest.NewWire(100)
		w.Alter = c.alter
		tx, rx := w.TX(4, 60), started(w) // fewer slots than frames
		send(t, tx, 0, 6)
		if got := numbers(t, rx); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if n := tx.Counts().Sent; n != 6 || tx.Outstanding() != 0 {
			t.Errorf("%s: %d sent, %d outstanding", c.name, n, tx.Outstanding())
		}
	}
}

// started is a receiver that takes what arrives.
func started(w *ringtest.Wire) *ringtest.RX {
	rx := w.RX()
	_ = rx.Start() // it never fails
	return rx
}

// TestFaults: busy, rejected, blocked, full, lost.
func TestFaults(t *testing.T) {
	w := ringtest.NewWire(5)
	tx, rx := w.TX(16, 60), started(w)
	calls := 0
	tx.Fault = func() error {
		if calls++; calls == 1 {
			return ring.ErrBusy
		}
		return nil
	}
	tx.Reject = func(f []byte) bool { return f[7] == 3 }
	slots := tx.Reserve(4)
	for i, s := range slots {
		binary.BigEndian.PutUint64(s, uint64(i))
	}
	tx.Commit(slots)
	if err := tx.Kick(); err != ring.ErrBusy || tx.Outstanding() != 4 || numbers(t, rx) != nil {
		t.Errorf("busy: %v, %d outstanding", err, tx.Outstanding())
	}
	if err := tx.Kick(); err != nil {
		t.Error(err)
	}
	if c, want := tx.Counts(), (ring.TXCounts{Sent: 3, Rejected: 1, Busy: 1}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	tx.Reject = nil
	send(t, tx, 10, 4)
	if got, want := numbers(t, rx), []int{0, 1, 2, 10, 11}; !slices.Equal(got, want) { // it holds five
		t.Errorf("%v, want %v", got, want)
	}
	if d, err := rx.Drops(); err != nil || d.Packets != 7 || d.Drops != 2 {
		t.Errorf("%+v, %v, want 7 packets, 2 drops", d, err)
	}
	tx.Stopped = true
	for got := 0; got < 16; { // to the end of the ring, and on from its beginning
		s := tx.Reserve(100)
		if len(s) == 0 {
			t.Fatalf("%d free slots", got)
		}
		tx.Commit(s)
		got += len(s)
	}
	if err := tx.Kick(); err != nil || tx.Outstanding() != 16 || len(tx.Reserve(1)) != 0 {
		t.Errorf("blocked: %v, %d outstanding", err, tx.Outstanding())
	}
	w.Inject(0, make([]byte, 60))
	rx.Fail(ring.ErrLinkDown)
	b, err := rx.Next(forever)
	if err != nil || b.Len() != 1 {
		t.Fatalf("what arrived before the fault: %v", err)
	}
	rx.Release(b)
	if _, err := rx.Next(forever); !errors.Is(err, ring.ErrLinkDown) {
		t.Errorf("lost: %v", err)
	}
}

// TestTags: the outermost one is taken off, as the kernel does.
func TestTags(t *testing.T) {
	w := ringtest.NewWire(10)
	w.Now = func() int64 { return 4711 }
	rx := started(w)
	mac := make([]byte, 12)
	mac[11] = 1
	for _, c := range []struct{ tags, inside []byte }{
		{nil, []byte{8, 0, 1, 2}},
		{[]byte{0x81, 0, 0x20, 42}, []byte{8, 0, 1, 2}},
		{[]byte{0x88, 0xa8, 0, 7}, []byte{0x81, 0, 0, 8, 8, 0}},
	} {
		w.Inject(0, slices.Concat(mac, c.tags, c.inside))
		b, err := rx.Next(0)
		if err != nil {
			t.Fatal(err)
		}
		var f ring.Frame
		if !b.Next(&f) || !slices.Equal(f.Data, slices.Concat(mac, c.inside)) ||
			f.WireLen != 12+len(c.tags)+len(c.inside) || f.TimeNs != 4711 {
			t.Errorf("%+v", f)
		}
		if c.tags != nil && (f.TPID != binary.BigEndian.Uint16(c.tags) || f.VLAN != binary.BigEndian.Uint16(c.tags[2:])) ||
			c.tags == nil && f.TPID != 0 {
			t.Errorf("TPID %#x, TCI %#x of % x", f.TPID, f.VLAN, c.tags)
		}
		rx.Release(b)
		if f.Data[11] == 1 {
			t.Error("a released block still has its frames")
		}
	}
}

// TestQueues: several senders on goroutines of their own, and a receiver each
// that waits for them.
func TestQueues(t *testing.T) {
	const senders, each = 3, 5000
	w := ringtest.NewWire(senders * each)
	w.Queue = func(f []byte) int { return int(binary.BigEndian.Uint64(f)) / each }
	rxs := []*ringtest.RX{started(w), started(w)} // the last sender's frames have nowhere to go
	for i := range senders {
		go send(t, w.TX(50, 60), i*each, each)
	}
	for i, rx := range rxs {
		next := i * each
		var f ring.Frame
		for next < (i+1)*each {
			b, err := rx.Next(forever)
			if err != nil {
				t.Fatal(err)
			}
			for b.Next(&f) {
				if got := int(binary.BigEndian.Uint64(f.Data)); got != next {
					t.Fatalf("frame %d, want %d", got, next)
				}
				next++
			}
			rx.Release(b)
		}
	}
}

// TestContract: who breaks the contract is told so.
func TestContract(t *testing.T) {
	w := ringtest.NewWire(10)
	for _, c := range []struct {
		name string
		f    func(tx *ringtest.TX, rx *ringtest.RX)
		want string
	}{
		{"more than reserved", func(tx *ringtest.TX, _ *ringtest.RX) { tx.Commit(tx.Reserve(2)); tx.Commit(make([][]byte, 1)) }, "more than the last Reserve"},
		{"not the first slot", func(tx *ringtest.TX, _ *ringtest.RX) { tx.Commit(tx.Reserve(2)[1:]) }, "something else than a prefix"},
		{"own memory", func(tx *ringtest.TX, _ *ringtest.RX) { tx.Reserve(1); tx.Commit([][]byte{make([]byte, 60)}) }, "something else than a prefix"},
		{"written after Commit", func(tx *ringtest.TX, _ *ringtest.RX) {
			s := tx.Reserve(1)
			tx.Commit(s)
			s[0][9]++
			tx.Kick()
		}, "written to after its Commit"},
		{"Prefill in mid-run", func(tx *ringtest.TX, _ *ringtest.RX) {
			tx.Commit(tx.Reserve(1))
			tx.Prefill(func([]byte) int { return 1 })
		}, "slots outstanding"},
		{"Kick after Close", func(tx *ringtest.TX, _ *ringtest.RX) { tx.Close(); tx.Kick() }, "Kick after Close"},
		{"Close after Close", func(tx *ringtest.TX, _ *ringtest.RX) { tx.Close(); tx.Close() }, "Close after Close"},
		{"released twice", func(_ *ringtest.TX, rx *ringtest.RX) {
			w.Inject(0, make([]byte, 60))
			b, _ := rx.Next(0)
			rx.Release(b)
			rx.Release(b)
		}, "not lent"},
		{"never released", func(_ *ringtest.TX, rx *ringtest.RX) {
			w.Inject(0, make([]byte, 60))
			rx.Next(0)
			rx.Close()
		}, "not released"},
		{"Next after Close", func(_ *ringtest.TX, rx *ringtest.RX) { rx.Close(); rx.Next(0) }, "Next after Close"},
	} {
		func() {
			w = ringtest.NewWire(10)
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, c.want) {
					t.Errorf("%s: panic %q, want %q", c.name, got, c.want)
				}
			}()
			c.f(w.TX(4, 60), started(w))
		}()
	}
}
