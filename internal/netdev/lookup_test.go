package netdev_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// change runs f with an rtnetlink socket in the interface's namespace, IPv6 on
// for it and for what is made there.
func change(t *testing.T, r netdev.Ref, f func(h *netlink.Handle, link netlink.Link) error) {
	t.Helper()
	testnet.In(t, r, func() error {
		for _, name := range []string{"default", r.Name} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
				return err
			}
		}
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(r.Name)
		if err != nil {
			return err
		}
		return f(h, link)
	})
}

func lookup(t *testing.T, r netdev.Ref) netdev.Info {
	t.Helper()
	info, err := netdev.Lookup(r)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// address adds one without duplicate address detection, which would delay it.
func address(h *netlink.Handle, link netlink.Link, cidr string) error {
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(link, a); err != nil {
		return fmt.Errorf("address %s: %w", cidr, err)
	}
	return nil
}

// other makes another interface, which is up, with an address of 192.0.2.0/24.
func other(h *netlink.Handle) (netlink.Link, error) {
	err := h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "other-end"})
	if err != nil {
		return nil, err
	}
	l, err := h.LinkByName("other")
	if err != nil {
		return nil, err
	}
	return l, errors.Join(h.LinkSetUp(l), address(h, l, "192.0.2.1/24"))
}

// lieOn makes an interface that lies on another, as a VLAN does; every kernel
// that runs these tests has macvlan.
func lieOn(h *netlink.Handle, name string, lower int) error {
	return h.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: lower}, Mode: netlink.MACVLAN_MODE_BRIDGE})
}

func cidr(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

// TestLookup compares with what ip-link(8) reads.
func TestLookup(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{MTU: 9000, Queues: 3})
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("needs ip of iproute2, to compare with")
	}
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
		return errors.Join(address(h, link, "198.18.0.1/24"), address(h, link, "2001:2::1/64"))
	})
	for _, r := range []netdev.Ref{tx, rx} {
		out, err := exec.Command(ip, "-json", "-details", "-netns", r.Netns, "address", "show", "dev", r.Name).Output()
		if err != nil {
			t.Fatal(err)
		}
		var all []struct {
			Ifindex, MTU, NumTxQueues, NumRxQueues int
			Ifname, Address, Operstate, Link_type  string
			Flags                                  []string
			Linkinfo                               struct{ Info_kind string }
			Addr_info                              []struct {
				Local     netip.Addr
				Prefixlen int
			}
		}
		if err := json.Unmarshal(out, &all); err != nil {
			t.Fatal(err)
		}
		// ip names these two num_tx_queues, num_rx_queues.
		var queues []struct {
			Tx int `json:"num_tx_queues"`
			Rx int `json:"num_rx_queues"`
		}
		if err := json.Unmarshal(out, &queues); err != nil {
			t.Fatal(err)
		}
		want := netdev.Info{
			Ref: r, Index: all[0].Ifindex, MTU: all[0].MTU, Type: all[0].Link_type, Ethernet: all[0].Link_type == "ether",
			Kind: all[0].Linkinfo.Info_kind, Up: slices.Contains(all[0].Flags, "UP"), Running: all[0].Operstate == "UP",
			TxQueues: queues[0].Tx, RxQueues: queues[0].Rx, NUMANode: -1,
		}
		want.MAC, _ = net.ParseMAC(all[0].Address)
		for _, a := range all[0].Addr_info {
			want.Addrs = append(want.Addrs, netip.PrefixFrom(a.Local, a.Prefixlen))
		}
		got := lookup(t, r)
		if got.SpeedBps != 10_000_000_000 { // veth_get_link_ksettings, drivers/net/veth.c
			t.Errorf("%v: speed %d", r, got.SpeedBps)
		}
		got.SpeedBps = 0
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%v (-ip +Lookup)\n%s", r, diff)
		}
	}
	if i := lookup(t, tx); i.MTU != 9000 || i.TxQueues != 3 || i.Kind != "veth" || len(i.Addrs) < 2 || !i.Running {
		t.Errorf("the test compares nothing: %+v", i)
	}
	lo := lookup(t, netdev.Ref{Netns: tx.Netns, Name: "lo"})
	if lo.Ethernet || lo.Type != "loopback" || !lo.Up || lo.SpeedBps != 0 {
		t.Errorf("lo: %+v", lo)
	}
}

