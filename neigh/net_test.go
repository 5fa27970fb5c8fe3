package neigh

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// patience is for what has to happen; when it is over, the test has failed.
const patience = 20 * time.Second

func iface(t *testing.T, r netdev.Ref) Iface {
	t.Helper()
	info, err := netdev.Lookup(r)
	if err != nil {
		t.Fatal(err)
	}
	return Iface{Index: info.Index, Name: info.Ref.Name, MAC: info.MAC}
}

func sysctl(t *testing.T, r netdev.Ref, name, value string) {
	t.Helper()
	testnet.In(t, r, func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644) })
}

// address gives an interface addresses that its kernel answers for.
func address(t *testing.T, r netdev.Ref, flags int, prefixes ...string) {
	t.Helper()
	sysctl(t, r, "ipv6/conf/all/disable_ipv6", "0")
	sysctl(t, r, "ipv6/conf/"+r.Name+"/disable_ipv6", "0")
	testnet.In(t, r, func() error {
		link, err := netlink.LinkByName(r.Name)
		for _, p := range prefixes {
			var a *netlink.Addr
			if err == nil {
				a, err = netlink.ParseAddr(p)
			}
			if err == nil {
				a.Flags = flags
				err = netlink.AddrAdd(link, a)
			}
		}
		return err
	})
}

// place is a kernel that has addresses (198.18.N.2/24, 2001:2:0:N::2/64) and that a
// tag, or none, leads to from the sending end.
type place struct {
	name string
	ref  netdev.Ref
	tag  *VLAN
	n    int
}

func (p place) ip4(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(p.n), byte(host)})
}

func (p place) ip6(host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 7: byte(p.n), 15: byte(host)})
}

// places makes them at the ends of a test bed with two pairs: the receiving end; behind
// an access port of a VLAN switch; and, where the kernel has such, on a VLAN interface.
func places(t *testing.T, tx, rx netdev.Ref) []place {
	t.Helper()
	ps := []place{
		{"untagged", rx, nil, 1},
		{"access port", netdev.Ref{Netns: tx.Netns, Name: "eth33"}, &VLAN{ID: 4000, PCP: 3}, 2},
	}
	accessPort(t, rx, netdev.Ref{Netns: rx.Netns, Name: "eth34"}, *ps[1].tag)
	if r, ok := vlan(t, rx, 4094, LocalMAC(100)); ok {
		ps = append(ps, place{"VLAN interface", r, &VLAN{ID: 4094}, 3})
	} else {
		t.Log("no VLAN interface as the other end: this kernel has none (CONFIG_VLAN_8021Q)")
	}
	for _, p := range ps {
		address(t, p.ref, unix.IFA_F_NODAD, p.ip4(2).String()+"/24", p.ip6(2).String()+"/64")
	}
	return ps
}

