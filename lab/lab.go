package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	Name   string // of its namespaces, which begin with it; default pktgen-PID. Another name gets pktgen- put before it
	MTU    int    // of every port, octets of an IP packet, 68 to 65535; default 1500
	Queues int    // transmit and receive queues of every port; default 1
	Pairs  int    // default 1
}

// Pair is two ends between which frames pass.
type Pair struct{ TX, RX netdev.Ref }

// Lab is a test bed that stands, for as long as this process lives or until
// Close. Owned by who made it: Close is not for two goroutines at once.
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

func (s *space) path() string { return filepath.Join(netdev.NamedNamespaces, s.name) }

// made counts the labs of this process, for their names.
var made atomic.Int32

// Wire joins each pair of ports directly, by a veth pair: eth31 to eth32, eth33
// to eth34, and so on, the sending ends in one namespace, the receiving ones in
// another. The kernel speaks on none of them: they have no addresses, and IPv6
// is off, so that every frame that passes is the user's. (With an address a
// receiving end would answer UDP for it with ICMP; with IPv6 on, the kernel
// solicits routers and reports multicast groups.) What was set up is undone when
// something fails. Errors: those of unshare, mount and rtnetlink; EPERM without
// privilege, to which Reexec is a way out.
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
	if !strings.HasPrefix(o.Name, prefix) { // Clean would not find it
		o.Name = prefix + o.Name
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	o.Queues, o.Pairs = max(o.Queues, 1), max(o.Pairs, 1)
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
		PeerMTU: uint32(o.MTU), // its queues follow LinkAttrs
	}
	err := from.do(func(h *netlink.Handle) error {
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("veth pair %s, %s (MTU %d, %d queues): %w", a, b, o.MTU, o.Queues, err)
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
	if err := os.MkdirAll(netdev.NamedNamespaces, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockNames()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := netdev.OnThread(func() error { return l.make(s) }); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", s.name, err)
	}
	err = s.do(func(h *netlink.Handle) error { return setUp(h, "lo") })
	return s, err
}

// make puts the calling thread into a new namespace, and names and locks that.
func (l *Lab) make(s *space) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	name, err := os.OpenFile(s.path(), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: another test bed of this name stands, or one that was killed (see Clean)", err)
	}
	if err != nil {
		return err
	}
	l.spaces = append(l.spaces, s) // from here on Close removes it
	if err := name.Close(); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", s.path(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount: %w", err)
	}
	if s.file, err = os.Open(s.path()); err != nil {
		return err
	}
	if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return quiet()
}

// lockNames makes one process at a time add and remove names, or judge which are
// left over: one that is half added or half removed is not locked. ip-netns(8)
// takes this lock too.
func lockNames() (unlock func() error, err error) {
	dir, err := os.Open(netdev.NamedNamespaces)
	if err != nil {
		return nil, err
	}
	if err := flock(dir, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir.Name(), err), dir.Close())
	}
	return dir.Close, nil
}

// flock is flock(2), which a signal may interrupt.
func flock(f *os.File, how int) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), how)
	}
	return err
}

// quiet keeps the kernel from sending frames of its own on interfaces that come
// into the namespace, on whose thread it is called (Linux
// Documentation/networking/ip-sysctl.rst, disable_ipv6).
func quiet() error {
	for _, scope := range []string{"default", "all"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+scope+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6 is quiet
			return err
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
	if err := f(h); err != nil {
		return fmt.Errorf("network namespace %s: %w", s.name, err)
	}
	return nil
}

// Close removes the test bed. Later calls do nothing.
func (l *Lab) Close() error {
	if len(l.spaces) == 0 {
		return nil
	}
	unlock, err := lockNames()
	if err == nil {
		defer unlock()
	}
	errs := []error{err}
	for _, s := range slices.Backward(l.spaces) {
		errs = append(errs, remove(s.path()))
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	l.spaces = nil
	return errors.Join(errs...)
}

// remove takes a namespace's name away; the namespace goes with its last user,
// and its interfaces with it.
func remove(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err == unix.EINVAL || err == unix.ENOENT { // not mounted: a name that was never finished
		err = nil
	}
	if rm := os.Remove(path); rm != nil && !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	if err != nil {
		return fmt.Errorf("remove network namespace %s: %w", path, err)
	}
	return nil
}

// Entry is a namespace that a test bed of some process has, or has left.
type Entry struct {
	Name       string
	Held       bool     // its owner lives
	Interfaces []string // but for lo, sorted; nil where it could not be looked into
}

// List tells the namespaces of all test beds, sorted by name. Without privilege
// it cannot look into them.
func List() ([]Entry, error) {
	unlock, err := lockNames()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	return entries()
}

// Clean removes the namespaces of processes that are dead, and names them. What
// cannot be removed does not keep it from the rest. Errors: EPERM without
// privilege.
func Clean() (removed []string, err error) {
	unlock, err := lockNames()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := entries()
	errs := []error{err}
	for _, e := range all {
		if e.Held {
			continue
		}
		if err := remove(filepath.Join(netdev.NamedNamespaces, e.Name)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, e.Name)
	}
	return removed, errors.Join(errs...)
}

// entries is List for a caller that holds the names' lock.
func entries() (all []Entry, err error) {
	names, err := os.ReadDir(netdev.NamedNamespaces)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), prefix) {
			continue
		}
		e, err := entry(n.Name())
		switch {
		case errors.Is(err, os.ErrNotExist): // its owner has just removed it
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, e)
		}
	}
	return all, errors.Join(errs...)
}

func entry(name string) (Entry, error) {
	f, err := os.Open(filepath.Join(netdev.NamedNamespaces, name))
	if err != nil {
		return Entry{}, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && err != unix.EWOULDBLOCK {
		return Entry{}, fmt.Errorf("network namespace %s: lock: %w", name, err)
	}
	return Entry{Name: name, Held: err == unix.EWOULDBLOCK, Interfaces: interfaces(f)}, nil
}

// interfaces names those of a namespace, so far as they can be told.
func interfaces(f *os.File) (names []string) {
	h, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil // the name of a namespace that was never finished
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil
	}
	for _, l := range links {
		if n := l.Attrs().Name; n != "lo" {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}
