package ringtest_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/ringtest"
)

// TestRequests: what packet_set_ring refuses.
func TestRequests(t *testing.T) {
	page := uint32(os.Getpagesize())
	for _, c := range []struct {
		req unix.TpacketReq
		ok  bool
	}{
		{unix.TpacketReq{Block_size: page, Block_nr: 2, Frame_size: 128, Frame_nr: page / 128 * 2}, true},
		{unix.TpacketReq{Block_size: page, Block_nr: 1, Frame_size: 192, Frame_nr: page / 192}, true},
		{unix.TpacketReq{}, false},
		{unix.TpacketReq{Block_size: page + 16, Block_nr: 1, Frame_size: 128, Frame_nr: 32}, false},
		{unix.TpacketReq{Block_size: page, Block_nr: 1, Frame_size: 120, Frame_nr: page / 120}, false},
		{unix.TpacketReq{Block_size: page, Block_nr: 1, Frame_size: 16, Frame_nr: page / 16}, false},
		{unix.TpacketReq{Block_size: page, Block_nr: 1, Frame_size: 128, Frame_nr: page/128 - 1}, false},
		{unix.TpacketReq{Block_size: page, Block_nr: 1, Frame_size: 2 * page, Frame_nr: 0}, false},
	} {
		_, err := ringtest.NewTXKernel(c.req)
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, unix.EINVAL) {
			t.Errorf("TX %+v: %v", c.req, err)
		}
		if c.req.Frame_size == 16 {
			continue // TX only: a header does not fit
		}
		_, err = ringtest.NewRXKernel(unix.TpacketReq3{
			Block_size: c.req.Block_size, Block_nr: c.req.Block_nr, Frame_size: c.req.Frame_size, Frame_nr: c.req.Frame_nr,
		})
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, unix.EINVAL) {
			t.Errorf("RX %+v: %v", c.req, err)
		}
	}
}

// TestFreeze: a ring whose every block is the user's drops; given one back, it
// goes on there.
func TestFreeze(t *testing.T) {
	page := os.Getpagesize()
	k, err := ringtest.NewRXKernel(unix.TpacketReq3{
		Block_size: uint32(page), Block_nr: 2, Frame_size: uint32(page), Frame_nr: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	big := ring.Frame{Data: make([]byte, page-200), WireLen: page - 200} // one a block
	for i, want := range []bool{true, true, false, false} {
		if got := k.Receive(big); got != want {
			t.Errorf("frame %d: taken %v, want %v", i, got, want)
		}
	}
	if got, want := k.Drops(), (ring.KernelDrops{Packets: 4, Drops: 2, Freezes: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	k.Retire()
	k.Mem().Word(page + 8).Store(unix.TP_STATUS_KERNEL) // not the one that it waits for
	if k.Receive(big) {
		t.Error("a frame past the block that the kernel waits for")
	}
	k.Mem().Word(8).Store(unix.TP_STATUS_KERNEL)
	for n, want := range []bool{true, true, false} { // two free blocks
		if got := k.Receive(big); got != want {
			t.Errorf("frame %d: received %v", n, got)
		}
	}
	if got, want := k.Drops(), (ring.KernelDrops{Packets: 8, Drops: 4, Freezes: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTakePanics: a length that leads out of its slot is the ring's fault.
func TestTakePanics(t *testing.T) {
	page := os.Getpagesize()
	k, err := ringtest.NewTXKernel(unix.TpacketReq{Block_size: uint32(page), Block_nr: 1, Frame_size: uint32(page), Frame_nr: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := k.Take(); ok {
		t.Error("a frame out of an empty ring")
	}
	*k.Mem().Plain(4) = uint32(page) - 31
	k.Mem().Word(0).Store(unix.TP_STATUS_SEND_REQUEST)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	k.Take()
}
