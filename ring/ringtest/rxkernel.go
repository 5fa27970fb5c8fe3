package ringtest

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
)

// RXKernel is the kernel's side of a TPACKET_V3 receive ring. Owned by one
// goroutine, which need not be the ring's.
type RXKernel struct {
	mem    *shm.Mem
	size   int // of a block
	status []*atomic.Uint32

	active int  // the block that is being filled, or waited for
	open   bool // false: the block is still the user's, and the queue is frozen
	off    int  // where the next frame goes in it
	last   int  // the header of the frame before
	desc   unix.TpacketHdrV1
	stats  ring.KernelDrops
}

const (
	v3Align     = 8 // V3_ALIGNMENT, af_packet.c
	blockHeader = 8 + 40
	statusAt    = 8 // of block_status in struct tpacket_block_desc

	// The frame behind its header (tpacket_rcv): TPACKET3_HDRLEN is the header and
	// struct sockaddr_ll, then room for a link header of 16, aligned to 16, less
	// the 14 octets of Ethernet.
	macOffset = (unix.SizeofTpacket3Hdr+unix.SizeofSockaddrLinklayer+16+15)/16*16 - 14
)

// NewRXKernel makes the ring that PACKET_RX_RING would make. It refuses what
// packet_set_ring refuses.
func NewRXKernel(req unix.TpacketReq3) (*RXKernel, error) {
	page := uint32(os.Getpagesize())
	switch {
	case req.Block_size == 0 || req.Block_size%page != 0:
		return nil, fmt.Errorf("%+v: a block is whole pages: %w", req, unix.EINVAL)
	case req.Frame_size == 0 || req.Frame_size%unix.TPACKET_ALIGNMENT != 0 ||
		req.Block_size/req.Frame_size == 0 || req.Block_size/req.Frame_size*req.Block_nr != req.Frame_nr:
		return nil, fmt.Errorf("%+v: frames and blocks disagree: %w", req, unix.EINVAL)
	}
	k := &RXKernel{mem: shm.Alloc(int(req.Block_size * req.Block_nr)), size: int(req.Block_size)}
	for i := range int(req.Block_nr) {
		k.status = append(k.status, k.mem.Word(i*k.size+statusAt))
	}
	k.openBlock()
	return k, nil
}

// Mem is the memory that both sides share.
func (k *RXKernel) Mem() *shm.Mem { return k.mem }

// Drops are the totals so far.
func (k *RXKernel) Drops() ring.KernelDrops { return k.stats }

// Receive puts a frame into the ring; false when that is full. Of f it takes the
// fields as the other side is to see them. A frame larger than a block is cut.
func (k *RXKernel) Receive(f ring.Frame) bool {
	k.stats.Packets++
	snap := min(len(f.Data), k.size-blockHeader-macOffset)
	if !k.thaw() || !k.fits(snap) && !k.nextBlock() {
		k.stats.Drops++
		return false
	}
	h := unix.Tpacket3Hdr{
		Next_offset: uint32(k.length(snap)),
		Sec:         uint32(f.TimeNs / 1e9), Nsec: uint32(f.TimeNs % 1e9),
		Snaplen: uint32(snap), Len: uint32(f.WireLen),
		Mac: macOffset, Net: macOffset + 14, Status: unix.TP_STATUS_USER,
	}
	if f.ChecksumPartial {
		h.Status |= unix.TP_STATUS_CSUMNOTREADY
	}
	if f.TPID != 0 {
		h.Status |= unix.TP_STATUS_VLAN_VALID | unix.TP_STATUS_VLAN_TPID_VALID
		h.Hv1.Vlan_tci, h.Hv1.Vlan_tpid = uint32(f.VLAN), f.TPID
		h.Len -= 4 // the tag is in the metadata only
	}
	b := k.block()
	encode(b[k.off:], &h)
	copy(b[k.off+macOffset:], f.Data[:snap])
	k.last = k.off
	k.off += k.length(snap)
	k.desc.Num_pkts++
	return true
}

// Retire is the block timer: it hands over a block that has frames.
func (k *RXKernel) Retire() {
	if k.thaw() && k.desc.Num_pkts > 0 {
		k.nextBlock()
	}
}

func (k *RXKernel) block() []byte { return k.mem.Bytes(k.active*k.size, k.size) }

// length is TOTAL_PKT_LEN_INCL_ALIGN.
func (k *RXKernel) length(snap int) int { return (macOffset + snap + v3Align - 1) / v3Align * v3Align }

func (k *RXKernel) fits(snap int) bool { return k.off+k.length(snap) <= k.size }

// thaw goes on with a block that the user has given back since.
func (k *RXKernel) thaw() bool {
	if !k.open && k.status[k.active].Load() == unix.TP_STATUS_KERNEL {
		k.openBlock()
	}
	return k.open
}

func (k *RXKernel) openBlock() {
	k.open, k.off, k.last = true, blockHeader, 0
	k.desc = unix.TpacketHdrV1{Offset_to_first_pkt: blockHeader, Seq_num: k.desc.Seq_num + 1}
}

// nextBlock hands the block over and opens the one behind it; false when that
// is still the user's.
func (k *RXKernel) nextBlock() bool {
	b := k.block()
	binary.NativeEndian.PutUint32(b[k.last:], 0) // tp_next_offset of the last frame
	k.desc.Blk_len = uint32(k.off)
	var d [40]byte
	encode(d[:], &k.desc)
	copy(b[statusAt+4:], d[4:]) // all but block_status
	k.status[k.active].Store(unix.TP_STATUS_USER)

	k.active = (k.active + 1) % len(k.status)
	k.open = false
	if !k.thaw() {
		k.stats.Freezes++
	}
	return k.open
}

func encode(b []byte, v any) {
	if _, err := binary.Encode(b, binary.NativeEndian, v); err != nil {
		panic(err)
	}
}