// accessPort does what a switch does between a trunk and a port of one VLAN, for ARP and
// NDP.
func accessPort(t *testing.T, trunk, port netdev.Ref, tag VLAN) {
	relay := func(from, to *socket, retag func(frame []byte, got *VLAN) []byte) {
		for {
			frame, got, err := from.read()
			if err != nil {
				return // closed
			}
			if out := retag(frame, got); out != nil {
				_ = to.write(out)
			}
		}
	}
	for _, answers := range []bool{false, true} {
		outer, inner := peer(t, trunk, answers), peer(t, port, answers)
		for _, s := range []*socket{outer, inner} {
			if err := s.setDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		go relay(outer, inner, func(frame []byte, got *VLAN) []byte {
			if vlanID(got) != tag.ID {
				return nil
			}
			return frame
		})
		go relay(inner, outer, func(frame []byte, _ *VLAN) []byte {
			return append(ethernet(frame[:6], frame[6:12], binary.BigEndian.Uint16(frame[12:]), &tag), frame[ethernetLen:]...)
		})
	}
}

// vlan makes a VLAN interface with a MAC of its own on another. It is false where
// the kernel has none.
func vlan(t *testing.T, r netdev.Ref, id int, mac net.HardwareAddr) (made netdev.Ref, ok bool) {
	t.Helper()
	name := fmt.Sprintf("%s.%d", r.Name, id)
	testnet.In(t, r, func() error {
		parent, err := netlink.LinkByName(r.Name)
		if err != nil {
			return err
		}
		link := &netlink.Vlan{LinkAttrs: netlink.NewLinkAttrs(), VlanId: id}
		link.Name, link.ParentIndex, link.HardwareAddr = name, parent.Attrs().Index, mac
		err = netlink.LinkAdd(link)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		ok = err == nil
		return errors.Join(err, netlink.LinkSetUp(link))
	})
	return netdev.Ref{Netns: r.Netns, Name: name}, ok
}

func setLink(t *testing.T, r netdev.Ref, up bool) {
	t.Helper()
	testnet.In(t, r, func() error {
		link, err := netlink.LinkByName(r.Name)
		switch {
		case err != nil:
			return err
		case up:
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	})
}

// await takes what a channel gives until it is what is waited for.
func await[T any](t *testing.T, what string, ch <-chan T, is func(T) bool) {
	t.Helper()
	over := time.After(patience)
	for {
		select {
		case v := <-ch:
			if is(v) {
				return
			}
		case <-over:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// kernelFinds has act make the kernel ask for an address, and returns what it then
// holds in its table: the MAC, or nil when nobody answered.
func kernelFinds(t *testing.T, r netdev.Ref, addr string, act func() error) (mac net.HardwareAddr) {
	t.Helper()
	index := iface(t, r).Index
	updates, done := make(chan netlink.NeighUpdate, 256), make(chan struct{})
	defer close(done)
	testnet.In(t, r, func() error {
		if err := netlink.NeighSubscribe(updates, done); err != nil {
			return err
		}
		return act()
	})
	await(t, r.String()+" to find "+addr, updates, func(u netlink.NeighUpdate) bool {
		if u.LinkIndex != index || u.IP.String() != addr {
			return false
		}
		if u.State == netlink.NUD_REACHABLE {
			mac = u.HardwareAddr
			return true
		}
		return u.State == netlink.NUD_FAILED
	})
	return mac
}

// datagram sends a datagram to the discard port: the kernel has to ask first.
func datagram(addr string) func() error {
	return func() error {
		a, family := netip.MustParseAddr(addr), unix.AF_INET6
		var to unix.Sockaddr = &unix.SockaddrInet6{Port: 9, Addr: a.As16()}
		if a.Is4() {
			to, family = &unix.SockaddrInet4{Port: 9, Addr: a.As4()}, unix.AF_INET
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, []byte("x"), 0, to), unix.Close(fd))
	}
}

// probe has the kernel ask again, in unicast, whether addr is still at mac.
func probe(r netdev.Ref, addr string, mac net.HardwareAddr) func() error {
	return func() error {
		link, err := netlink.LinkByName(r.Name)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PROBE, IP: net.ParseIP(addr), HardwareAddr: mac})
	}
}

// responder answers on r until the test ends, and then has to end well.
func responder(t *testing.T, r netdev.Ref, ifi Iface, o ResponderOptions) (responder *Responder) {
	t.Helper()
	testnet.In(t, r, func() (err error) {
		responder, err = NewResponder(ifi, netdev.BenchmarkPrefixes(), o)
		return err
	})
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- responder.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		await(t, "Run to end", ended, func(err error) bool {
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			return true
		})
		if err := responder.Close(); err != nil {
			t.Errorf("Close after the end: %v", err)
		}
	})
	return responder
}

