package neigh

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
)

var (
	macA = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xa}
	macB = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xb}
	ip4A = netip.MustParseAddr("198.18.0.1")
	ip4B = netip.MustParseAddr("198.18.0.2")
	ip6A = netip.MustParseAddr("2001:2::1")
	ip6B = netip.MustParseAddr("2001:2::2")
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors: messages as the Linux kernel sends them, captured by tshark.
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		want        message
	}{
		{"ARP request", `ffffffffffff 02000000000a 0806 0001 0800 06 04 0001 02000000000a c6120001 000000000000 c6120002`,
			message{sender: macA, senderIP: ip4A, target: ip4B}},
		{"ARP reply", `02000000000a 02000000000b 0806 0001 0800 06 04 0002 02000000000b c6120002 02000000000a c6120001`,
			message{answer: true, sender: macB, senderIP: ip4B, target: ip4B}},
		{"solicitation", `3333ff000002 02000000000a 86dd 60000000 0020 3a ff 20010002000000000000000000000001 ff0200000000000000000001ff000002
			87 00 378a 00000000 20010002000000000000000000000002 01 01 02000000000a`,
			message{sender: macA, senderIP: ip6A, target: ip6B}},
		{"advertisement", `02000000000a 02000000000b 86dd 60000000 0020 3a ff 20010002000000000000000000000002 20010002000000000000000000000001
			88 00 b38a 60000000 20010002000000000000000000000002 02 01 02000000000b`,
			message{answer: true, sender: macB, senderIP: ip6B, target: ip6B}},
	} {
		got, ok := parse(unhex(t, c.frame))
		if !ok || got.answer != c.want.answer || !bytes.Equal(got.sender, c.want.sender) || got.senderIP != c.want.senderIP || got.target != c.want.target {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, ok, c.want)
		}
	}
}

// TestBuild: what we build is what the kernel builds, octet for octet.
func TestBuild(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"ARP request", ask(macA, ip4A, ip4B, nil), `ffffffffffff 02000000000a 0806 0001 0800 06 04 0001 02000000000a c6120001 000000000000 c6120002 ` + strings.Repeat("00", 18)},
		{"tagged", ask(macA, ip4A, ip4B, &VLAN{ID: 100, PCP: 5}), `ffffffffffff 02000000000a 8100 a064 0806 0001 0800 06 04 0001 02000000000a c6120001 000000000000 c6120002 ` + strings.Repeat("00", 14)},
		{"ARP reply", reply(macB, message{sender: macA, senderIP: ip4A, target: ip4B}, macA, nil), `02000000000a 02000000000b 0806 0001 0800 06 04 0002 02000000000b c6120002 02000000000a c6120001 ` + strings.Repeat("00", 18)},
		{"solicitation", ask(macA, ip6A, ip6B, nil), `3333ff000002 02000000000a 86dd 60000000 0020 3a ff 20010002000000000000000000000001 ff0200000000000000000001ff000002
			87 00 378a 00000000 20010002000000000000000000000002 01 01 02000000000a`},
		{"advertisement", reply(macB, message{sender: macA, senderIP: ip6A, target: ip6B}, macA, nil), `02000000000a 02000000000b 86dd 60000000 0020 3a ff 20010002000000000000000000000002 20010002000000000000000000000001
			88 00 b38a 60000000 20010002000000000000000000000002 02 01 02000000000b`},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n%x, want\n%x", c.name, c.got, want)
		}
	}
}

// TestRejects: a message that breaks a rule of its RFC is nobody's.
func TestRejects(t *testing.T) {
	arp, ns := ask(macA, ip4A, ip4B, nil), ask(macA, ip6A, ip6B, nil)
	change := func(b []byte, at int, v byte) []byte { c := bytes.Clone(b); c[at] = v; return c }
	for name, frame := range map[string][]byte{
		"short ARP":         arp[:41],
		"hardware type":     change(arp, 15, 2),
		"protocol length":   change(arp, 19, 16),
		"operation":         change(arp, 21, 3),
		"multicast sender":  change(arp, 22, 1),
		"short NDP":         ns[:77],
		"hop limit":         change(ns, 21, 254),
		"checksum":          change(ns, 57, ns[57]^1),
		"code":              change(ns, 55, 1),
		"option length 0":   change(ns, 79, 0),
		"option too long":   change(ns, 79, 2),
		"IP length":         change(ns, 19, 200),
		"next header":       change(ns, 20, 17),
		"version":           change(ns, 14, 0x40),
		"another EtherType": change(arp, 13, 0),
		"nothing":           nil,
	} {
		if m, ok := parse(frame); ok {
			t.Errorf("%s: taken as %+v", name, m)
		}
	}
}

