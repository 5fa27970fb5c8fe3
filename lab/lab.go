package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
)

// prefix begins the name of every namespace made here.
const prefix = "pktgen-"

// Options describe a test bed. The zero value of a field means its default.
type Options struct {
	Name   string // of its namespaces, which begin with it; default pktgen-PID
	MTU    int    // of every port; default 1500
	Queues int    // transmit and receive queues of every port; default 1
	Pairs  int    // default 1
}

// Pair is two ends between which frames pass.
type Pair struct{ TX, RX netdev.Ref }

// Lab is a test bed that stands.
type Lab struct {
	Name  string
	Pairs []Pair

	spaces []*space
}

// space is a namespace of the lab.
type space struct {
	name string
	file *os.File // open and locked for as long as the lab stands
}

// made counts the labs of this process, for their names.
var made atomic.Int32

// Wire joins each pair of ports directly, by a veth pair: eth31 to eth32, eth33
// to eth34, and so on, the sending ends in one namespace, the receiving ones in
// another. The kernel speaks on none of them: they have no addresses, and IPv6
// is off, so that every frame that passes is the user's.
func Wire(o Options) (*Lab, error) {
	o = o.withDefaults()
	l := &Lab{Name: o.Name}
	if err := l.wire(o); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", o.Name, err), l.Close())
	}
	return l, nil
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = fmt.Sprintf("%s%d", prefix, os.Getpid())
		if n := made.Add(1); n > 1 {
			o.Name += fmt.Sprintf("-%d", n)
		}
	}
	o.MTU, o.Queues, o.Pairs = max(o.MTU, 0), max(o.Queues, 1), max(o.Pairs, 1)
	if o.MTU == 0 {
		o.MTU = 1500
	}
	return o
}

func (l *Lab) wire(o Options) error {
	tx, err := l.addSpace("tx")
	if err != nil {
		return err
	}
	rx, err := l.addSpace("rx")
	if err != nil {
		return err
	}
	for i := range o.Pairs {
		a, b := fmt.Sprintf("eth%d", 31+2*i), fmt.Sprintf("eth%d", 32+2*i)
		if err := addVeth(tx, rx, a, b, o); err != nil {
			return err
		}
		l.Pairs = append(l.Pairs, Pair{
			TX: netdev.Ref{Netns: tx.name, Name: a}, RX: netdev.Ref{Netns: rx.name, Name: b},
		})
	}
	return nil
}

// addVeth makes a veth pair, a in one namespace and b in the other, both up.
func addVeth(from, to *space, a, b string, o Options) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = a, o.MTU, o.Queues, o.Queues
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: b, PeerNamespace: netlink.NsFd(int(to.file.Fd())),
		PeerNumTxQueues: uint32(o.Queues), PeerNumRxQueues: uint32(o.Queues), PeerMTU: uint32(o.MTU),
	}
	err := from.do(func(h *netlink.Handle) error {
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("veth pair %s, %s: %w", a, b, err)
		}
		return setUp(h, a)
	})
	if err != nil {
		return err
	}
	return to.do(func(h *netlink.Handle) error { return setUp(h, b) })
}

func setUp(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// addSpace makes the lab's namespace for a role, locked.
func (l *Lab) addSpace(role string) (*space, error) {
	s := &space{name: l.Name + "-" + role}
	err := onThread(func() error {
		ns, err := netns.NewNamed(s.name)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", s.name, err)
		}
		defer ns.Close()
		l.spaces = append(l.spaces, s) // from here on Close removes it
		if s.file, err = os.Open(filepath.Join(netdev.NamedNamespaces, s.name)); err != nil {
			return err
		}
		if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return fmt.Errorf("network namespace %s: lock: %w", s.name, err)
		}
		return s.quiet()
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// quiet keeps the kernel from sending frames of its own on interfaces that come
// into the namespace, on whose thread it is called.
func (s *space) quiet() error {
	for _, scope := range []string{"default", "all"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+scope+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6 is quiet
			return fmt.Errorf("network namespace %s: %w", s.name, err)
		}
	}
	return nil
}

// do runs f with an rtnetlink socket of the namespace.
func (s *space) do(f func(*netlink.Handle) error) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(s.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("network namespace %s: rtnetlink: %w", s.name, err)
	}
	defer h.Close()
	return f(h)
}

// Close removes the test bed. Later calls do nothing.
func (l *Lab) Close() error {
	var errs []error
	for _, s := range slices.Backward(l.spaces) {
		errs = append(errs, remove(s.name))
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	l.spaces = nil
	return errors.Join(errs...)
}

// remove takes a namespace's name away; the namespace goes with its last user,
// and its interfaces with it.
func remove(name string) error {
	path := filepath.Join(netdev.NamedNamespaces, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err == unix.EINVAL || err == unix.ENOENT { // not mounted: a name that was never finished
		err = nil
	}
	if rm := os.Remove(path); rm != nil && !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	if err != nil {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

// Clean removes the namespaces of processes that are dead, and names them.
func Clean() (removed []string, err error) {
	entries, err := os.ReadDir(netdev.NamedNamespaces)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if held, err := held(e.Name()); held || err != nil {
			errs = append(errs, err)
			continue
		}
		if err := remove(e.Name()); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(errs...)
}

// held says that a live process owns the namespace.
func held(name string) (bool, error) {
	f, err := os.Open(filepath.Join(netdev.NamedNamespaces, name))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil // its owner has just removed it
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}

// onThread runs f on a thread that dies afterwards.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the runtime ends the thread
		result <- f()
	}()
	return <-result
}