// peer is a bare socket at an interface, for the other end of a talk.
func peer(t *testing.T, r netdev.Ref, answers bool) (s *socket) {
	t.Helper()
	testnet.In(t, r, func() (err error) {
		s, err = open(iface(t, r), answers)
		return err
	})
	if err := s.setDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

func resolve(ctx context.Context, r netdev.Ref, ifi Iface, q Query) (mac net.HardwareAddr, err error) {
	err = r.Do(func() (err error) {
		mac, err = Resolve(ctx, ifi, q)
		return err
	})
	return mac, err
}

// TestResolveFromKernel: the kernel of the other end answers our questions.
func TestResolveFromKernel(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Pairs: 2})
	ps := places(t, tx, rx)
	near, spoofed := iface(t, tx), iface(t, tx)
	spoofed.MAC = LocalMAC(2)
	check := func(name string, ifi Iface, q Query, want net.HardwareAddr) {
		t.Helper()
		q.Tries, q.Interval = 1, patience // the kernel answers the first question
		mac, err := resolve(t.Context(), tx, ifi, q)
		if err != nil || !bytes.Equal(mac, want) {
			t.Errorf("%s: %v is at %v, %v; want %v", name, q.Dst, mac, err, want)
		}
	}
	for _, p := range ps {
		want := iface(t, p.ref).MAC
		for _, q := range []Query{{Src: p.ip4(1), Dst: p.ip4(2), VLAN: p.tag}, {Src: p.ip6(1), Dst: p.ip6(2), VLAN: p.tag}} {
			check(p.name, near, q, want)
			check(p.name+", another MAC", spoofed, q, want)
		}
		for _, q := range []Query{{Src: netip.IPv4Unspecified(), Dst: p.ip4(2), VLAN: p.tag}, {Src: netip.IPv6Unspecified(), Dst: p.ip6(2), VLAN: p.tag}} {
			check(p.name+", no address", near, q, want)
		}
	}
	// A tag with a priority and no VLAN is none to the kernel.
	p := ps[0]
	check("priority", near, Query{Src: p.ip4(1), Dst: p.ip4(2), VLAN: &VLAN{PCP: 6}}, iface(t, p.ref).MAC)

	if r, ok := vlan(t, tx, 4094, LocalMAC(1)); ok { // both ends have VLAN interfaces
		p := ps[2]
		check(p.name, iface(t, r), Query{Src: p.ip4(1), Dst: p.ip4(2)}, iface(t, p.ref).MAC)
		check(p.name, iface(t, r), Query{Src: p.ip6(1), Dst: p.ip6(2)}, iface(t, p.ref).MAC)
	}
}

// TestKernelFindsResponder: the kernel of the other end finds every test address
// with us, with a tag and without, and none of the others; it believes us when it asks
// again; and an interface that was down is answered for as before.
func TestKernelFindsResponder(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Pairs: 2})
	ps := places(t, tx, rx) // here the askers
	plain := ps[0]
	ifi := iface(t, tx)
	ifi.MAC = LocalMAC(7)
	own := []netip.Addr{plain.ip4(77), plain.ip6(77)}
	r := responder(t, tx, ifi, ResponderOptions{Exclude: own})

	questions := uint64(0)
	for _, p := range ps {
		for _, a := range []netip.Addr{p.ip4(1), p.ip4(254), p.ip6(1), p.ip6(254)} {
			addr := a.String()
			if mac := kernelFinds(t, p.ref, addr, datagram(addr)); !bytes.Equal(mac, ifi.MAC) {
				t.Fatalf("%s: %s is at %v, want %v", p.name, addr, mac, ifi.MAC)
			}
			if mac := kernelFinds(t, p.ref, addr, probe(p.ref, addr, ifi.MAC)); !bytes.Equal(mac, ifi.MAC) {
				t.Errorf("%s: %s asked in unicast is at %v, want %v", p.name, addr, mac, ifi.MAC)
			}
			questions += 2
		}
	}
	if n := r.Answered(); n < questions {
		t.Errorf("%d answered, of %d questions", n, questions)
	}

	for _, a := range own {
		family := "ipv4"
		if a.Is6() {
			family = "ipv6"
		}
		interval := family + "/neigh/" + rx.Name + "/retrans_time_ms"
		sysctl(t, rx, interval, "50") // three tries of a second otherwise
		if mac := kernelFinds(t, rx, a.String(), datagram(a.String())); mac != nil {
			t.Errorf("%v, which is the host's own, is at %v", a, mac)
		}
		sysctl(t, rx, interval, "1000")
	}

	links, done := make(chan netlink.LinkUpdate, 256), make(chan struct{})
	defer close(done)
	testnet.In(t, rx, func() error { return netlink.LinkSubscribe(links, done) })
	carrier := func(want bool) func(netlink.LinkUpdate) bool {
		return func(u netlink.LinkUpdate) bool {
			return u.Attrs().Name == rx.Name && (u.Attrs().OperState == netlink.OperUp) == want
		}
	}
	setLink(t, tx, false)
	await(t, "the carrier to go", links, carrier(false))
	setLink(t, tx, true)
	await(t, "the carrier to come", links, carrier(true))
	for _, addr := range []string{plain.ip4(3).String(), plain.ip6(3).String()} {
		if mac := kernelFinds(t, rx, addr, datagram(addr)); !bytes.Equal(mac, ifi.MAC) {
			t.Errorf("after the interface was down %s is at %v, want %v", addr, mac, ifi.MAC)
		}
	}
}