// TestLookupHere: in the caller's namespace, as in another.
func TestLookupHere(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{Queues: 2})
	want := lookup(t, tx)
	var got netdev.Info
	testnet.In(t, tx, func() (err error) {
		got, err = netdev.Lookup(netdev.Ref{Name: tx.Name})
		return err
	})
	// The sysfs that stands here is of another namespace, in which there is no
	// such interface: not known, and not that of whoever has the name there.
	want.Netns, want.SpeedBps = "", 0
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLookupErrors(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	wrong := netdev.Ref{Netns: tx.Netns, Name: "eth3"}
	for what, f := range map[string]func(netdev.Ref) error{
		"Lookup":  func(r netdev.Ref) error { _, err := netdev.Lookup(r); return err },
		"Open":    func(r netdev.Ref) error { _, err := netdev.Open(r); return err },
		"NextHop": func(r netdev.Ref) error { _, _, _, err := netdev.NextHop(r, netip.MustParseAddr("::1")); return err },
	} {
		err := f(wrong)
		if !errors.Is(err, netdev.ErrNotFound) || !strings.Contains(err.Error(), wrong.String()+":") || !strings.Contains(err.Error(), "eth31") {
			t.Errorf("%s: %v; want ErrNotFound, what was asked for, and what is there", what, err)
		}
		if err := f(netdev.Ref{Netns: "pktgen-none", Name: "eth31"}); !errors.Is(err, netdev.ErrNoNamespace) {
			t.Errorf("%s: %v, want ErrNoNamespace", what, err)
		}
	}
}

// TestAltName: an interface has its first name in Info, however it was asked for.
func TestAltName(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error { return h.LinkAddAltName(link, "left") })
	if i := lookup(t, netdev.Ref{Netns: tx.Netns, Name: "left"}); i.Ref != tx || i.SpeedBps == 0 {
		t.Errorf("%+v", i)
	}
}

