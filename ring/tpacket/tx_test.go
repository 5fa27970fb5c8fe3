package tpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pktgen/ring"
	"pktgen/ring/internal/sock"
	"pktgen/ring/ringtest"
)

// memoryTX is a ring over the memory of a kernel in memory. It has no socket.
func memoryTX(t testing.TB, maxFrame, slots int) (*TX, *ringtest.TXKernel) {
	t.Helper()
	g, err := txLayout(maxFrame, slots)
	if err != nil {
		t.Fatal(err)
	}
	k, err := ringtest.NewTXKernel(g.request())
	if err != nil {
		t.Fatal(err)
	}
	tx := &TX{sock: &sock.Socket{FD: -1, Name: "mem0"}}
	tx.view(k.Mem(), g, maxFrame)
	return tx, k
}

// finishes are the ways in which the kernel ends with a slot.
var finishes = []uint32{
	unix.TP_STATUS_AVAILABLE,
	unix.TP_STATUS_AVAILABLE | unix.TP_STATUS_TS_SOFTWARE,
	unix.TP_STATUS_AVAILABLE | unix.TP_STATUS_TS_RAW_HARDWARE,
	unix.TP_STATUS_WRONG_FORMAT,
}

// TestTXModel runs the ring against a twin that remembers every frame: batches
// of any size and prefix, completions in any order and of any kind.
func TestTXModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxFrame = 2000
		tx, k := smallTX(t, maxFrame, rapid.IntRange(1, 12).Draw(t, "slots"))
		n := len(tx.data)
		var committed [][]byte       // all frames so far
		finished := map[int]uint32{} // by number of the frame
		taken := map[int]int{}       // number of a frame that is being sent -> its slot
		last := make([][]byte, n)    // what each slot was left with
		next := 0                    // the frame that the kernel takes next
		tail := func() (i int) {     // the frames from here on hold their slots
			for i < len(committed) {
				if _, ok := finished[i]; !ok {
					break
				}
				i++
			}
			return i
		}
		check := func() {
			var want ring.TXCounts
			for i := range tail() {
				if finished[i] == unix.TP_STATUS_WRONG_FORMAT {
					want.Rejected++
				} else {
					want.Sent++
				}
			}
			if got := tx.Counts(); got != want {
				t.Fatalf("counts %+v, want %+v", got, want)
			}
			if got := tx.Outstanding(); got != len(committed)-tail() {
				t.Fatalf("%d outstanding, want %d", got, len(committed)-tail())
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				max := rapid.IntRange(0, 2*n).Draw(t, "max")
				free, toEnd := n-(len(committed)-tail()), n-len(committed)%n
				frames := tx.Reserve(max)
				if len(frames) != min(max, free, toEnd) {
					t.Fatalf("%d slots, want the least of %d, %d free, %d to the end", len(frames), max, free, toEnd)
				}
				for i, f := range frames {
					at := (len(committed) + i) % n
					if cap(f) != maxFrame || !bytes.Equal(f, last[at]) && last[at] != nil {
						t.Fatalf("slot %d: capacity %d, % .8x..., want that of its last use, % .8x...", at, cap(f), f, last[at])
					}
				}
				frames = frames[:rapid.IntRange(0, len(frames)).Draw(t, "commit")]
				for i := range frames {
					frames[i] = frames[i][:rapid.SampledFrom([]int{1, 60, 1514, maxFrame}).Draw(t, "length")]
					fill(frames[i], len(committed)+i)
				}
				tx.Commit(frames)
				for _, f := range frames {
					last[len(committed)%n] = bytes.Clone(f)
					committed = append(committed, last[len(committed)%n])
				}
			},
			"take": func(t *rapid.T) {
				slot, frame, ok := k.Take()
				if ok != (next < len(committed)) {
					t.Fatalf("the kernel finds a frame: %v; %d of %d are taken", ok, next, len(committed))
				}
				if !ok {
					return
				}
				if slot != next%n || !bytes.Equal(frame, committed[next]) {
					t.Fatalf("frame %d out of slot %d: % .8x..., %d octets", next, slot, frame, len(frame))
				}
				taken[next] = slot
				next++
			},
			"finish": func(t *rapid.T) {
				if len(taken) == 0 {
					return
				}
				keys := make([]int, 0, len(taken))
				for i := range taken {
					keys = append(keys, i)
				}
				slices.Sort(keys)
				i := rapid.SampledFrom(keys).Draw(t, "frame")
				finished[i] = rapid.SampledFrom(finishes).Draw(t, "status")
				k.Finish(taken[i], finished[i])
				delete(taken, i)
			},
			"check": func(*rapid.T) { check() }, // not always: it reclaims
		})
		check()
	})
}

