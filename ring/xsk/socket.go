package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring/internal/shm"
	"pktgen/ring/internal/sock"
)

// How a socket moves its frames.
const (
	ZeroCopy = "zero-copy" // the NIC reads and writes the memory of the ring
	Copy     = "copy"      // each frame is copied by the kernel
)

// queueRing is one ring of descriptors: one side writes them and then producer, the
// other reads them and then writes consumer (linux/if_xdp.h, struct xdp_ring). The
// positions count on without end; one masked is an index.
type queueRing struct {
	producer, consumer, flags *atomic.Uint32
	desc                      []byte
	mask                      uint32
	mem                       *shm.Mem // of this ring alone
}

func (r *queueRing) view(mem *shm.Mem, off unix.XDPRingOffset, entries, size int) {
	r.mem, r.mask = mem, uint32(entries-1)
	r.producer, r.consumer, r.flags = mem.Word(int(off.Producer)), mem.Word(int(off.Consumer)), mem.Word(int(off.Flags))
	r.desc = mem.Bytes(int(off.Desc), entries*size)
}

// addr views an entry of a fill or completion ring.
func (r *queueRing) addr(position uint32) []byte {
	at := int(position&r.mask) * addrSize
	return r.desc[at : at+addrSize : at+addrSize]
}

// entry views an entry of an RX or TX ring.
func (r *queueRing) entry(position uint32) []byte {
	at := int(position&r.mask) * descSize
	return r.desc[at : at+descSize : at+descSize]
}

func (r *queueRing) unmap() error {
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	*r = queueRing{}
	return mem.Unmap()
}

// socket is an AF_XDP socket with its UMEM, and both rings of that.
type socket struct {
	*sock.Socket
	umem             *shm.Mem
	fill, completion queueRing
	ring             queueRing // RX or TX
	zeroCopy         bool
	reason           string // why not zero-copy
}

// direction is what differs between sending and receiving.
type direction struct {
	option   int // socket option that makes the ring
	name     string
	page     int64 // where it is mapped
	rings    func(*unix.XDPMmapOffsets) unix.XDPRingOffset
	fill     int // entries of the fill ring
	wakeUp   func(*socket) error
	ringSize int
}

func sending(slots int) direction {
	return direction{
		option: unix.XDP_TX_RING, name: "XDP_TX_RING", page: unix.XDP_PGOFF_TX_RING, ringSize: slots, fill: 1,
		rings:  func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Tx },
		wakeUp: func(s *socket) error { return wake(s.FD, unix.SYS_SENDTO) },
	}
}

func receiving(slots int) direction {
	return direction{
		option: unix.XDP_RX_RING, name: "XDP_RX_RING", page: unix.XDP_PGOFF_RX_RING, ringSize: slots, fill: slots,
		rings:  func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Rx },
		wakeUp: func(s *socket) error { return wake(s.FD, unix.SYS_RECVFROM) },
	}
}

// wake is the one system call of a ring: sendto(2) or recvfrom(2) of nothing. It
// does not wait.
func wake(fd int, call uintptr) error {
	if errno := wakeErrno(fd, call); errno != 0 {
		return errno
	}
	return nil
}

func wakeErrno(fd int, call uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall6(call, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// openSocket opens a socket on a queue of an interface of the calling thread's
// network namespace: without copying where the driver can, else with it.
func openSocket(name string, index, queue int, g geometry, d direction, copied bool) (*socket, error) {
	var reason string
	if copied {
		reason = "asked for"
	} else {
		s, err := openMode(name, index, queue, g, d, unix.XDP_ZEROCOPY)
		if err == nil || errors.Is(err, ErrUnable) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) {
			return s, err
		}
		reason = fmt.Sprintf("the driver refused: %v", errno(err))
	}
	s, err := openMode(name, index, queue, g, d, unix.XDP_COPY)
	if err != nil {
		return nil, err
	}
	s.reason = reason
	return s, nil
}

func openMode(name string, index, queue int, g geometry, d direction, mode uint16) (*socket, error) {
	so, err := sock.XDP(name, queue)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, unable(fmt.Errorf("%w (Linux 4.18 with CONFIG_XDP_SOCKETS)", err))
	}
	if err != nil {
		return nil, err
	}
	s := &socket{Socket: so, zeroCopy: mode == unix.XDP_ZEROCOPY}
	if err := s.setUp(index, g, d, mode); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *socket) setUp(index int, g geometry, d direction, mode uint16) error {
	umem, err := shm.Anonymous(g.length())
	if err != nil {
		return s.Errorf("mmap of "+sock.Size(g.length()), err)
	}
	s.umem = umem
	reg := unix.XDPUmemReg{Addr: umem.Addr(), Len: uint64(umem.Len()), Size: uint32(g.chunk)}
	// struct xdp_umem_reg has grown; older kernels take no more than they know, and
	// that is all that is used here.
	b := make([]byte, binary.Size(reg))
	if _, err := binary.Encode(b, binary.NativeEndian, reg); err != nil {
		return err
	}
	if err := unix.SetsockoptString(s.FD, unix.SOL_XDP, unix.XDP_UMEM_REG, string(b)); err != nil {
		return s.Errorf("XDP_UMEM_REG of "+sock.Size(g.length()), err)
	}
	for _, o := range []struct {
		name       string
		opt, value int
	}{
		{"XDP_UMEM_FILL_RING", unix.XDP_UMEM_FILL_RING, d.fill},
		{"XDP_UMEM_COMPLETION_RING", unix.XDP_UMEM_COMPLETION_RING, g.slots},
		{d.name, d.option, d.ringSize},
	} {
		if err := unix.SetsockoptInt(s.FD, unix.SOL_XDP, o.opt, o.value); err != nil {
			return s.Errorf(fmt.Sprintf("%s of %d", o.name, o.value), err)
		}
	}
	if err := s.mapRings(g, d); err != nil {
		return err
	}
	if err := s.bind(index, mode|unix.XDP_USE_NEED_WAKEUP); err != nil {
		return err
	}
	if mode == unix.XDP_ZEROCOPY {
		// Some drivers have the queues of a socket only while the port has a program,
		// and say so here.
		if err := d.wakeUp(s); err != nil && !busy(err) {
			return s.Errorf("wake-up of the driver", err)
		}
	}
	return nil
}