// TestXPS: what is written into the kernel's map is what Lookup tells.
func TestXPS(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{Queues: 2})
	if i := lookup(t, tx); i.XPS != nil {
		t.Fatalf("XPS %v before it was set", i.XPS)
	}
	err := netdev.OnThread(func() error {
		err := tx.Enter()
		for _, step := range []func() error{
			func() error { return unix.Unshare(unix.CLONE_NEWNS) },
			func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
			func() error { return unix.Mount("sysfs", "/sys", "sysfs", 0, "") },
			func() error {
				return os.WriteFile("/sys/class/net/"+tx.Name+"/queues/tx-1/xps_cpus", []byte("1"), 0)
			},
		} {
			if err == nil {
				err = step()
			}
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("a kernel without XPS")
	}
	if err != nil {
		t.Fatal(err)
	}
	if i := lookup(t, tx); len(i.XPS) != 2 || len(i.XPS[0]) != 0 || !slices.Equal(i.XPS[1], []int{0}) {
		t.Errorf("XPS %v, want CPU 0 for queue 1", i.XPS)
	}
}

// TestDefaultRoute: by any kind of route, and also where it lies above.
func TestDefaultRoute(t *testing.T) {
	type setup func(h *netlink.Handle, link netlink.Link) error
	route := func(dst string, r netlink.Route) setup {
		return func(h *netlink.Handle, link netlink.Link) error {
			r.Dst = cidr(dst)
			if r.MultiPath == nil {
				r.LinkIndex = link.Attrs().Index
			}
			return h.RouteAdd(&r)
		}
	}
	upper := func(h *netlink.Handle, name string) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return errors.Join(h.LinkSetUp(l), address(h, l, "192.0.2.1/24"),
			h.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), LinkIndex: l.Attrs().Index}))
	}
	for _, c := range []struct {
		name  string
		setup setup
		want  bool
	}{
		{"none", func(*netlink.Handle, netlink.Link) error { return nil }, false},
		{"IPv4, on-link", route("0.0.0.0/0", netlink.Route{}), true},
		{"IPv4, gateway", route("0.0.0.0/0", netlink.Route{Gw: net.ParseIP("198.18.0.254")}), true},
		{"IPv6", route("::/0", netlink.Route{Gw: net.ParseIP("2001:2::254")}), true},
		{"not a default route", route("10.0.0.0/8", netlink.Route{}), false},
		{"IPv6, not a default route", route("2001:db8::/32", netlink.Route{}), false},
		{"another table", route("0.0.0.0/0", netlink.Route{Table: 77}), false},
		{"by another interface", func(h *netlink.Handle, link netlink.Link) error {
			o, err := other(h)
			if err != nil {
				return err
			}
			return h.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), LinkIndex: o.Attrs().Index})
		}, false},
		{"multipath", func(h *netlink.Handle, link netlink.Link) error {
			o, err := other(h)
			if err != nil {
				return err
			}
			return h.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: o.Attrs().Index, Gw: net.ParseIP("192.0.2.254")},
				{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("198.18.0.254")},
			}})
		}, true},
		{"IPv6, multipath", func(h *netlink.Handle, link netlink.Link) error {
			o, err := other(h)
			if err != nil {
				return err
			}
			return errors.Join(address(h, o, "2001:db8::1/64"), h.RouteAdd(&netlink.Route{Dst: cidr("::/0"), MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: o.Attrs().Index, Gw: net.ParseIP("2001:db8::254")},
				{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("2001:2::254")},
			}}))
		}, true},
		{"one that lies on it", func(h *netlink.Handle, link netlink.Link) error {
			err := lieOn(h, "v5", link.Attrs().Index)
			return errors.Join(err, upper(h, "v5"))
		}, true},
		{"its bridge", func(h *netlink.Handle, link netlink.Link) error {
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
			if err := h.LinkAdd(br); err != nil {
				return err
			}
			return errors.Join(h.LinkSetMaster(link, br), upper(h, "br"))
		}, true},
		{"one that lies on its bridge", func(h *netlink.Handle, link netlink.Link) error {
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
			if err := h.LinkAdd(br); err != nil {
				return err
			}
			err := lieOn(h, "v5", br.Index)
			return errors.Join(err, h.LinkSetMaster(link, br), h.LinkSetUp(br), upper(h, "v5"))
		}, true},
		{"one that lies on another", func(h *netlink.Handle, link netlink.Link) error {
			o, err := other(h)
			if err != nil {
				return err
			}
			err = lieOn(h, "v5", o.Attrs().Index)
			return errors.Join(err, upper(h, "v5"))
		}, false},
		{"unreachable", func(h *netlink.Handle, link netlink.Link) error {
			return errors.Join(h.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), Type: unix.RTN_UNREACHABLE}),
				h.RouteAdd(&netlink.Route{Dst: cidr("::/0"), Type: unix.RTN_UNREACHABLE}))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, _ := testnet.Wire(t, lab.Options{})
			change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
				return errors.Join(address(h, link, "198.18.0.1/24"), address(h, link, "2001:2::1/64"), c.setup(h, link))
			})
			if got := lookup(t, tx).DefaultRoute; got != c.want {
				t.Errorf("DefaultRoute %v, want %v", got, c.want)
			}
		})
	}
}

