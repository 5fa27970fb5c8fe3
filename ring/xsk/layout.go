package xsk

import (
	"fmt"
	"math/bits"
)

// struct xdp_desc, linux/if_xdp.h: an entry of an RX or TX ring. Those of the fill
// and the completion ring are an address alone.
const (
	descAddr    = 0  // u64 addr: octets from the start of the UMEM
	descLen     = 8  // u32 len
	descOptions = 12 // u32 options
	descSize    = 16
	addrSize    = 8
)

const (
	minChunk = 2048 // XDP_UMEM_MIN_CHUNK_SIZE, net/xdp/xsk_buff_pool.c
	maxChunk = 4096 // a page of the smallest: a larger chunk would need large pages
	headroom = 256  // XDP_PACKET_HEADROOM: in front of a frame received

	// MaxFrame is the largest frame to send, octets without FCS.
	MaxFrame = maxChunk
	// MaxReceived is the largest frame to receive.
	MaxReceived = maxChunk - headroom
)

// minStride is the least that a slot takes of the memory: a cache line.
const minStride = 64

// geometry is the layout of a UMEM of slots, a power of two, each of 1<<shift
// octets; none crosses the boundary of a chunk.
type geometry struct {
	slots, shift, chunk int
}

// txLayout computes the layout for at least slots slots for frames of up to
// maxFrame octets. The kernel asks only that a frame be within one chunk: so small
// ones share it, and the slots of a ring stay in the CPU's caches.
func txLayout(maxFrame, slots int) (geometry, error) {
	if maxFrame < 1 {
		return geometry{}, fmt.Errorf("frame of %d octets: want 1 to %d", maxFrame, MaxFrame)
	}
	if maxFrame > MaxFrame {
		return geometry{}, &TooLargeError{Frame: maxFrame, Max: MaxFrame}
	}
	if err := checkSlots(slots); err != nil {
		return geometry{}, err
	}
	g := geometry{slots: 1 << log2(slots), shift: log2(max(maxFrame, minStride))}
	g.chunk = max(minChunk, 1<<g.shift)
	g.slots = max(g.slots, g.chunk>>g.shift) // a whole chunk
	return g, nil
}

// rxLayout does the same for frames to receive, of which each has a chunk of its own.
func rxLayout(maxFrame, slots int) (geometry, error) {
	if maxFrame < 1 {
		return geometry{}, fmt.Errorf("frame of %d octets: want 1 to %d", maxFrame, MaxReceived)
	}
	if maxFrame > MaxReceived {
		return geometry{}, &TooLargeError{Frame: maxFrame, Max: MaxReceived}
	}
	if err := checkSlots(slots); err != nil {
		return geometry{}, err
	}
	g := geometry{slots: 1 << log2(slots), chunk: minChunk}
	if maxFrame > minChunk-headroom {
		g.chunk = maxChunk
	}
	g.shift = log2(g.chunk)
	return g, nil
}

func checkSlots(slots int) error {
	if slots < 1 || slots > 1<<20 {
		return fmt.Errorf("ring of %d slots: want 1 to %d", slots, 1<<20)
	}
	return nil
}

func (g geometry) length() int        { return g.slots << g.shift }
func (g geometry) offset(i int) int   { return i << g.shift }
func (g geometry) slot(at uint64) int { return int(at >> g.shift) }

// log2 is the logarithm of the least power of two that is not less than n.
func log2(n int) int { return bits.Len(uint(n - 1)) }
