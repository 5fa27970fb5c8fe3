package tpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pktgen/ring"
	"pktgen/ring/internal/sock"
	"pktgen/ring/ringtest"
)

// memoryRX is a ring over the memory of a kernel in memory. Its socket, of
// descriptor -1, never has anything to say.
func memoryRX(t rapid.TB, blockSize, blocks int) (*RX, *ringtest.RXKernel) {
	t.Helper()
	k, err := ringtest.NewRXKernel(unix.TpacketReq3{
		Block_size: uint32(blockSize), Block_nr: uint32(blocks), Frame_size: 2048, Frame_nr: uint32(blockSize / 2048 * blocks),
	})
	if err != nil {
		t.Fatal(err)
	}
	rx := &RX{sock: &sock.Socket{FD: -1, Name: "mem0"}}
	rx.view(k.Mem(), blockSize, blocks)
	return rx, k
}

// TestRXModel runs the ring against a queue: what the kernel took comes out, in
// order, with all that is known about it; a full ring drops, and then goes on.
func TestRXModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		page := os.Getpagesize()
		rx, k := memoryRX(t, page, rapid.IntRange(1, 4).Draw(t, "blocks"))
		var queue []ring.Frame
		var lent *ring.Block
		drops, n := uint64(0), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"receive": func(t *rapid.T) {
				f := ring.Frame{
					Data:            make([]byte, rapid.SampledFrom([]int{0, 14, 60, 1000, page - 130, page - 120, 2 * page}).Draw(t, "length")),
					TimeNs:          rapid.Int64Range(0, 1<<32*1e9-1).Draw(t, "time"),
					TPID:            rapid.SampledFrom([]uint16{0, unix.ETH_P_8021Q, unix.ETH_P_8021AD}).Draw(t, "tpid"),
					ChecksumPartial: rapid.Bool().Draw(t, "partial"),
				}
				f.WireLen = len(f.Data)
				if f.TPID != 0 {
					f.VLAN = rapid.Uint16().Draw(t, "tci")
					f.WireLen += 4
				}
				fill(f.Data, int(n))
				n++
				if !k.Receive(f) {
					drops++
					return
				}
				f.Data = f.Data[:min(len(f.Data), page-48-82)] // cut where it does not fit a block
				queue = append(queue, f)
			},
			"retire": func(*rapid.T) { k.Retire() },
			"next": func(t *rapid.T) {
				if lent != nil {
					rx.Release(lent)
					lent = nil
				}
				b, err := rx.Next(0)
				if err != nil {
					if !errors.Is(err, ring.ErrTimeout) {
						t.Fatal(err)
					}
					return
				}
				lent = b
				if b.Len() == 0 || b.Len() > len(queue) {
					t.Fatalf("%d frames of %d", b.Len(), len(queue))
				}
				var f ring.Frame
				for i := range b.Len() {
					if !b.Next(&f) {
						t.Fatalf("frame %d of %d is not there; malformed: %v", i, b.Len(), b.Malformed())
					}
					if !reflect.DeepEqual(queue[0], f) {
						t.Fatal(cmp.Diff(queue[0], f))
					}
					queue = queue[1:]
				}
				if b.Next(&f) || b.Malformed() {
					t.Fatal("more frames than Len, or malformed")
				}
			},
			"": func(t *rapid.T) {
				if d := k.Drops(); d.Packets != n || d.Drops != drops {
					t.Fatalf("%+v of %d sent, %d dropped", d, n, drops)
				}
			},
		})
		// Nothing stays behind.
		if lent != nil {
			rx.Release(lent)
		}
		k.Retire()
		for len(queue) > 0 {
			b, err := rx.Next(0)
			if err != nil {
				t.Fatalf("%v, with %d frames in the ring", err, len(queue))
			}
			queue = queue[b.Len():]
			rx.Release(b)
			k.Retire()
		}
	})
}