// smallTX is a memoryTX of a few slots, fewer than OpenTX would make, so that it
// often wraps.
func smallTX(t rapid.TB, maxFrame, slots int) (*TX, *ringtest.TXKernel) {
	g := txGeometry{slotSize: roundUp(v2Data+maxFrame, slotAlign), blocks: 1}
	g.blockSize = roundUp(slots*g.slotSize, os.Getpagesize())
	g.slotsPerBlock = g.blockSize / g.slotSize
	k, err := ringtest.NewTXKernel(g.request())
	if err != nil {
		t.Fatal(err)
	}
	tx := &TX{sock: &sock.Socket{FD: -1, Name: "mem0"}}
	tx.view(k.Mem(), g, maxFrame)
	return tx, k
}

// fill writes a frame that tells its number.
func fill(f []byte, number int) {
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], uint64(number))
	for n := copy(f, seq[:]); n < len(f); n++ {
		f[n] = byte(number + n)
	}
}

// TestTXConcurrent: the kernel on a goroutine of its own takes every frame whole
// and once, in order. The race detector proves the order of memory.
func TestTXConcurrent(t *testing.T) {
	const total = 30_000
	tx, k := memoryTX(t, 300, 500)
	var rejected uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		rnd := rand.New(rand.NewPCG(1, 2))
		want := make([]byte, 300)
		var sending []int
		for n := 0; n < total || len(sending) > 0; {
			slot, frame, ok := k.Take()
			if ok {
				want = want[:8+n%293]
				if fill(want, n); !bytes.Equal(frame, want) {
					t.Errorf("frame %d is % x", n, frame)
					return
				}
				sending = append(sending, slot)
				n++
			}
			// Few or many are on their way at once, and end in any order.
			for len(sending) > 0 && (n == total || !ok || rnd.IntN(1+len(sending)) > 8) {
				i := rnd.IntN(len(sending))
				status := finishes[rnd.IntN(len(finishes))]
				if status == unix.TP_STATUS_WRONG_FORMAT {
					rejected++
				}
				k.Finish(sending[i], status)
				sending[i] = sending[len(sending)-1]
				sending = sending[:len(sending)-1]
				if rnd.IntN(4) == 0 {
					break
				}
			}
			if !ok {
				runtime.Gosched()
			}
		}
	}()
	rnd := rand.New(rand.NewPCG(3, 4))
	for n := 0; n < total; {
		frames := tx.Reserve(min(1+rnd.IntN(100), total-n))
		if len(frames) == 0 {
			runtime.Gosched()
			if isClosed(done) {
				t.Fatalf("the kernel has stopped after %d frames", n)
			}
			continue
		}
		for i := range frames {
			frames[i] = frames[i][:8+(n+i)%293]
			fill(frames[i], n+i)
		}
		tx.Commit(frames)
		n += len(frames)
		out := uint64(tx.Outstanding()) // the kernel may have finished more by the next call
		if c := tx.Counts(); c.Sent+c.Rejected+out < uint64(n) || c.Sent+c.Rejected > uint64(n) {
			t.Fatalf("%+v and %d outstanding of %d", c, out, n)
		}
	}
	<-done
	if c := tx.Counts(); tx.Outstanding() != 0 || c.Rejected != rejected || c.Sent != total-rejected {
		t.Errorf("%+v, %d outstanding; want %d rejected of %d", c, tx.Outstanding(), rejected, total)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestPrefill: every slot is filled, at full capacity, and no slot reaches into
// another or into a header.
func TestPrefill(t *testing.T) {
	for _, maxFrame := range []int{1, 60, 1514, 9014, MaxFrame} {
		tx, k := memoryTX(t, maxFrame, 50)
		n := 0
		tx.Prefill(func(slot []byte) int {
			if len(slot) != maxFrame || cap(slot) != maxFrame {
				t.Fatalf("slot of %d, capacity %d, want %d", len(slot), cap(slot), maxFrame)
			}
			for i := range slot {
				slot[i] = byte(n)
			}
			n++
			return maxFrame - n%2
		})
		if n < 50 || n != len(tx.data) {
			t.Fatalf("%d slots filled, of %d", n, len(tx.data))
		}
		for sent := 0; sent < n; {
			frames := tx.Reserve(n)
			if _, _, ok := k.Take(); ok {
				t.Fatal("the kernel takes what was not committed")
			}
			tx.Commit(frames)
			for range frames {
				slot, frame, ok := k.Take()
				want := bytes.Repeat([]byte{byte(slot)}, maxFrame-(slot+1)%2)
				if !ok || !bytes.Equal(frame, want) {
					t.Fatalf("slot %d: % .8x..., %d octets, want %d", slot, frame, len(frame), len(want))
				}
				sent++
			}
		}
		tx.tail = tx.head // all done with
		tx.Prefill(func(slot []byte) int {
			if len(slot) != maxFrame {
				t.Fatalf("filled again: slot of %d, want %d", len(slot), maxFrame)
			}
			return maxFrame
		})
		// A slot that is appended to moves away, and leaves its neighbour alone.
		if s := tx.data[0]; &append(s[:maxFrame], 1)[0] == &s[:1][0] {
			t.Fatal("the capacity goes on behind the slot")
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		is    []error
		busy  uint64
	}{
		{unix.EAGAIN, []error{ring.ErrBusy}, 1},
		{unix.ENOBUFS, []error{ring.ErrBusy}, 1},
		{unix.EINTR, []error{ring.ErrBusy}, 0},
		{unix.ENETDOWN, []error{ring.ErrLinkDown, unix.ENETDOWN}, 0},
		{unix.ENXIO, []error{ring.ErrLinkDown, unix.ENXIO}, 0},
		{unix.ENODEV, []error{ring.ErrLinkDown, unix.ENODEV}, 0},
		{unix.EMSGSIZE, []error{unix.EMSGSIZE}, 0},
		{unix.EBADF, []error{unix.EBADF}, 0},
	} {
		tx := &TX{sock: &sock.Socket{FD: -1, Name: "eth31", Queue: 3}}
		err := tx.kickError(c.errno)
		for _, e := range []error{ring.ErrBusy, ring.ErrLinkDown, ring.ErrTimeout, c.errno} {
			want := slices.Contains(c.is, e)
			if got := errors.Is(err, e); got != want {
				t.Errorf("%v: %q is %q: %v, want %v", c.errno, err, e, got, want)
			}
		}
		if tx.counts.Busy != c.busy {
			t.Errorf("%v: %d times busy, want %d", c.errno, tx.counts.Busy, c.busy)
		}
		if !errors.Is(err, ring.ErrBusy) && !strings.HasPrefix(err.Error(), "eth31 queue 3: send: ") {
			t.Errorf("%v: %q names neither interface nor queue nor operation", c.errno, err)
		}
	}
}

// TestTXAllocations: none for a frame, none for a batch.
func TestTXAllocations(t *testing.T) {
	tx, _ := memoryTX(t, 60, 256)
	slots := len(tx.data)
	finish := func(n int) { // not Take: that copies
		for range n {
			tx.status[tx.tail%uint64(slots)].Store(unix.TP_STATUS_AVAILABLE)
			tx.reclaim()
		}
	}
	if n := testing.AllocsPerRun(1000, func() {
		frames := tx.Reserve(64)
		tx.Commit(frames)
		finish(len(frames))
		tx.Counts()
		tx.Outstanding()
	}); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// BenchmarkSlots is what the ring costs a frame beside the system call: lend,
// commit, and take back.
func BenchmarkSlots(b *testing.B) {
	for _, batch := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("backend=tpacket/batch=%d", batch), func(b *testing.B) {
			tx, _ := memoryTX(b, 60, DefaultTXSlots)
			for n := 0; n < b.N; {
				frames := tx.Reserve(min(batch, b.N-n))
				tx.Commit(frames)
				at := int(tx.head-uint64(len(frames))) % len(tx.data)
				for i := range frames {
					tx.status[at+i].Store(unix.TP_STATUS_AVAILABLE)
				}
				n += len(frames)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/frame")
		})
	}
}
