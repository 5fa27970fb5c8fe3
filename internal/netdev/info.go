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
	Ref
	Index    int
	MTU      int // octets of an IP packet
	MAC      net.HardwareAddr
	Ethernet bool   // its frames are Ethernet's
	Type     string // ether, loopback, none, ...
	Kind     string // device, veth, bridge, vlan, ...
	Driver   string // "" where there is no device behind it
	Up       bool   // set up by the administrator
	Running  bool   // has carrier
	SpeedBps uint64 // 0: not known
	TxQueues int
	RxQueues int
	NUMANode int     // -1: not known
	XPS      [][]int // CPUs of each transmit queue; nil where not set

	Addrs          []netip.Prefix
	DefaultRoute   bool // a default route of its namespace leaves by it
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

// Lookup finds an interface. Errors: ErrNotFound, ErrNoNamespace, those of
// rtnetlink.
func Lookup(r Ref) (Info, error) {
	info := Info{Ref: r, NUMANode: -1}
	err := r.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("%v: rtnetlink: %w", r, err)
		}
		defer h.Close()
		return info.fromNetlink(h)
	})
	if err != nil {
		return Info{}, err
	}
	info.fromSysfs()
	return info, nil
}

func (i *Info) fromNetlink(h *netlink.Handle) error {
	link, err := h.LinkByName(i.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("%v: %w%s", i.Ref, ErrNotFound, others(h))
	}
	if err != nil {
		return fmt.Errorf("%v: rtnetlink: %w", i.Ref, err)
	}
	a := link.Attrs()
	i.Index, i.MTU, i.MAC, i.Type, i.Kind = a.Index, a.MTU, a.HardwareAddr, a.EncapType, link.Type()
	i.Ethernet = a.EncapType == "ether" && len(a.HardwareAddr) == 6
	i.Up, i.Running = a.RawFlags&unix.IFF_UP != 0, a.RawFlags&unix.IFF_RUNNING != 0
	i.TxQueues, i.RxQueues = a.NumTxQueues, a.NumRxQueues
	if err := i.addresses(h); err != nil {
		return fmt.Errorf("%v: addresses: %w", i.Ref, err)
	}
	routes, err := routesBy(h, i.Index)
	if err != nil {
		return fmt.Errorf("%v: routes: %w", i.Ref, err)
	}
	for _, rt := range routes {
		i.DefaultRoute = i.DefaultRoute || rt.dst.Bits() == 0
	}
	return nil
}

// others names the interfaces that are there, to be picked from.
func others(h *netlink.Handle) string {
	links, err := h.LinkList()
	if err != nil {
		return ""
	}
	var names []string
	for _, l := range links {
		if l.Attrs().Name != "lo" && len(names) < 8 {
			names = append(names, l.Attrs().Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (there are: " + strings.Join(names, ", ") + ")"
}

func (i *Info) addresses(h *netlink.Handle) error {
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
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
			own = own || a.LinkIndex == i.Index
			elsewhere = elsewhere || a.LinkIndex != i.Index
		}
	}
	i.OnlyGlobalAddr = own && !elsewhere
	return nil
}

// fromSysfs adds what only sysfs tells; it shows the interfaces of the network
// namespace of whoever mounted it, so another namespace needs a mount of its own.
func (i *Info) fromSysfs() {
	if i.Netns == "" {
		i.readSysfs(os.DirFS("/sys/class/net/" + i.Name))
		return
	}
	_ = onThread(func() error { // without the privilege these facts stay unknown
		if err := i.Enter(); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		i.readSysfs(os.DirFS("/sys/class/net/" + i.Name))
		return nil
	})
}

// readSysfs reads an interface's directory in /sys/class/net. What is missing,
// or not a number, stays unknown.
func (i *Info) readSysfs(dir fs.FS) {
	if mbps, err := strconv.ParseUint(readWord(dir, "speed"), 10, 32); err == nil && mbps != 0 && mbps != 1<<32-1 {
		i.SpeedBps = mbps * 1_000_000
	}
	if node, err := strconv.Atoi(readWord(dir, "device/numa_node")); err == nil && node >= 0 {
		i.NUMANode = node
	}
	if target, err := fs.ReadLink(dir, "device/driver"); err == nil {
		i.Driver = path.Base(target)
	}
	xps := make([][]int, 0, i.TxQueues)
	set := false
	for q := range min(i.TxQueues, 1024) {
		cpus := parseMask(readWord(dir, "queues/tx-"+strconv.Itoa(q)+"/xps_cpus"))
		set = set || len(cpus) > 0
		xps = append(xps, cpus)
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

// route is one way out by an interface.
type route struct {
	dst     netip.Prefix
	gateway netip.Addr // zero: on-link
	src     netip.Addr // preferred source; zero: none given
}

// routesBy lists the routes of the main table that leave by an interface, those
// of multipath routes included.
func routesBy(h *netlink.Handle, index int) (rs []route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := h.RouteList(nil, family)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Type != unix.RTN_UNICAST {
				continue
			}
			rt := route{dst: prefix(r.Dst, family)}
			rt.src, _ = netip.AddrFromSlice(r.Src)
			rt.src = rt.src.Unmap()
			if r.LinkIndex == index && len(r.MultiPath) == 0 {
				rt.gateway, _ = netip.AddrFromSlice(r.Gw)
				rt.gateway = rt.gateway.Unmap()
				rs = append(rs, rt)
			}
			for _, hop := range r.MultiPath {
				if hop.LinkIndex == index {
					rt.gateway, _ = netip.AddrFromSlice(hop.Gw)
					rt.gateway = rt.gateway.Unmap()
					rs = append(rs, rt)
				}
			}
		}
	}
	return rs, nil
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
// longest of its routes that match. found is false where none does.
func NextHop(r Ref, dst netip.Addr) (hop netip.Addr, onLink, found bool, err error) {
	err = r.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(r.Name)
		if err != nil {
			return err
		}
		routes, err := routesBy(h, link.Attrs().Index)
		best := -1
		for _, rt := range routes {
			if !rt.dst.Contains(dst) || rt.dst.Bits() <= best {
				continue
			}
			best, found = rt.dst.Bits(), true
			hop, onLink = rt.gateway, false
			if !hop.IsValid() {
				hop, onLink = dst, true
			}
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%v: routes: %w", r, err)
	}
	return hop, onLink, found, err
}
