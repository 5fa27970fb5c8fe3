package tpacket

import (
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestMirrors holds our offsets to golang.org/x/sys, which is generated from the
// kernel's headers.
func TestMirrors(t *testing.T) {
	hdr := reflect.TypeFor[unix.TpacketBlockDesc]()
	at := func(s reflect.Type, field string, size uintptr) int {
		f, ok := s.FieldByName(field)
		if !ok || f.Type.Size() != size {
			t.Fatalf("%v.%s: there %v, %v", s, field, ok, f.Type)
		}
		return int(f.Offset)
	}
	v2, v3 := reflect.TypeFor[unix.Tpacket2Hdr](), reflect.TypeFor[unix.Tpacket3Hdr]()
	v1, variant := reflect.TypeFor[unix.TpacketHdrV1](), reflect.TypeFor[unix.TpacketHdrVariant1]()
	block, hv1 := at(hdr, "Hdr", 40), at(v3, "Hv1", 12)
	align := func(n int) int {
		return (n + unix.TPACKET_ALIGNMENT - 1) / unix.TPACKET_ALIGNMENT * unix.TPACKET_ALIGNMENT
	}
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"v2Status", v2Status, at(v2, "Status", 4)},
		{"v2Len", v2Len, at(v2, "Len", 4)},
		// packet_mmap.rst: TPACKET2_HDRLEN - sizeof(struct sockaddr_ll), where
		// TPACKET2_HDRLEN is the aligned header and a sockaddr_ll.
		{"v2Data", v2Data, align(unix.SizeofTpacket2Hdr) + unix.SizeofSockaddrLinklayer - unix.SizeofSockaddrLinklayer},
		{"blockStatus", blockStatus, block + at(v1, "Block_status", 4)},
		{"blockNumPkts", blockNumPkts, block + at(v1, "Num_pkts", 4)},
		{"blockFirstPkt", blockFirstPkt, block + at(v1, "Offset_to_first_pkt", 4)},
		{"blockHeader", blockHeader, int(hdr.Size())},
		{"v3NextOffset", v3NextOffset, at(v3, "Next_offset", 4)},
		{"v3Sec", v3Sec, at(v3, "Sec", 4)},
		{"v3Nsec", v3Nsec, at(v3, "Nsec", 4)},
		{"v3Snaplen", v3Snaplen, at(v3, "Snaplen", 4)},
		{"v3Len", v3Len, at(v3, "Len", 4)},
		{"v3Status", v3Status, at(v3, "Status", 4)},
		{"v3Mac", v3Mac, at(v3, "Mac", 2)},
		{"v3TCI", v3TCI, hv1 + at(variant, "Vlan_tci", 4)},
		{"v3TPID", v3TPID, hv1 + at(variant, "Vlan_tpid", 2)},
		{"v3Header", v3Header, unix.SizeofTpacket3Hdr},
		{"size of tpacket3_hdr", v3Header, int(v3.Size())},
	} {
		if c.got != c.want {
			t.Errorf("%s = %d, want %d", c.name, c.got, c.want)
		}
	}
}

// TestTXLayout: what the kernel demands of a ring (packet_set_ring), and what
// we do: enough slots, each large enough, none across a block or another slot.
func TestTXLayout(t *testing.T) {
	page := os.Getpagesize()
	rapid.Check(t, func(t *rapid.T) {
		maxFrame := rapid.IntRange(60, MaxFrame).Draw(t, "maxFrame")
		slots := rapid.IntRange(1, 8192).Draw(t, "slots")
		g, err := txLayout(maxFrame, slots)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case g.slots() < slots:
			t.Fatalf("%d slots", g.slots())
		case (g.blocks-1)*g.slotsPerBlock >= slots:
			t.Fatalf("%d blocks, one of them for nothing", g.blocks)
		case g.slotSize < v2Data+maxFrame:
			t.Fatalf("slots of %d octets", g.slotSize)
		case g.slotSize >= v2Data+maxFrame+slotAlign:
			t.Fatalf("slots of %d octets, more than the frame and the alignment ask for", g.slotSize)
		case g.slotSize%unix.TPACKET_ALIGNMENT != 0 || g.blockSize%page != 0:
			t.Fatalf("slots of %d, blocks of %d octets: not aligned", g.slotSize, g.blockSize)
		case g.blockSize&(g.blockSize-1) != 0:
			t.Fatalf("blocks of %d octets: the kernel would allocate the next power of two", g.blockSize)
		case g.length() != g.blocks*g.blockSize:
			t.Fatalf("length %d", g.length())
		}
		r := g.request()
		if r.Frame_nr != r.Block_nr*(r.Block_size/r.Frame_size) {
			t.Fatalf("request %+v", r)
		}
		end := 0
		for i := range g.slots() {
			off := g.offset(i)
			if off < end {
				t.Fatalf("slot %d at %d begins before the last one ends, at %d", i, off, end)
			}
			end = off + g.slotSize
			if off/g.blockSize != (end-1)/g.blockSize || off%slotAlign != 0 {
				t.Fatalf("slot %d at %d crosses a block, or is not aligned", i, off)
			}
		}
		if end > g.length() {
			t.Fatalf("the last slot ends at %d of %d", end, g.length())
		}
	})
}

// TestDefaultSlots: a ring of large frames takes no more memory than one of small
// ones, and still has a batch's worth of slots.
func TestDefaultSlots(t *testing.T) {
	for _, c := range []struct{ maxFrame, slots int }{{60, 4096}, {1514, 4096}, {9018, 4096}, {16352, 4096}, {32736, 2048}, {MaxFrame, 1023}} {
		if got := defaultSlots(c.maxFrame); got != c.slots {
			t.Errorf("frames of %d octets: %d slots, want %d", c.maxFrame, got, c.slots)
		}
	}
}

func TestTXLayoutRefuses(t *testing.T) {
	for _, c := range []struct {
		maxFrame, slots int
		want            string
	}{
		{0, 1, "frame of 0 octets: want 1 to 65557"},
		{-1, 1, "frame of -1 octets: want 1 to 65557"},
		{65558, 1, "frame of 65558 octets: want 1 to 65557"},
		{60, 0, "ring of 0 slots: want 1 to 1048576"},
		{60, 1<<20 + 1, "ring of 1048577 slots: want 1 to 1048576"},
	} {
		if _, err := txLayout(c.maxFrame, c.slots); err == nil || err.Error() != c.want {
			t.Errorf("txLayout(%d, %d): %v, want %q", c.maxFrame, c.slots, err, c.want)
		}
	}
	for _, ok := range [][2]int{{1, 1}, {MaxFrame, 8192}, {60, 1 << 20}} {
		if _, err := txLayout(ok[0], ok[1]); err != nil {
			t.Error(err)
		}
	}
}