// TestRXConcurrent: the kernel on a goroutine of its own; every frame comes out
// whole, once, in order, or is counted as dropped. The race detector proves the
// order of memory.
func TestRXConcurrent(t *testing.T) {
	const total = 30_000
	rx, k := memoryRX(t, 1<<16, 3)
	done := make(chan ring.KernelDrops)
	go func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		data := make([]byte, 300)
		for n := range total {
			data = data[:8+n%293]
			fill(data, n)
			ok := k.Receive(ring.Frame{Data: data, WireLen: len(data), TimeNs: int64(n)})
			if rnd.IntN(200) == 0 {
				k.Retire()
			}
			if !ok && rnd.IntN(4) != 0 { // a full ring: mostly the other side catches up
				runtime.Gosched()
			}
		}
		k.Retire() // a full ring holds a block that the other side must first free
		done <- k.Drops()
	}()
	received, last := 0, -1
	var drops ring.KernelDrops
	want := make([]byte, 300)
	var f ring.Frame
	for over := false; ; {
		b, err := rx.Next(0)
		if err == nil {
			for b.Next(&f) {
				n := int(binary.BigEndian.Uint64(f.Data))
				want = want[:8+n%293]
				if fill(want, n); n <= last || !bytes.Equal(f.Data, want) || f.TimeNs != int64(n) {
					t.Fatalf("frame %d after %d: % x", n, last, f.Data)
				}
				last = n
				received++
			}
			if b.Malformed() {
				t.Fatal("malformed")
			}
			rx.Release(b)
			continue
		}
		if over {
			break
		}
		select {
		case drops = <-done:
			over = true
		default:
			runtime.Gosched()
		}
	}
	if received == 0 {
		t.Error("nothing received")
	}
	if drops.Packets != total || uint64(received)+drops.Drops != total {
		t.Errorf("%d received and %d dropped of %d, not of %d", received, drops.Drops, drops.Packets, total)
	}
}

// twinWalk is the walk of a block, slow and obvious, with the layout of
// golang.org/x/sys.
func twinWalk(block []byte, off, count int) (frames []ring.Frame, malformed bool) {
	for i := 0; i < count; i++ {
		var h unix.Tpacket3Hdr
		if off < blockHeader || off > len(block) {
			return frames, true
		}
		if _, err := binary.Decode(block[off:], binary.NativeEndian, &h); err != nil {
			return frames, true
		}
		begin := uint64(off) + uint64(h.Mac)
		end := begin + uint64(h.Snaplen)
		if int(h.Mac) < unix.SizeofTpacket3Hdr || end > uint64(len(block)) {
			return frames, true
		}
		f := ring.Frame{
			Data:            block[begin:end],
			WireLen:         int(h.Len),
			TimeNs:          int64(h.Sec)*1_000_000_000 + int64(h.Nsec),
			ChecksumPartial: h.Status&unix.TP_STATUS_CSUMNOTREADY != 0,
			Hardware:        h.Status&unix.TP_STATUS_TS_RAW_HARDWARE != 0,
		}
		if h.Status&unix.TP_STATUS_VLAN_VALID != 0 {
			f.WireLen += 4
			f.VLAN, f.TPID = uint16(h.Hv1.Vlan_tci), 0x8100
			if h.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
				f.TPID = h.Hv1.Vlan_tpid
			}
		}
		frames = append(frames, f)
		if h.Next_offset < unix.SizeofTpacket3Hdr || uint64(off)+uint64(h.Next_offset) > uint64(len(block)) {
			return frames, i+1 < count
		}
		off += int(h.Next_offset)
	}
	return frames, false
}

// goodBlock is a block of a few frames, as the kernel makes it.
func goodBlock(t testing.TB) []byte {
	rx, k := memoryRX(t, os.Getpagesize(), 1)
	for i, n := range []int{60, 61, 590, 1514} {
		f := ring.Frame{Data: make([]byte, n), WireLen: n, TimeNs: int64(i)*1e9 + 999_999_999}
		if i == 1 {
			f.VLAN, f.TPID, f.WireLen = 42, unix.ETH_P_8021AD, n+4
		}
		fill(f.Data, i)
		if !k.Receive(f) {
			t.Fatal("dropped")
		}
	}
	k.Retire()
	return bytes.Clone(rx.blocks[0])
}