// TestLiesNotOn: what IFLA_LINK names does not always carry the interface.
func TestLiesNotOn(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	if a, b := lookup(t, tx).Index, lookup(t, rx).Index; a != b {
		t.Fatalf("indices %d, %d: the test tests nothing", a, b)
	}
	byDefault := func(h *netlink.Handle, name string) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return errors.Join(h.LinkSetUp(l), h.RouteAdd(&netlink.Route{Dst: cidr("0.0.0.0/0"), LinkIndex: l.Attrs().Index}))
	}
	// An interface that lies on that of the same index in another namespace.
	to, err := os.Open(netdev.NamedNamespaces + "/" + tx.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	change(t, rx, func(h *netlink.Handle, link netlink.Link) error {
		if err := lieOn(h, "guest", link.Attrs().Index); err != nil {
			return err
		}
		l, err := h.LinkByName("guest")
		if err != nil {
			return err
		}
		return h.LinkSetNsFd(l, int(to.Fd()))
	})
	change(t, tx, func(h *netlink.Handle, _ netlink.Link) error { return byDefault(h, "guest") })
	if lookup(t, tx).DefaultRoute || !lookup(t, netdev.Ref{Netns: tx.Netns, Name: "guest"}).DefaultRoute {
		t.Error("an interface that lies on one of another namespace counts here")
	}
	// The ends of a veth pair in one namespace.
	change(t, rx, func(h *netlink.Handle, _ netlink.Link) error {
		_, err := other(h)
		return errors.Join(err, byDefault(h, "other"))
	})
	if lookup(t, netdev.Ref{Netns: rx.Netns, Name: "other-end"}).DefaultRoute || !lookup(t, netdev.Ref{Netns: rx.Netns, Name: "other"}).DefaultRoute {
		t.Error("a veth's other end counts as lying on it")
	}
}

func TestOnlyGlobalAddr(t *testing.T) {
	for _, c := range []struct {
		name        string
		own, others []string
		want        bool
	}{
		{"none", nil, nil, false},
		{"the only one", []string{"192.0.2.1/24"}, nil, true},
		{"the only one, IPv6", []string{"2001:db8::1/64"}, nil, true},
		{"two of its own", []string{"192.0.2.1/24", "2001:db8::1/64"}, nil, true},
		{"benchmarking addresses", []string{"198.18.0.1/24", "198.19.255.254/24", "2001:2::1/64"}, nil, false},
		{"link-local", []string{"fe80::1/64"}, nil, false},
		{"another has one", []string{"192.0.2.1/24"}, []string{"198.51.100.1/24"}, false},
		{"another has an IPv6 one", []string{"192.0.2.1/24"}, []string{"2001:db8::1/64"}, false},
		{"another has a benchmarking one", []string{"192.0.2.1/24"}, []string{"198.18.1.1/24"}, true},
		{"only another has one", nil, []string{"192.0.2.1/24"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, _ := testnet.Wire(t, lab.Options{})
			change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
				o, err := other(h)
				if err != nil {
					return err
				}
				if err := h.AddrDel(o, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)}}); err != nil {
					return err
				}
				for _, a := range c.own {
					err = errors.Join(err, address(h, link, a))
				}
				for _, a := range c.others {
					err = errors.Join(err, address(h, o, a))
				}
				return err
			})
			if got := lookup(t, tx).OnlyGlobalAddr; got != c.want {
				t.Errorf("OnlyGlobalAddr %v, want %v", got, c.want)
			}
		})
	}
}

func TestBenchmarking(t *testing.T) {
	for addr, want := range map[string]bool{
		"198.17.255.255": false, "198.18.0.0": true, "198.19.255.255": true, "198.20.0.0": false, // RFC 2544, C.2.2
		"2001:1:ffff::": false, "2001:2::": true, "2001:2:0:ffff::1": true, "2001:2:1::": false, // RFC 5180, section 8
	} {
		if got := netdev.Benchmarking(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Benchmarking(%s) = %v", addr, got)
		}
	}
}