// TestDuplicateDetection: a device that makes sure of its own address of the prefix
// keeps it.
func TestDuplicateDetection(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	r := responder(t, tx, iface(t, tx), ResponderOptions{})
	address(t, rx, unix.IFA_F_NODAD, "2001:2::2/64")
	sysctl(t, rx, "ipv6/conf/"+rx.Name+"/accept_dad", "1")
	sysctl(t, rx, "ipv6/conf/"+rx.Name+"/dad_transmits", "1")
	updates, done := make(chan netlink.AddrUpdate, 256), make(chan struct{})
	defer close(done)
	testnet.In(t, rx, func() error { return netlink.AddrSubscribe(updates, done) })
	questions := peer(t, tx, false)
	address(t, rx, 0, "2001:2::5/64")
	await(t, "the address to be sure", updates, func(u netlink.AddrUpdate) bool {
		if !u.LinkAddress.IP.Equal(net.ParseIP("2001:2::5")) {
			return false
		}
		if u.Flags&unix.IFA_F_DADFAILED != 0 {
			t.Fatal("the device lost its address")
		}
		return u.Flags&unix.IFA_F_TENTATIVE == 0
	})
	for { // it has really asked
		frame, _, err := questions.read()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := parse(frame); ok && m.target == netip.MustParseAddr("2001:2::5") {
			break
		}
	}
	if n := r.Answered(); n != 0 {
		t.Errorf("%d answered", n)
	}
}

// TestTagged: a question with a tag is answered with the same tag and priority, which
// the kernel takes off and tells beside the frame.
func TestTagged(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	far := iface(t, rx)
	far.MAC = LocalMAC(8)
	responder(t, rx, far, ResponderOptions{})
	s := peer(t, tx, true)
	for _, tag := range []*VLAN{{ID: 100, PCP: 5}, {ID: 4094}, {ID: 0, PCP: 7}, nil} {
		for _, question := range [][]byte{ask(macA, ip4A, ip4B, tag), ask(macA, ip6A, ip6B, tag)} {
			if err := s.write(question); err != nil {
				t.Fatal(err)
			}
			frame, got, err := s.read()
			if err != nil {
				t.Fatal(err)
			}
			m, ok := parse(frame)
			if !ok || !bytes.Equal(m.sender, far.MAC) || (got == nil) != (tag == nil) || (tag != nil && *got != *tag) {
				t.Errorf("tag %+v: answer %+v, %v, tag %+v", tag, m, ok, got)
			}
		}
	}
}

