// Package xdp is what XDP programs need of the system beyond the library that
// loads them (github.com/cilium/ebpf): the attaching of one to a port by the best
// way that it has, and frames that begin their life in one.
package xdp

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Where a program sits on its port.
const (
	Native  = "native"  // in the driver
	Generic = "generic" // behind it, where each frame has become an sk_buff
)

// ErrTaken: the port has an XDP program already.
var ErrTaken = errors.New("another XDP program is attached")

// Attached is a program on a port. The kernel takes it off with the process.
type Attached struct {
	Mode   string // Native or Generic
	Reason string // why not Native
	link   link.Link
}

// Attach puts a program on a port of the calling thread's network namespace: in
// the driver, else behind it. Errors name the operation and the interface.
func Attach(name string, index int, prog *ebpf.Program) (*Attached, error) {
	try := func(flags link.XDPAttachFlags) (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: flags})
	}
	l, native := try(link.XDPDriverMode)
	if native == nil {
		return &Attached{Mode: Native, link: l}, nil
	}
	l, err := try(link.XDPGenericMode)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s: attach XDP program: %w", name, ErrTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: attach XDP program: %w", name, err)
	}
	return &Attached{Mode: Generic, Reason: fmt.Sprintf("the driver refused: %v", errno(native)), link: l}, nil
}

// Close takes the program off.
func (a *Attached) Close() error { return a.link.Close() }

// errno is the system's own error within one of a library.
func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// BPF_PROG_TEST_RUN's part of union bpf_attr (linux/bpf.h).
type testRun struct {
	progFD, retval          uint32
	dataSizeIn, dataSizeOut uint32
	dataIn, dataOut         uint64
	repeat, duration        uint32
	ctxSizeIn, ctxSizeOut   uint32
	ctxIn, ctxOut           uint64
	flags, cpu              uint32
	batchSize, _            uint32
}

// MaxRepeat is the most frames of one RunLive, a multiple of any power of two
// below 65536.
const MaxRepeat = 0xffff0000

// RunLive runs a program repeat times over copies of a frame, which then go where
// it says: BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES
// (Documentation/bpf/bpf_prog_run.rst). batch of them are run before the kernel
// sends any. Of more than one frame the call takes 20 ms and more to return. It
// returns early, with EINTR, when a signal comes to the calling thread, and is
// not begun again then, as the library's own Run does.
//
// Errors: EINVAL for a frame larger than the kernel allows, or Linux before 5.18.
func RunLive(prog *ebpf.Program, frame []byte, repeat, batch uint32) error {
	attr := testRun{
		progFD: uint32(prog.FD()), dataSizeIn: uint32(len(frame)),
		dataIn: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(frame)))),
		repeat: repeat, flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, batchSize: batch,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(frame)
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	return nil
}

// Compiled says, as an error, which of some BPF objects is not of a source, going
// by the sum of it that scripts/bpf2go.sh has put into their variable source_sum.
func Compiled(source string, objects ...string) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	want := fmt.Sprintf("%x", sha256.Sum256(text))
	for _, name := range objects {
		spec, err := ebpf.LoadCollectionSpec(name)
		if err != nil {
			return err
		}
		v := spec.Variables["source_sum"]
		if v == nil {
			return fmt.Errorf("%s: no source_sum", name)
		}
		sum := make([]byte, v.Size())
		if err := v.Get(sum); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if got := unix.ByteSliceToString(sum); got != want {
			return fmt.Errorf("%s is of another source than %s: run go generate", name, source)
		}
	}
	return nil
}

// Pass is a program that lets every frame pass. The caller closes it.
func Pass() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "MIT", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
}