// checkWalk walks a block through the ring, as hostile as it may be, and holds
// the walk to its twin and to the block's bounds.
func checkWalk(t *testing.T, block []byte) {
	t.Helper()
	// The block in the middle of other memory, as in a ring.
	const guard = 64
	mem := make([]byte, guard+len(block)+guard)
	inside := mem[guard : guard+len(block) : guard+len(block)]
	copy(inside, block)
	rx := &RX{blocks: [][]byte{inside}}
	b := rx.load(0)
	first, count := int(binary.NativeEndian.Uint32(block[16:])), int(binary.NativeEndian.Uint32(block[12:]))
	want, malformed := twinWalk(block, first, min(count, len(block)))
	if count > len(block) { // more than can be
		malformed = true
	}
	var got []ring.Frame
	var f ring.Frame
	for b.Next(&f) {
		if got = append(got, f); len(got) > len(want) {
			break
		}
	}
	d := ""
	if !reflect.DeepEqual(want, got) { // Diff is slow
		d = cmp.Diff(want, got)
	}
	if d != "" || b.Malformed() != malformed || b.Len() != count {
		t.Fatalf("malformed %v, want %v; %d frames, want %d\n%s", b.Malformed(), malformed, len(got), len(want), d)
	}
	for _, f := range got {
		if cap(f.Data) != len(f.Data) {
			t.Fatal("a frame's capacity goes on behind it")
		}
		full := f.Data[:cap(f.Data)]
		for i := range full {
			full[i] = 0xff
		}
	}
	for i := range guard {
		if mem[i] != 0 || mem[len(mem)-1-i] != 0 {
			t.Fatal("a frame reaches out of its block")
		}
	}
}

// TestHostileBlocks: the words of the kernel's that could lead astray.
func TestHostileBlocks(t *testing.T) {
	checkWalk(t, goodBlock(t))
	second := 48 + (82+60+7)/8*8
	words := map[string]struct{ at, size int }{
		"num_pkts":            {12, 4},
		"offset_to_first_pkt": {16, 4},
		"tp_next_offset":      {second, 4},
		"tp_snaplen":          {second + 12, 4},
		"tp_len":              {second + 16, 4},
		"tp_status":           {second + 20, 4},
		"tp_mac":              {second + 24, 2},
	}
	page := uint32(os.Getpagesize())
	values := []uint32{0, 1, 2, 3, 4, 5, 7, 8, 46, 47, 48, 49, 81, 82, 1 << 15, 1<<16 - 1, 1 << 16, 1 << 31, 1<<31 - 1, 1<<32 - 1, 1<<32 - 8, 1<<32 - 48, 1<<32 - 144}
	for d := range uint32(60) {
		values = append(values, page-d, page+d)
	}
	for name, w := range words {
		t.Run(name, func(t *testing.T) {
			for _, v := range values {
				b := goodBlock(t)
				if w.size == 2 {
					binary.NativeEndian.PutUint16(b[w.at:], uint16(v))
				} else {
					binary.NativeEndian.PutUint32(b[w.at:], v)
				}
				checkWalk(t, b)
			}
		})
	}
}

// TestWalkEnds: a block whose frames lead to themselves or back, and which
// claims four thousand million of them.
func TestWalkEnds(t *testing.T) {
	for _, step := range []uint32{0, 1, 8, 47, 1 << 31, 1<<32 - 8, 1<<32 - 144} {
		block := goodBlock(t)
		binary.NativeEndian.PutUint32(block[12:], 1<<32-1)
		binary.NativeEndian.PutUint32(block[48:], step)
		rx := &RX{blocks: [][]byte{block}}
		b, n := rx.load(0), 0
		for f := (ring.Frame{}); b.Next(&f); n++ {
			if n > len(block) {
				t.Fatalf("step %d: no end", int32(step))
			}
		}
		if n != 1 || !b.Malformed() {
			t.Errorf("step %d: %d frames, malformed: %v", int32(step), n, b.Malformed())
		}
	}
}

