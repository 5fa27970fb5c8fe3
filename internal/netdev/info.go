package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Info is what an interface is, at the time of Lookup.
type Info struct {
	Ref      // by its first name, where it was asked for by another
	Index    int
	MTU      int // octets of an IP packet
	MAC      net.HardwareAddr
	Ethernet bool   // its frames are Ethernet's (ARPHRD_ETHER, linux/if_arp.h)
	Type     string // ether, loopback, none, ...
	Kind     string // device, veth, bridge, vlan, ...
	Driver   string // "": no device behind it, or not known
	Up       bool   // set up by the administrator
	Running  bool   // has carrier
	SpeedBps uint64 // 0: not known
	TxQueues int    // in use; where sysfs cannot be read, as many as the driver has
	RxQueues int
	NUMANode int     // -1: not known
	XPS      [][]int // CPUs of each transmit queue; nil where not set

	Addrs []netip.Prefix

	// The next two count what lies on it too: a bridge or bond that it is a port
	// of, a VLAN of it. Test frames would pass among theirs.
	DefaultRoute   bool // a default route of its namespace, IPv4 or IPv6, leaves by it
	OnlyGlobalAddr bool // the only interface of its namespace with a global address that is not a benchmarking one
}

var (
	benchmark4 = netip.MustParsePrefix("198.18.0.0/15") // RFC 2544, appendix C.2.2; RFC 6890
	benchmark6 = netip.MustParsePrefix("2001:2::/48")   // RFC 5180, section 8; RFC 6890
)

// BenchmarkPrefixes are the address ranges set aside for tests.
func BenchmarkPrefixes() []netip.Prefix { return []netip.Prefix{benchmark4, benchmark6} }

// Benchmarking says that an address is set aside for tests.
func Benchmarking(a netip.Addr) bool { return benchmark4.Contains(a) || benchmark6.Contains(a) }

// Lookup finds an interface. Errors: ErrNotFound, Enter's, those of rtnetlink.
func Lookup(r Ref) (Info, error) {
	info := Info{NUMANode: -1}
	err := withLink(r, func(h *netlink.Handle, link netlink.Link) error {
		return info.fromNetlink(h, r, link)
	})
	if err != nil {
		return Info{}, err
	}
	info.fromSysfs()
	return info, nil
}

// withLink runs f with an rtnetlink socket in the interface's namespace, and
// the interface.
func withLink(r Ref, f func(*netlink.Handle, netlink.Link) error) error {
	return r.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("%v: rtnetlink: %w", r, err)
		}
		defer h.Close()
		link, err := find(h, r)
		if err != nil {
			return err
		}
		return f(h, link)
	})
}

func find(h *netlink.Handle, r Ref) (netlink.Link, error) {
	link, err := h.LinkByName(r.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("%v: %w%s", r, ErrNotFound, otherLinks(h, r))
	}
	if err != nil {
		return nil, fmt.Errorf("%v: rtnetlink: %w", r, err)
	}
	return link, nil
}

// otherLinks names the interfaces that are there, to be picked from.
func otherLinks(h *netlink.Handle, r Ref) string {
	links, err := h.LinkList()
	if err != nil {
		return ""
	}
	var names []string
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	return nearest(r.Name, names)
}

// list asks for a list again while changes disturb the kernel's answer
// (NLM_F_DUMP_INTR, linux/netlink.h).
func list[T any](ask func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func (i *Info) fromNetlink(h *netlink.Handle, r Ref, link netlink.Link) error {
	a := link.Attrs()
	i.Ref = Ref{Netns: r.Netns, Name: a.Name}
	i.Index, i.MTU, i.MAC, i.Type, i.Kind = a.Index, a.MTU, a.HardwareAddr, a.EncapType, link.Type()
	i.Ethernet = a.EncapType == "ether" && len(a.HardwareAddr) == 6
	i.Up, i.Running = a.RawFlags&unix.IFF_UP != 0, a.RawFlags&unix.IFF_RUNNING != 0
	i.TxQueues, i.RxQueues = a.NumTxQueues, a.NumRxQueues
	links, err := list(h.LinkList)
	if err != nil {
		return fmt.Errorf("%v: interfaces: %w", r, err)
	}
	on := stack(links, i.Index)
	if err := i.addresses(h, on); err != nil {
		return fmt.Errorf("%v: addresses: %w", r, err)
	}
	routes, err := routes(h)
	if err != nil {
		return fmt.Errorf("%v: routes: %w", r, err)
	}
	for _, rt := range routes {
		i.DefaultRoute = i.DefaultRoute || rt.dst.Bits() == 0 && on[rt.link]
	}
	return nil
}

// stack is the interface and those whose frames pass through it.
func stack(links []netlink.Link, index int) map[int]bool {
	on := map[int]bool{index: true}
	for grown := true; grown; {
		grown = false
		add := func(i int) {
			grown = grown || !on[i]
			on[i] = true
		}
		for _, l := range links {
			a := l.Attrs()
			if on[a.Index] && a.MasterIndex != 0 {
				add(a.MasterIndex)
			}
			// IFLA_LINK is the lower interface, but a veth's is its peer, and with
			// IFLA_LINK_NETNSID it is an index of another namespace.
			if on[a.ParentIndex] && a.NetNsID < 0 && l.Type() != "veth" {
				add(a.Index)
			}
		}
	}
	return on
}

func (i *Info) addresses(h *netlink.Handle, on map[int]bool) error {
	addrs, err := list(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	own, elsewhere := false, false
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		ones, _ := a.Mask.Size()
		if a.LinkIndex == i.Index {
			i.Addrs = append(i.Addrs, netip.PrefixFrom(ip, ones))
		}
		if a.Scope == unix.RT_SCOPE_UNIVERSE && !Benchmarking(ip) && !ip.IsLoopback() {
			own = own || on[a.LinkIndex]
			elsewhere = elsewhere || !on[a.LinkIndex]
		}
	}
	i.OnlyGlobalAddr = own && !elsewhere
	return nil
}

// fromSysfs adds what only sysfs tells. A sysfs shows the interfaces of the
// network namespace of whoever mounted it, so another namespace needs a mount of
// its own.
func (i *Info) fromSysfs() {
	if i.Netns == "" {
		i.readSysfs(os.DirFS("/sys/class/net/" + i.Name))
		return
	}
	_ = OnThread(func() error { // without the privilege these facts stay unknown
		if err := i.Enter(); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		// Not MS_RDONLY: all mounts of a namespace's sysfs are one file system, and
		// others may want to write to it.
		if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return err
		}
		i.readSysfs(os.DirFS("/sys/class/net/" + i.Name))
		return nil
	})
}

