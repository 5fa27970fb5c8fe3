package xsk

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pktgen/internal/xdp"
)

// Port is the XDP program (xsk.bpf.c) of an interface that gives the frames that carry
// a stamp to the RX ring of their queue, and all others to the kernel. It has them
// go there from an RX ring's Start on.
//
// Share one Port between the rings of an interface, and close it after them. Safe from
// any goroutine.
type Port struct {
	objects  xskObjects
	attached *xdp.Attached
}

// PortOptions describe the program's place.
type PortOptions struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queues    int    // of the interface: those of number 0 up to it may have a ring; 0 = 1
}

// OpenPort attaches the program to an interface of the calling thread's network
// namespace. Errors: xdp.ErrTaken, ErrUnable.
func OpenPort(o PortOptions) (*Port, error) {
	p := &Port{}
	if err := p.setUp(o); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Port) setUp(o PortOptions) error {
	spec, err := loadXsk()
	if err != nil {
		return err
	}
	spec.Maps[xskMapSockets].MaxEntries = uint32(max(o.Queues, 1))
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		err = fmt.Errorf("%s: load BPF program: %w", o.Interface, err)
		if errors.Is(err, unix.EPERM) {
			return err
		}
		return unable(fmt.Errorf("%w (Linux 5.4)", err))
	}
	if p.attached, err = xdp.Attach(o.Interface, o.Index, p.objects.Redirect); err != nil {
		return unable(err)
	}
	return nil
}

// Mode says where the program sits, xdp.Native or xdp.Generic, and why not native.
func (p *Port) Mode() (mode, reason string) { return p.attached.Mode, p.attached.Reason }

// start lets frames into a ring.
func (p *Port) start(s *socket) error {
	if err := p.objects.Sockets.Update(uint32(s.Queue), uint32(s.FD), ebpf.UpdateAny); err != nil {
		return s.Errorf("XSKMAP", err)
	}
	return nil
}

// Close takes the program off.
func (p *Port) Close() error {
	var detach error
	if p.attached != nil {
		detach = p.attached.Close()
		p.attached = nil
	}
	return errors.Join(detach, p.objects.Close())
}