// TestOverlaps: headers that are right in themselves, but where none may be.
func TestOverlaps(t *testing.T) {
	put := func(at int, word uint32) func(b []byte) {
		return func(b []byte) { binary.NativeEndian.PutUint32(b[at:], word) }
	}
	for _, c := range []struct {
		name string
		set  []func(b []byte)
		want int
	}{
		{"in the block's header", []func([]byte){put(12, 1), put(16, 0), put(24, 48)}, 0},
		{"in the header before", []func([]byte){put(12, 2), put(16, 48), put(48, 8), put(72, 48), put(80, 48)}, 1},
		{"in the frame before", []func([]byte){put(12, 2), put(16, 48), put(48, 48), put(48+12, 64), put(48+24, 48), put(96+24, 48)}, 2},
	} {
		block := make([]byte, 400)
		for _, f := range c.set {
			f(block)
		}
		checkWalk(t, block)
		if frames, _ := twinWalk(block, int(binary.NativeEndian.Uint32(block[16:])), 2); len(frames) != c.want {
			t.Errorf("%s: %d frames, want %d", c.name, len(frames), c.want)
		}
	}
}

func FuzzBlock(f *testing.F) {
	good := goodBlock(f)
	f.Add(good)
	f.Add(good[:100])
	f.Add(bytes.Repeat([]byte{0xff}, 200))
	f.Fuzz(func(t *testing.T, block []byte) {
		if len(block) < blockHeader {
			return // the ring has none so small
		}
		checkWalk(t, block)
	})
}

// TestRXAllocations: none for a block, none for a frame.
func TestRXAllocations(t *testing.T) {
	rx, _ := memoryRX(t, os.Getpagesize(), 1)
	copy(rx.blocks[0][blockStatus+4:], goodBlock(t)[blockStatus+4:])
	var f ring.Frame
	if n := testing.AllocsPerRun(1000, func() {
		rx.status[0].Store(unix.TP_STATUS_USER)
		b, err := rx.Next(0)
		if err != nil {
			t.Fatal(err)
		}
		for b.Next(&f) {
		}
		rx.Release(b)
	}); n != 0 {
		t.Errorf("%v allocations a block", n)
	}
}

// TestPoll: what a socket says while its ring is empty.
func TestPoll(t *testing.T) {
	rx, k := memoryRX(t, os.Getpagesize(), 2)
	if b, err := rx.Next(0); b != nil || err != ring.ErrTimeout {
		t.Errorf("an empty ring: %v, %v", b, err)
	}
	// A descriptor with an error. What has arrived is still read.
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(pipe[1])
	defer unix.Close(pipe[0])
	rx.sock.FD = pipe[0] // POLLHUP, and no socket
	if _, err := rx.Next(0); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("no socket: %v", err)
	}
	k.Receive(ring.Frame{Data: make([]byte, 60), WireLen: 60})
	k.Retire()
	if err := rx.wait(0); err != nil { // as when it arrived during the wait
		t.Errorf("a frame that has arrived: %v", err)
	}
	if b, err := rx.Next(0); err != nil || b.Len() != 1 {
		t.Errorf("a frame that has arrived: %v", err)
	}
}

// BenchmarkBlock is the walk over the frames of blocks that are in the cache.
func BenchmarkBlock(b *testing.B) {
	for _, size := range []int{64, 594, 1518} {
		b.Run(fmt.Sprintf("backend=tpacket/size=%d", size), func(b *testing.B) {
			rx, k := memoryRX(b, DefaultRXBlockSize, 1)
			for k.Receive(ring.Frame{Data: make([]byte, size-4), WireLen: size - 4}) {
			}
			var f ring.Frame
			octets := 0
			for n := 0; n < b.N; {
				rx.status[0].Store(unix.TP_STATUS_USER)
				block, err := rx.Next(0)
				if err != nil {
					b.Fatal(err)
				}
				for n < b.N && block.Next(&f) {
					octets += len(f.Data)
					n++
				}
				rx.Release(block)
			}
			if octets != b.N*(size-4) {
				b.Fatal("octets are missing")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/frame")
		})
	}
}