// readSysfs reads an interface's directory in /sys/class/net (Linux
// Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-queues). What is
// missing, or is not a number, stays unknown.
func (i *Info) readSysfs(dir fs.FS) {
	// The process may have been put into a network namespace whose sysfs this is not.
	if readWord(dir, "ifindex") != strconv.Itoa(i.Index) || readWord(dir, "address") != i.MAC.String() {
		return
	}
	if mbps, err := strconv.ParseUint(readWord(dir, "speed"), 10, 32); err == nil && mbps != 1<<32-1 { // SPEED_UNKNOWN, linux/ethtool.h
		i.SpeedBps = mbps * 1_000_000
	}
	if node, err := strconv.Atoi(readWord(dir, "device/numa_node")); err == nil && node >= 0 {
		i.NUMANode = node
	}
	if target, err := fs.ReadLink(dir, "device/driver"); err == nil {
		i.Driver = path.Base(target)
	}
	// rtnetlink tells how many queues the driver has; those in use have a directory.
	if tx, _ := fs.Glob(dir, "queues/tx-*"); len(tx) > 0 {
		i.TxQueues = len(tx)
	}
	if rx, _ := fs.Glob(dir, "queues/rx-*"); len(rx) > 0 {
		i.RxQueues = len(rx)
	}
	xps := make([][]int, i.TxQueues)
	set := false
	for q := range xps {
		xps[q] = parseMask(readWord(dir, "queues/tx-"+strconv.Itoa(q)+"/xps_cpus"))
		set = set || len(xps[q]) > 0
	}
	if set {
		i.XPS = xps
	}
}

func readWord(dir fs.FS, name string) string {
	b, err := fs.ReadFile(dir, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// parseMask reads the kernel's bitmap text: hexadecimal groups of 32 bits,
// highest first, as in "00000000,0000000f".
func parseMask(text string) (cpus []int) {
	groups := strings.Split(text, ",")
	for g := range groups {
		v, err := strconv.ParseUint(groups[len(groups)-1-g], 16, 32)
		if err != nil {
			return nil
		}
		for bit := range 32 {
			if v>>bit&1 != 0 {
				cpus = append(cpus, g*32+bit)
			}
		}
	}
	return cpus
}

// route is one way out.
type route struct {
	dst  netip.Prefix
	link int        // the index of the interface it leaves by
	hop  netip.Addr // the gateway; zero: on-link
}

// routes lists the routes of the main table, IPv4 and IPv6, each way of
// a multipath route by itself. Of equal destinations the kernel lists the
// preferred first.
func routes(h *netlink.Handle) (rs []route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := list(func() ([]netlink.Route, error) { return h.RouteList(nil, family) })
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			dst := prefix(r.Dst, family)
			if len(r.MultiPath) == 0 {
				rs = append(rs, route{dst, r.LinkIndex, gateway(r.Gw, r.Via)})
			}
			for _, way := range r.MultiPath {
				rs = append(rs, route{dst, way.LinkIndex, gateway(way.Gw, way.Via)})
			}
		}
	}
	return rs, nil
}

// gateway reads RTA_GATEWAY, or RTA_VIA: an IPv6 gateway of an IPv4 route
// (RFC 5549).
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok {
		gw = v.Addr
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap()
}

func prefix(n *net.IPNet, family int) netip.Prefix {
	if n != nil {
		if a, ok := netip.AddrFromSlice(n.IP); ok {
			ones, _ := n.Mask.Size()
			return netip.PrefixFrom(a.Unmap(), ones)
		}
	}
	if family == netlink.FAMILY_V4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// NextHop is where a packet to dst goes that leaves by this interface: the
// gateway of the longest of its routes that match, or on-link dst itself. found
// is false where none does. Errors: Lookup's.
func NextHop(r Ref, dst netip.Addr) (hop netip.Addr, onLink, found bool, err error) {
	dst = dst.Unmap().WithZone("")
	err = withLink(r, func(h *netlink.Handle, link netlink.Link) error {
		routes, err := routes(h)
		if err != nil {
			return fmt.Errorf("%v: routes: %w", r, err)
		}
		best := -1
		for _, rt := range routes {
			if rt.link == link.Attrs().Index && rt.dst.Contains(dst) && rt.dst.Bits() > best {
				best, hop = rt.dst.Bits(), rt.hop
			}
		}
		found, onLink = best >= 0, best >= 0 && !hop.IsValid()
		if onLink {
			hop = dst
		}
		return nil
	})
	return hop, onLink, found, err
}
