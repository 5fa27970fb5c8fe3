// Package shm gives typed, bounds-checked, atomic views of memory shared with
// the kernel. It is the only package of the data plane that imports unsafe.
//
// Pointers are cast once, at set-up, and checked there: inside the memory and
// aligned. The words that pass ownership are atomic.Uint32, whose Load acquires
// and whose Store releases (Go memory model; LDAR and STLR on arm64): plain
// fields are written before the releasing store, read after the acquiring load.
package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mem is a piece of shared memory. Views of it are valid until Unmap.
type Mem struct {
	b      []byte
	mapped bool
}

// Map maps length octets of fd, shared, readable and writable, from offset.
// Errors are those of mmap(2).
func Map(fd int, offset int64, length int) (*Mem, error) {
	b, err := unix.Mmap(fd, offset, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Mem{b: b, mapped: true}, nil
}

// Alloc makes ordinary memory with the alignment of mapped memory's words: the
// memory of an in-memory kernel in tests.
func Alloc(length int) *Mem {
	words := make([]uint64, (length+7)/8+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	return &Mem{b: b[:length:length]}
}

// Unmap gives the memory back. No view may be used afterwards.
func (m *Mem) Unmap() error {
	b := m.b
	m.b = nil
	if !m.mapped || b == nil {
		return nil
	}
	return unix.Munmap(b)
}

// Len is the length in octets.
func (m *Mem) Len() int { return len(m.b) }

// Bytes views length octets from off; its capacity ends there, too.
// It panics when they are not all inside the memory.
func (m *Mem) Bytes(off, length int) []byte {
	return m.b[off : off+length : off+length]
}

// Word views the 32-bit word at off, to be read and written atomically.
// It panics when the word is not aligned or not inside the memory.
func (m *Mem) Word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(m.word(off)))
}

// Plain views the 32-bit word at off as a plain field, whose order is given by
// the Load or Store of a Word. It panics as Word does.
func (m *Mem) Plain(off int) *uint32 { return m.word(off) }

func (m *Mem) word(off int) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(m.b[off : off+4]))
	if uintptr(p)%4 != 0 {
		panic(fmt.Sprintf("shm: word at offset %d is not aligned", off))
	}
	return (*uint32)(p)
}

// Anonymous maps length octets that belong to no file. Errors are those of mmap(2).
// Large pages (MADV_HUGEPAGE) measure the same under an AF_XDP ring.
func Anonymous(length int) (*Mem, error) {
	b, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return &Mem{b: b, mapped: true}, nil
}

// Addr is where the memory begins in this process, for structs of the kernel's in
// which it is told so. Only mapped memory stays there.
func (m *Mem) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))) }
