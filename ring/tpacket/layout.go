package tpacket

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// struct tpacket2_hdr and struct sockaddr_ll, if_packet.h: the header of a TX
// slot. Written by us before the status word is, read by the kernel after.
const (
	v2Status = 0 // u32 tp_status: whose slot it is
	v2Len    = 4 // u32 tp_len: octets of the frame
	// The frame of a TX slot begins at TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)
	// (packet_mmap.rst, "Packet offset"): 32.
	v2Data = 32
)

// struct tpacket_block_desc with tpacket_hdr_v1: the head of an RX block.
const (
	blockStatus   = 8  // u32 block_status
	blockNumPkts  = 12 // u32 num_pkts
	blockFirstPkt = 16 // u32 offset_to_first_pkt
	blockHeader   = 48 // size of the descriptor
)

// struct tpacket3_hdr: the head of a frame in an RX block.
const (
	v3NextOffset = 0  // u32 tp_next_offset, 0 for the last
	v3Sec        = 4  // u32
	v3Nsec       = 8  // u32
	v3Snaplen    = 12 // u32 tp_snaplen: octets in the block
	v3Len        = 16 // u32 tp_len: octets on the wire
	v3Status     = 20 // u32
	v3Mac        = 24 // u16 tp_mac: offset of the frame from this header
	v3TCI        = 32 // u32 hv1.tp_vlan_tci
	v3TPID       = 36 // u16 hv1.tp_vlan_tpid
	v3Header     = 48 // size of the header
)

const (
	slotAlign = 64 // a slot begins on a cache line of its own; the kernel asks for 16 (TPACKET_ALIGNMENT)
	// MaxFrame is the largest frame of any device, octets without FCS: a 64 KiB
	// IP packet behind Ethernet and two tags.
	MaxFrame = 65535 + 14 + 8
)

// txGeometry is a TX ring's layout: blocks of whole pages, each with a whole
// number of slots; a slot never crosses a block.
type txGeometry struct {
	slotSize, slotsPerBlock, blockSize, blocks int
}

// txLayout computes the layout of a ring of at least slots slots for frames of
// up to maxFrame octets.
func txLayout(maxFrame, slots int) (txGeometry, error) {
	if maxFrame < 1 || maxFrame > MaxFrame {
		return txGeometry{}, fmt.Errorf("frame of %d octets: want 1 to %d", maxFrame, MaxFrame)
	}
	if slots < 1 || slots > 1<<20 {
		return txGeometry{}, fmt.Errorf("ring of %d slots: want 1 to %d", slots, 1<<20)
	}
	page := os.Getpagesize()
	g := txGeometry{slotSize: roundUp(v2Data+maxFrame, slotAlign)}
	g.blockSize = max(page, 1<<16)
	for g.blockSize < g.slotSize {
		g.blockSize *= 2
	}
	g.slotsPerBlock = g.blockSize / g.slotSize
	g.blocks = (slots + g.slotsPerBlock - 1) / g.slotsPerBlock
	return g, nil
}

func (g txGeometry) slots() int  { return g.blocks * g.slotsPerBlock }
func (g txGeometry) length() int { return g.blocks * g.blockSize }

// offset is where slot i begins in the mapped memory.
func (g txGeometry) offset(i int) int {
	return i/g.slotsPerBlock*g.blockSize + i%g.slotsPerBlock*g.slotSize
}

// request is the layout in the kernel's words.
func (g txGeometry) request() unix.TpacketReq {
	return unix.TpacketReq{
		Block_size: uint32(g.blockSize), Block_nr: uint32(g.blocks),
		Frame_size: uint32(g.slotSize), Frame_nr: uint32(g.slots()),
	}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