// TestOtherAnswers: an answer from another VLAN, one about another address and one that
// is broken do not count.
func TestOtherAnswers(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	s := peer(t, rx, false)
	ifi, right := iface(t, tx), LocalMAC(9)
	go func() {
		frame, _, err := s.read()
		if err != nil {
			return // Resolve then says what is missing
		}
		m, _ := parse(frame)
		elsewhere := m
		elsewhere.target = netip.MustParseAddr("2001:2::3")
		broken := reply(macB, m, ifi.MAC, &VLAN{ID: 7})
		broken[len(broken)-1] ^= 1
		for _, out := range [][]byte{
			reply(macB, m, ifi.MAC, nil), reply(macB, m, ifi.MAC, &VLAN{ID: 8}),
			reply(macB, elsewhere, ifi.MAC, &VLAN{ID: 7}), broken,
			reply(right, m, ifi.MAC, &VLAN{ID: 7, PCP: 6}),
		} {
			_ = s.write(out)
		}
	}()
	mac, err := resolve(t.Context(), tx, ifi, Query{Src: ip6A, Dst: ip6B, VLAN: &VLAN{ID: 7}, Tries: 1, Interval: patience})
	if err != nil || !bytes.Equal(mac, right) {
		t.Errorf("%v, %v; want %v", mac, err, right)
	}
}

// TestNobodyAnswers: so many questions as tries, and then an error of its own.
func TestNobodyAnswers(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	ifi, s := iface(t, tx), peer(t, rx, false)
	for _, q := range []Query{{Src: ip4A, Dst: ip4B}, {Src: ip6A, Dst: ip6B}} {
		q.Tries, q.Interval = 4, 5*time.Millisecond
		_, err := resolve(t.Context(), tx, ifi, q)
		if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), q.Dst.String()) || !strings.HasPrefix(err.Error(), tx.Name+": ") {
			t.Errorf("%v: %v", q.Dst, err)
		}
		if err := s.setDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		// The wire keeps order: what is read before a question of our own is all there was.
		end := netip.MustParseAddr("198.18.9.9")
		last := peer(t, tx, true)
		if err := last.write(ask(ifi.MAC, ip4A, end, nil)); err != nil {
			t.Fatal(err)
		}
		asked := 0
		for {
			frame, _, err := s.read()
			if err != nil {
				t.Fatal(err)
			}
			m, ok := parse(frame)
			if ok && m.target == end {
				break
			}
			if ok && m.target == q.Dst {
				asked++
			}
		}
		if asked != q.Tries {
			t.Errorf("%v: %d questions, want %d", q.Dst, asked, q.Tries)
		}
	}
}

// TestBrokenOff: the end of the context, and of the link, end a question that has been
// asked and waits.
func TestBrokenOff(t *testing.T) {
	why := errors.New("broken off")
	for _, c := range []struct {
		name  string
		after func(t *testing.T, tx netdev.Ref, cancel context.CancelCauseFunc)
		want  error
	}{
		{"context", func(_ *testing.T, _ netdev.Ref, cancel context.CancelCauseFunc) { cancel(why) }, why},
		{"link", func(t *testing.T, tx netdev.Ref, _ context.CancelCauseFunc) { setLink(t, tx, false) }, unix.ENETDOWN},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			ifi, s := iface(t, tx), peer(t, rx, false)
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := resolve(ctx, tx, ifi, Query{Src: ip4A, Dst: ip4B, Interval: time.Hour})
				ended <- err
			}()
			if _, _, err := s.read(); err != nil {
				t.Fatal(err)
			}
			c.after(t, tx, cancel)
			await(t, "Resolve to end", ended, func(err error) bool {
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				return true
			})
			if c.want == unix.ENETDOWN { // and so is one that begins then
				_, err := resolve(ctx, tx, ifi, Query{Src: ip4A, Dst: ip4B})
				if !errors.Is(err, unix.ENETDOWN) || !strings.HasPrefix(err.Error(), tx.Name+": ask for 198.18.0.2: ") {
					t.Errorf("on a link that is down: %v", err)
				}
			}
			cancel(nil)
		})
	}
	tx, _ := testnet.Wire(t, lab.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := resolve(ctx, tx, iface(t, tx), Query{Src: ip4A, Dst: ip4B, Interval: time.Hour}); !errors.Is(err, why) {
		t.Errorf("begun after its end: %v", err)
	}
}

