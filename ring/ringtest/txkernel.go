package ringtest

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pktgen/ring/internal/shm"
)

// TXKernel is the kernel's side of a TPACKET_V2 transmit ring. Owned by one
// goroutine, which need not be the ring's.
type TXKernel struct {
	mem    *shm.Mem
	req    unix.TpacketReq
	status []*atomic.Uint32
	next   int // the slot that the next frame is taken from
}

// NewTXKernel makes the ring that PACKET_TX_RING would make, with every slot
// available. It refuses what packet_set_ring refuses.
func NewTXKernel(req unix.TpacketReq) (*TXKernel, error) {
	page := uint32(os.Getpagesize())
	switch {
	case req.Block_size == 0 || req.Block_size%page != 0:
		return nil, fmt.Errorf("%+v: a block is whole pages: %w", req, unix.EINVAL)
	case req.Frame_size < unix.SizeofTpacket2Hdr || req.Frame_size%unix.TPACKET_ALIGNMENT != 0:
		return nil, fmt.Errorf("%+v: a slot is a header or more, aligned: %w", req, unix.EINVAL)
	case req.Block_size/req.Frame_size == 0 || req.Block_size/req.Frame_size*req.Block_nr != req.Frame_nr:
		return nil, fmt.Errorf("%+v: slots and blocks disagree: %w", req, unix.EINVAL)
	}
	k := &TXKernel{mem: shm.Alloc(int(req.Block_size * req.Block_nr)), req: req}
	for i := range int(req.Frame_nr) {
		k.status = append(k.status, k.mem.Word(k.offset(i)))
	}
	return k, nil
}

// Mem is the memory that both sides share.
func (k *TXKernel) Mem() *shm.Mem { return k.mem }

// offset is packet_lookup_frame.
func (k *TXKernel) offset(slot int) int {
	perBlock := int(k.req.Block_size / k.req.Frame_size)
	return slot/perBlock*int(k.req.Block_size) + slot%perBlock*int(k.req.Frame_size)
}

// Take copies the next frame out and marks its slot as being sent; false when
// the next slot does not ask to be sent. It panics on a length that leads out
// of the slot.
func (k *TXKernel) Take() (slot int, frame []byte, ok bool) {
	slot = k.next
	if k.status[slot].Load() != unix.TP_STATUS_SEND_REQUEST {
		return 0, nil, false
	}
	const data = unix.SizeofTpacket2Hdr // TPACKET2_HDRLEN - sizeof(struct sockaddr_ll), both aligned
	off := k.offset(slot)
	n := *k.mem.Plain(off + 4) // tp_len
	if n > k.req.Frame_size-data {
		panic(fmt.Sprintf("ringtest: slot %d: tp_len %d does not fit the slot", slot, n))
	}
	frame = append(frame, k.mem.Bytes(off+data, int(n))...)
	k.status[slot].Store(unix.TP_STATUS_SENDING)
	k.next = (k.next + 1) % len(k.status)
	return slot, frame, true
}

// Finish gives a taken slot back with its status: unix.TP_STATUS_AVAILABLE,
// perhaps with a TP_STATUS_TS flag, or unix.TP_STATUS_WRONG_FORMAT. Slots may be
// finished in any order.
func (k *TXKernel) Finish(slot int, status uint32) { k.status[slot].Store(status) }