// TestAnswers: what a Responder answers, and what not.
func TestAnswers(t *testing.T) {
	r := &Responder{ifi: Iface{MAC: macB}, exclude: []netip.Addr{netip.MustParseAddr("198.18.0.9")},
		prefixes: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:2::/48")}}
	for _, c := range []struct {
		name     string
		src, dst string
		want     bool
	}{
		{"IPv4", "198.18.0.1", "198.19.255.254", true},
		{"IPv6", "2001:2::1", "2001:2:0:ffff::1", true},
		{"from elsewhere", "192.0.2.1", "198.18.0.2", true},
		{"not ours", "198.18.0.1", "198.20.0.1", false},
		{"the host's own", "198.18.0.1", "198.18.0.9", false},
		{"about itself", "198.18.0.2", "198.18.0.2", false},
		{"ARP probe", "0.0.0.0", "198.18.0.2", false},
		{"duplicate address detection", "::", "2001:2::2", false},
	} {
		question := ask(macA, netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst), nil)
		got := r.answer(question, nil)
		if (got != nil) != c.want {
			t.Errorf("%s: answered %v", c.name, got != nil)
		}
		if got == nil {
			continue
		}
		m, ok := parse(got)
		if !ok || !m.answer || m.target.String() != c.dst || !bytes.Equal(m.sender, macB) || !bytes.Equal(got[:6], macA) {
			t.Errorf("%s: answer %+v, %v", c.name, m, ok)
		}
	}
	answer := reply(macA, message{sender: macB, senderIP: ip4B, target: ip4A}, macB, nil)
	if r.answer(answer, nil) != nil {
		t.Error("an answer was answered")
	}
}

// TestFilter: the kernel lets through what is for us, and nothing else.
func TestFilter(t *testing.T) {
	frames := map[string][]byte{
		"ARP request": ask(macA, ip4A, ip4B, nil), "ARP reply": reply(macB, message{sender: macA, senderIP: ip4A, target: ip4B}, macA, nil),
		"solicitation": ask(macA, ip6A, ip6B, nil), "advertisement": reply(macB, message{sender: macA, senderIP: ip6A, target: ip6B}, macA, nil),
	}
	udp := bytes.Clone(frames["solicitation"])
	udp[20] = 17
	frames["UDP"] = udp
	far := bytes.Clone(frames["solicitation"])
	far[21] = 64
	frames["forwarded"] = far
	frames["IPv4"] = append(append(bytes.Clone(frames["ARP request"][:12]), 8, 0), make([]byte, 46)...)
	for _, answers := range []bool{false, true} {
		vm, err := bpf.NewVM(program(answers))
		if err != nil {
			t.Fatal(err)
		}
		for name, frame := range frames {
			n, err := vm.Run(frame)
			if err != nil {
				t.Fatal(err)
			}
			want := name == "ARP request" || name == "solicitation"
			if answers {
				want = name == "ARP reply" || name == "advertisement"
			}
			if (n > 0) != want {
				t.Errorf("answers %v: %s passes: %v", answers, name, n > 0)
			}
		}
	}
}

func TestLocalMAC(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(1000) {
		m := LocalMAC(seed)
		if m[0] != 2 || !unicast(m) {
			t.Fatalf("%v is not a local unicast MAC", m)
		}
		seen[m.String()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different MACs of 1000", len(seen))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ask(macA, ip4A, ip4B, nil))
	f.Add(ask(macA, ip6A, ip6B, nil))
	f.Add(reply(macB, message{sender: macA, senderIP: ip6A, target: ip6B}, macA, nil))
	r := &Responder{ifi: Iface{MAC: macB}, prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, ok := parse(frame)
		if !ok {
			return
		}
		if m.sender != nil && !unicast(m.sender) {
			t.Errorf("sender %v", m.sender)
		}
		if out := r.answer(frame, nil); out != nil {
			if a, ok := parse(out); !ok || !a.answer || a.target != m.target {
				t.Errorf("the answer to %+v is %+v, %v", m, a, ok)
			}
		}
	})
}