// TestQuiet: test traffic does not reach the socket, nor does what this host sends.
func TestQuiet(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	near, far, other := peer(t, tx, false), peer(t, rx, false), peer(t, rx, false)
	udp := ethernet(iface(t, rx).MAC, iface(t, tx).MAC, 0x0800, nil)
	udp = append(udp, make([]byte, 46)...)
	udp[14], udp[23] = 0x45, 17
	for range 100 {
		if err := near.write(udp); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.write(ask(macB, ip4B, ip4A, nil)); err != nil { // the kernel shows it to all sockets but this
		t.Fatal(err)
	}
	if err := near.write(ask(macA, ip4A, ip4B, nil)); err != nil {
		t.Fatal(err)
	}
	frame, _, err := far.read()
	if m, ok := parse(frame); err != nil || !ok || m.target != ip4B {
		t.Fatalf("%x, %v", frame, err)
	}
	if stats, err := far.conn.Stats(); err != nil || stats.Packets != 1 {
		t.Errorf("%+v, %v: want the one question", stats, err)
	}
}

// TestLeavesNothing: the interface lets in what its MAC needs, and is as before
// after Close.
func TestLeavesNothing(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	told := true
	modes := func() (promisc, allmulti int) {
		testnet.In(t, tx, func() error {
			link, err := netlink.LinkByName(tx.Name)
			if err != nil {
				return err
			}
			req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
			ask := nl.NewIfInfomsg(unix.AF_UNSPEC)
			ask.Index = int32(link.Attrs().Index)
			req.AddData(ask)
			msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
			if err != nil {
				return err
			}
			attrs, err := nl.ParseRouteAttrAsMap(msgs[0][unix.SizeofIfInfomsg:])
			if err != nil || len(attrs[unix.IFLA_ALLMULTI].Value) != 4 {
				told = false
				return err
			}
			promisc = int(binary.NativeEndian.Uint32(attrs[unix.IFLA_PROMISCUITY].Value))
			allmulti = int(binary.NativeEndian.Uint32(attrs[unix.IFLA_ALLMULTI].Value))
			return nil
		})
		return promisc, allmulti
	}
	if modes(); !told {
		t.Skip("this kernel does not tell: IFLA_ALLMULTI is of Linux 6.0")
	}
	for _, c := range []struct {
		mac               net.HardwareAddr
		promisc, allmulti int
	}{
		{iface(t, tx).MAC, 0, 1},
		{LocalMAC(3), 1, 0},
	} {
		ifi := iface(t, tx)
		ifi.MAC = c.mac
		var r *Responder
		testnet.In(t, tx, func() (err error) {
			r, err = NewResponder(ifi, nil, ResponderOptions{})
			return err
		})
		if p, a := modes(); p != c.promisc || a != c.allmulti {
			t.Errorf("MAC %v: promiscuous %d, all multicast %d", c.mac, p, a)
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		if p, a := modes(); p != 0 || a != 0 {
			t.Errorf("after Close: promiscuous %d, all multicast %d", p, a)
		}
		if err := r.Run(t.Context()); err != nil {
			t.Errorf("Run after Close: %v", err)
		}
	}
	err := tx.Do(func() error {
		_, err := NewResponder(Iface{Index: 1 << 20, Name: "eth99", MAC: macA}, nil, ResponderOptions{})
		return err
	})
	if !errors.Is(err, unix.ENODEV) || !strings.HasPrefix(err.Error(), "eth99: ") {
		t.Errorf("an interface that is not there: %v", err)
	}
	if _, err := NewResponder(Iface{Index: 1, Name: "lo", MAC: broadcast}, nil, ResponderOptions{}); err == nil {
		t.Error("a group MAC was taken")
	}
}