// TestNextHop compares with the kernel's own choice for the interface.
func TestNextHop(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
		index := link.Attrs().Index
		o, err := other(h)
		if err != nil {
			return err
		}
		err = errors.Join(address(h, link, "198.18.0.1/24"), address(h, link, "2001:2::1/64"))
		for _, r := range []netlink.Route{
			{Dst: cidr("10.0.0.0/8"), Gw: net.ParseIP("198.18.0.8"), LinkIndex: index},
			{Dst: cidr("10.1.0.0/16"), Gw: net.ParseIP("198.18.0.16"), LinkIndex: index},
			{Dst: cidr("10.1.2.0/24"), LinkIndex: index, Scope: netlink.SCOPE_LINK},
			{Dst: cidr("10.2.0.0/16"), Gw: net.ParseIP("198.18.0.99"), LinkIndex: index, Priority: 900},
			{Dst: cidr("10.2.0.0/16"), Gw: net.ParseIP("198.18.0.11"), LinkIndex: index, Priority: 100},
			{Dst: cidr("10.3.0.0/16"), LinkIndex: index, Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("2001:2::46")}},
			{Dst: cidr("10.4.0.0/16"), MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: o.Attrs().Index, Gw: net.ParseIP("192.0.2.4")}, {LinkIndex: index, Gw: net.ParseIP("198.18.0.4")},
			}},
			{Dst: cidr("10.5.0.0/16"), Gw: net.ParseIP("192.0.2.5"), LinkIndex: o.Attrs().Index},
			{Dst: cidr("2001:db8::/32"), Gw: net.ParseIP("2001:2::32"), LinkIndex: index},
		} {
			if e := h.RouteAdd(&r); e != nil {
				err = errors.Join(err, fmt.Errorf("%v: %w", r, e))
			}
		}
		return err
	})
	for _, c := range []struct {
		dst, hop      string
		onLink, found bool
	}{
		{"198.18.0.2", "198.18.0.2", true, true},
		{"::ffff:198.18.0.2", "198.18.0.2", true, true},
		{"2001:2::2", "2001:2::2", true, true},
		{"10.9.9.9", "198.18.0.8", false, true},
		{"10.1.9.9", "198.18.0.16", false, true},
		{"10.1.2.3", "10.1.2.3", true, true},
		{"10.2.0.1", "198.18.0.11", false, true},
		{"10.3.0.1", "2001:2::46", false, true},
		{"10.4.0.1", "198.18.0.4", false, true},
		{"10.5.0.1", "198.18.0.8", false, true}, // the longer one leaves by another interface
		{"2001:db8::1", "2001:2::32", false, true},
		{"2001:db8::1%eth31", "2001:2::32", false, true},
		{"203.0.113.1", "", false, false},
		{"2001:db9::1", "", false, false},
	} {
		hop, onLink, found, err := netdev.NextHop(tx, netip.MustParseAddr(c.dst))
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if hop.IsValid() {
			text = hop.String()
		}
		if text != c.hop || onLink != c.onLink || found != c.found {
			t.Errorf("NextHop(%s) = %s, on-link %v, found %v; want %+v", c.dst, text, onLink, found, c)
		}
		if !c.found || c.dst == "::ffff:198.18.0.2" {
			continue
		}
		change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
			addr := netip.MustParseAddr(c.dst).WithZone("")
			got, err := h.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{Oif: tx.Name})
			if err != nil {
				return err
			}
			kernel := addr
			if gw, ok := netip.AddrFromSlice(got[0].Gw); ok {
				kernel = gw.Unmap()
			} else if via, ok := got[0].Via.(*netlink.Via); ok {
				kernel, _ = netip.AddrFromSlice(via.Addr)
			}
			if kernel != hop {
				t.Errorf("NextHop(%s) = %s; the kernel sends to %s", c.dst, hop, kernel)
			}
			return nil
		})
	}
}