func (s *socket) mapRings(g geometry, d direction) error {
	var off unix.XDPMmapOffsets
	b := make([]byte, binary.Size(off))
	n, err := shm.Getsockopt(s.FD, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, b)
	if err != nil {
		return s.Errorf("XDP_MMAP_OFFSETS", err)
	}
	if n != len(b) { // without the flags, which say who is to be woken up
		return unable(s.Errorf("XDP_MMAP_OFFSETS", errors.New("no XDP_USE_NEED_WAKEUP (Linux 5.4)")))
	}
	if _, err := binary.Decode(b, binary.NativeEndian, &off); err != nil {
		return err
	}
	for _, r := range []struct {
		ring          *queueRing
		off           unix.XDPRingOffset
		page          int64
		entries, size int
	}{
		{&s.fill, off.Fr, unix.XDP_UMEM_PGOFF_FILL_RING, d.fill, addrSize},
		{&s.completion, off.Cr, unix.XDP_UMEM_PGOFF_COMPLETION_RING, g.slots, addrSize},
		{&s.ring, d.rings(&off), d.page, d.ringSize, descSize},
	} {
		length := int(r.off.Desc) + r.entries*r.size
		mem, err := shm.Map(s.FD, r.page, length)
		if err != nil {
			return s.Errorf("mmap of "+sock.Size(length), err)
		}
		r.ring.view(mem, r.off, r.entries, r.size)
	}
	return nil
}

// After a socket has been closed the kernel takes up to half a second to let go of
// its queue: that is not yet somebody else's.
const (
	bindPatience = time.Second
	bindStep     = 5 * time.Millisecond
)

func (s *socket) bind(index int, flags uint16) error {
	for end := time.Now().Add(bindPatience); ; time.Sleep(bindStep) {
		err := unix.Bind(s.FD, &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(index), QueueID: uint32(s.Queue)})
		if err == nil {
			return nil
		}
		if err != unix.EBUSY || time.Now().After(end) {
			return s.Errorf("bind", err)
		}
	}
}

// Mode says how frames are moved, ZeroCopy or Copy, and why not ZeroCopy.
func (s *socket) mode() (mode, reason string) {
	if s.zeroCopy {
		return ZeroCopy, ""
	}
	return Copy, s.reason
}

// statistics are XDP_STATISTICS, of which older kernels have the first.
func (s *socket) statistics() (st unix.XDPStatistics, err error) {
	b := make([]byte, binary.Size(st))
	if _, err := shm.Getsockopt(s.FD, unix.SOL_XDP, unix.XDP_STATISTICS, b); err != nil {
		return st, s.Errorf("XDP_STATISTICS", err)
	}
	_, err = binary.Decode(b, binary.NativeEndian, &st)
	return st, err
}

// Close gives all memory back. The socket goes first: it uses the memory.
func (s *socket) Close() error {
	errs := []error{s.Socket.Close(), s.fill.unmap(), s.completion.unmap(), s.ring.unmap()}
	if s.umem != nil {
		errs = append(errs, s.umem.Unmap())
		s.umem = nil
	}
	return errors.Join(errs...)
}

// errno is the system's own error within one of ours.
func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// busy says that a device takes no more for now.
func busy(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR)
}
