package shm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/ring/internal/shm"
)

// memfd is a file in memory of two pages, to be mapped.
func memfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("shm-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestMap: what one side writes the other reads, through the file and through a
// second mapping; and Map begins at its offset.
func TestMap(t *testing.T) {
	fd, page := memfd(t), os.Getpagesize()
	a, err := shm.Map(fd, 0, 2*page)
	if err != nil {
		t.Fatal(err)
	}
	b, err := shm.Map(fd, int64(page), page)
	if err != nil {
		t.Fatal(err)
	}
	if a.Len() != 2*page || b.Len() != page {
		t.Errorf("lengths %d and %d", a.Len(), b.Len())
	}
	a.Word(page + 8).Store(0x01020304)
	if got := b.Word(8).Load(); got != 0x01020304 {
		t.Errorf("the other mapping reads %#x", got)
	}
	*b.Plain(12) = 5
	copy(b.Bytes(16, 4), "wire")
	got := make([]byte, 8)
	if _, err := unix.Pread(fd, got, int64(page+12)); err != nil || !bytes.Equal(got[4:], []byte("wire")) || got[0]+got[3] != 5 {
		t.Errorf("the file holds % x, %v", got, err)
	}
	for range 2 { // the second does nothing
		if err := errors.Join(a.Unmap(), b.Unmap()); err != nil {
			t.Error(err)
		}
	}
	if a.Len() != 0 {
		t.Error("memory is left after Unmap")
	}
}

func TestMapFails(t *testing.T) {
	if _, err := shm.Map(-1, 0, 4096); !errors.Is(err, unix.EBADF) {
		t.Errorf("a bad descriptor: %v", err)
	}
	if _, err := shm.Map(memfd(t), 1, 4096); !errors.Is(err, unix.EINVAL) {
		t.Errorf("an offset within a page: %v", err)
	}
}

// TestBounds: no view leads out of the memory, and none is unaligned.
func TestBounds(t *testing.T) {
	m := shm.Alloc(64)
	panics := func(f func()) (did bool) {
		defer func() { did = recover() != nil }()
		f()
		return
	}
	for _, off := range []int{-4, -1, 1, 2, 3, 61, 62, 63, 64, math.MaxInt - 2} {
		if !panics(func() { m.Word(off) }) || !panics(func() { m.Plain(off) }) {
			t.Errorf("a word at %d", off)
		}
	}
	for off := 0; off <= 60; off += 4 {
		if panics(func() { m.Word(off); m.Plain(off) }) {
			t.Errorf("no word at %d", off)
		}
	}
	for _, r := range [][2]int{{-1, 2}, {0, 65}, {64, 1}, {60, 5}, {0, -1}, {math.MaxInt / 2, math.MaxInt / 2}} {
		if !panics(func() { m.Bytes(r[0], r[1]) }) {
			t.Errorf("%d octets from %d", r[1], r[0])
		}
	}
	if b := m.Bytes(8, 16); len(b) != 16 || cap(b) != 16 {
		t.Errorf("length %d, capacity %d, want 16", len(b), cap(b))
	}
	if b := m.Bytes(64, 0); len(b) != 0 {
		t.Error("the empty view at the end")
	}
	m.Unmap()
	if !panics(func() { m.Word(0) }) || !panics(func() { m.Bytes(0, 1) }) {
		t.Error("a view after Unmap")
	}
}

// TestAlloc: any length is had, zeroed and writable to its end.
func TestAlloc(t *testing.T) {
	for n := range 40 {
		b := shm.Alloc(n).Bytes(0, n)
		if !bytes.Equal(b, make([]byte, n)) {
			t.Fatalf("%d octets are not zero: % x", n, b)
		}
		for i := range b {
			b[i] = 1
		}
	}
}

// TestAnonymous: it is ours alone, zeroed, and where it says that it is.
func TestAnonymous(t *testing.T) {
	page := os.Getpagesize()
	m, err := shm.Anonymous(2 * page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Bytes(0, m.Len()), make([]byte, 2*page)) || m.Len() != 2*page {
		t.Error("it is not zero")
	}
	copy(m.Bytes(page, 4), "wire")
	// A second source of where it is: the process's own memory, by address.
	f, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, int64(m.Addr())+int64(page)); err != nil || string(b) != "wire" {
		t.Errorf("%q, %v", b, err)
	}
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
	if _, err := shm.Anonymous(0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no octets: %v", err)
	}
}

func TestGetsockopt(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 16)
	n, err := shm.Getsockopt(fd, unix.SOL_SOCKET, unix.SO_TYPE, b)
	if err != nil || n != 4 || binary.NativeEndian.Uint32(b) != unix.SOCK_DGRAM {
		t.Errorf("%d octets, % x, %v", n, b, err)
	}
	if _, err := shm.Getsockopt(fd, unix.SOL_SOCKET, -1, b); !errors.Is(err, unix.ENOPROTOOPT) {
		t.Errorf("no such option: %v", err)
	}
}

// TestOwnership: plain fields written before Store are seen after Load. Under
// -race a wrong order is a reported race; without it, a wrong value.
func TestOwnership(t *testing.T) {
	m := shm.Alloc(64)
	turn, field, data := m.Word(0), m.Plain(4), m.Bytes(8, 8)
	const rounds = 10_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		peer := m.Word(0) // views of its own
		for i := uint32(1); i <= rounds; i++ {
			for peer.Load() != 1 {
				runtime.Gosched()
			}
			if *m.Plain(4) != i || m.Bytes(8, 8)[7] != byte(i) {
				t.Errorf("round %d: read %d", i, *m.Plain(4))
			}
			peer.Store(0)
		}
	}()
	for i := uint32(1); i <= rounds; i++ {
		*field, data[7] = i, byte(i)
		turn.Store(1)
		for turn.Load() != 0 {
			runtime.Gosched()
		}
	}
	<-done
}
