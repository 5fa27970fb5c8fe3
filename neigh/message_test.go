package neigh

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var (
	macA = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xa}
	macB = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xb}
	ip4A = netip.MustParseAddr("198.18.0.1")
	ip4B = netip.MustParseAddr("198.18.0.2")
	ip6A = netip.MustParseAddr("2001:2::1")
	ip6B = netip.MustParseAddr("2001:2::2")
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type vector struct {
	want  message
	frame []byte
}

// kernelFrames reads testdata/kernel.txt.
func kernelFrames(t testing.TB) (vs []vector) {
	t.Helper()
	text, err := os.ReadFile("testdata/kernel.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		v := vector{want: message{answer: f[0] == "answer", senderIP: netip.MustParseAddr(f[2]), target: netip.MustParseAddr(f[3])}, frame: unhex(t, f[4])}
		if f[1] != "-" {
			if v.want.sender, err = net.ParseMAC(f[1]); err != nil {
				t.Fatal(err)
			}
		}
		vs = append(vs, v)
	}
	return vs
}

// TestParseKernel: what the kernel sends is read as tshark reads it.
func TestParseKernel(t *testing.T) {
	vs := kernelFrames(t)
	if len(vs) != 7 {
		t.Fatalf("%d frames", len(vs))
	}
	for _, v := range vs {
		got, ok := parse(v.frame)
		if !ok || got.answer != v.want.answer || !bytes.Equal(got.sender, v.want.sender) || got.senderIP != v.want.senderIP || got.target != v.want.target {
			t.Errorf("%x: %+v, %v; want %+v", v.frame, got, ok, v.want)
		}
	}
}

// TestBuild: what we send is what the kernel sends, octet for octet, but that short
// frames are padded.
func TestBuild(t *testing.T) {
	kernel := kernelFrames(t)
	for i, got := range map[int][]byte{
		2: ask(macA, ip4A, ip4B, nil),
		3: reply(macB, message{sender: macA, senderIP: ip4A, target: ip4B}, macA, nil),
		5: ask(macA, ip6A, ip6B, nil),
		6: reply(macB, message{sender: macA, senderIP: ip6A, target: ip6B}, macA, nil),
	} {
		want := kernel[i].frame
		if n := minEthernetLen - len(want); n > 0 {
			want = append(want, make([]byte, n)...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("frame %d:\n%x, want\n%x", i, got, want)
		}
	}
}

// TestDissected: tshark finds in our frames what was put into them, and no fault.
func TestDissected(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("PKTGEN_REQUIRE_NET") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	tag, none := &VLAN{ID: 4094, PCP: 5}, netip.IPv6Unspecified()
	from4, from6 := message{sender: macA, senderIP: ip4A, target: ip4B}, message{sender: macA, senderIP: ip6A, target: ip6B}
	const arpFields, ndpFields = "||||", "|||||"
	frames := [][]byte{
		ask(macA, ip4A, ip4B, tag), ask(macA, ip6A, ip6B, tag), ask(macA, none, ip6B, nil),
		reply(macB, from4, macA, tag), reply(macB, from6, macA, tag),
	}
	want := []string{ // vlan, MACs | ARP | NDP; a checksum status of 1 is a good one
		"4094|5|02:00:00:00:00:0a|ff:ff:ff:ff:ff:ff|" + "1|02:00:00:00:00:0a|198.18.0.1|198.18.0.2|" + ndpFields,
		"4094|5|02:00:00:00:00:0a|33:33:ff:00:00:02|" + arpFields + "135|1|255|2001:2::1|02:00:00:00:00:0a|2001:2::2",
		"||02:00:00:00:00:0a|33:33:ff:00:00:02|" + arpFields + "135|1|255|::||2001:2::2",
		"4094|5|02:00:00:00:00:0b|02:00:00:00:00:0a|" + "2|02:00:00:00:00:0b|198.18.0.2|198.18.0.1|" + ndpFields,
		"4094|5|02:00:00:00:00:0b|02:00:00:00:00:0a|" + arpFields + "136|1|255|2001:2::2|02:00:00:00:00:0b|2001:2::2",
	}
	// A pcap file: magic, version 2.4, time zone, accuracy, snap length, Ethernet (1).
	pcap := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	pcap = append(pcap, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0)
	for _, f := range frames {
		pcap = binary.LittleEndian.AppendUint64(pcap, 0)
		pcap = binary.LittleEndian.AppendUint32(pcap, uint32(len(f)))
		pcap = binary.LittleEndian.AppendUint32(pcap, uint32(len(f)))
		pcap = append(pcap, f...)
	}
	file := filepath.Join(t.TempDir(), "sent.pcap")
	if err := os.WriteFile(file, pcap, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "separator=|"}
	for _, field := range []string{"vlan.id", "vlan.priority", "eth.src", "eth.dst",
		"arp.opcode", "arp.src.hw_mac", "arp.src.proto_ipv4", "arp.dst.proto_ipv4",
		"icmpv6.type", "icmpv6.checksum.status", "ipv6.hlim", "ipv6.src", "icmpv6.opt.linkaddr", "icmpv6.nd.ns.target_address"} {
		args = append(args, "-e", field)
	}
	args = append(args, "-e", "icmpv6.nd.na.target_address", "-e", "_ws.malformed")
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		f := strings.Split(line, "|")
		if f[15] != "" {
			t.Errorf("frame %d is malformed: %s", i, line)
		}
		if got := strings.Join(f[:13], "|") + "|" + f[13] + f[14]; i >= len(want) || got != want[i] {
			t.Errorf("frame %d:\n%s, want\n%s", i, got, want[min(i, len(want)-1)])
		}
	}
	if n := strings.Count(string(out), "\n"); n != len(want) {
		t.Errorf("tshark read %d of %d frames", n, len(want))
	}
}

// TestChecksum: against the pseudo-header written out (RFC 8200, section 8.1) and
// summed in 64 bits.
func TestChecksum(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		addresses, icmp := make([]byte, 32), make([]byte, rnd.IntN(1500))
		for _, b := range [][]byte{addresses, icmp} {
			for i := range b {
				b[i] = byte(rnd.Uint32() | uint32(rnd.IntN(2))*0xff) // many sums that carry
			}
		}
		all := binary.BigEndian.AppendUint32(bytes.Clone(addresses), uint32(len(icmp)))
		all = append(append(all, 0, 0, 0, 58), icmp...)
		if len(all)%2 == 1 {
			all = append(all, 0)
		}
		var sum uint64
		for ; len(all) > 0; all = all[2:] {
			sum += uint64(all[0])<<8 | uint64(all[1])
		}
		want := ^uint16((sum-1)%0xffff + 1) // ones' complement: modulo 65535, in 1 to 65535
		if got := icmpChecksum(addresses, icmp); got != want {
			t.Fatalf("%#x, want %#x, over %x %x", got, want, addresses, icmp)
		}
	}
}

// TestRejects: a message that breaks a rule of its RFC is nobody's.
func TestRejects(t *testing.T) {
	arp, ns := ask(macA, ip4A, ip4B, nil), ask(macA, ip6A, ip6B, nil)
	group6 := netip.MustParseAddr("ff02::1")
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
		"ARP group target":  change(arp, 38, 224),
		"NDP group target":  ask(macA, ip6A, group6, nil),
		"redirect":          ndp(137, 0, macB, macA, ip6A, ip6B, ip6B, optionTarget, nil),
		"solicited, to all": ndp(advertisement, flagSolicited, macB, macA, ip6A, group6, ip6A, optionTarget, nil),
		"multicast option":  ndp(solicitation, 0, macB, broadcast, ip6A, ip6B, ip6B, optionSource, nil),
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
		{"a link-local asker", "fe80::1", "2001:2::2", true},
		{"a group", "198.18.0.1", "224.0.0.1", false},
		{"from an IPv4 group", "224.0.0.1", "198.18.0.2", false},
		{"from an IPv6 group", "ff02::1", "2001:2::2", false},
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
	everything := &Responder{ifi: r.ifi, prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	for _, nobody := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"} {
		from := ip4A
		if a := netip.MustParseAddr(nobody); a.Is6() {
			from = ip6A
		}
		if everything.answer(ask(macA, from, netip.MustParseAddr(nobody), nil), nil) != nil {
			t.Errorf("%s was answered for", nobody)
		}
	}
	// A solicitation in unicast may leave out its link-layer address: the frame's counts.
	bare := ndp(solicitation, 0, macB, macA, ip6A, ip6B, ip6B, 14, nil) // 14: nonce, RFC 3971
	if got := r.answer(bare, nil); got == nil || !bytes.Equal(got[:6], macA) {
		t.Errorf("answer to a solicitation without option: %x", got)
	}
	bare[6] |= 1
	if got := r.answer(bare, nil); got != nil {
		t.Errorf("answer to a group: %x", got)
	}
}

// TestPace: any burst up to the bound at once, and never more than one bound's worth
// in a window, whatever comes.
func TestPace(t *testing.T) {
	var p pace
	start := time.Unix(1e9, 0)
	for i := range answersPerWindow {
		if wait := p.next(start); wait != 0 {
			t.Fatalf("answer %d of a burst waits %v", i, wait)
		}
	}
	if wait := p.next(start.Add(answerWindow / 4)); wait != answerWindow*3/4 {
		t.Errorf("the first beyond the bound waits %v", wait)
	}
	now := start.Add(answerWindow) // a flood: the next question is there as soon as one is answered
	sent := 1
	for ; ; sent++ {
		wait := p.next(now)
		if now = now.Add(wait); now.Sub(start) >= 100*answerWindow {
			break
		}
	}
	if want := 99 * answersPerWindow; sent != want {
		t.Errorf("%d answers to a flood in 99 windows, want %d", sent, want)
	}
	if wait := p.next(now.Add(time.Hour)); wait != 0 {
		t.Errorf("after a pause an answer waits %v", wait)
	}
}

// TestQuery: what no message can ask is refused before a socket is made.
func TestQuery(t *testing.T) {
	for name, q := range map[string]Query{
		"nothing":       {},
		"no source":     {Dst: ip4B},
		"two families":  {Src: ip4A, Dst: ip6B},
		"VLAN 4095":     {Src: ip4A, Dst: ip4B, VLAN: &VLAN{ID: 4095}},
		"priority 8":    {Src: ip4A, Dst: ip4B, VLAN: &VLAN{PCP: 8}},
		"-1 tries":      {Src: ip4A, Dst: ip4B, Tries: -1},
		"interval -1ns": {Src: ip4A, Dst: ip4B, Interval: -1},
	} {
		_, err := Resolve(context.Background(), Iface{Name: "eth0", MAC: macA}, q)
		if err == nil || errors.Is(err, ErrNoAnswer) || !strings.HasPrefix(err.Error(), "eth0: ask for ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	q, err := Query{Src: ip4A, Dst: netip.MustParseAddr("::ffff:198.18.0.2")}.normal()
	if err != nil || q.Dst != ip4B || q.Tries != 3 || q.Interval != 300*time.Millisecond {
		t.Errorf("%+v, %v", q, err)
	}
	q, err = Query{Src: ip6A, Dst: netip.MustParseAddr("fe80::1%eth0")}.normal()
	if err != nil || q.Dst.Zone() != "" {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestVLANTag: struct tpacket_auxdata as the kernel lays it out.
func TestVLANTag(t *testing.T) {
	aux := func(status uint32, tci, tpid uint16) []byte {
		b := make([]byte, unix.CmsgSpace(20))
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(20)))
		binary.NativeEndian.PutUint32(b[8:], unix.SOL_PACKET)
		binary.NativeEndian.PutUint32(b[12:], unix.PACKET_AUXDATA)
		binary.NativeEndian.PutUint32(b[16:], status)
		binary.NativeEndian.PutUint16(b[32:], tci)
		binary.NativeEndian.PutUint16(b[34:], tpid)
		return b
	}
	const valid, tpid = unix.TP_STATUS_VLAN_VALID, unix.TP_STATUS_VLAN_TPID_VALID
	for _, c := range []struct {
		name string
		oob  []byte
		want *VLAN
		ok   bool
	}{
		{"no tag", aux(1, 0xffff, 0x8100), nil, true},
		{"802.1Q", aux(valid|tpid, 0xa064, 0x8100), &VLAN{ID: 100, PCP: 5}, true},
		{"802.1Q, old kernel", aux(valid, 0xa064, 0), &VLAN{ID: 100, PCP: 5}, true},
		{"802.1ad", aux(valid|tpid, 0xa064, 0x88a8), nil, false},
		{"nothing", nil, nil, true},
		{"garbage", []byte{1, 2, 3}, nil, true},
	} {
		got, ok := vlanTag(c.oob)
		if ok != c.ok || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
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

// answersAll answers for everything: what it says to a question of a fuzzer has to
// be a right answer to it.
var answersAll = &Responder{ifi: Iface{MAC: macB}, prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}

func checkParsed(t *testing.T, frame []byte) {
	before := bytes.Clone(frame)
	m, ok := parse(frame)
	if !ok {
		return
	}
	if m.sender != nil && (len(m.sender) != 6 || !unicast(m.sender)) || m.target.IsMulticast() || m.target.Is4() != m.senderIP.Is4() {
		t.Errorf("taken: %+v", m)
	}
	out := answersAll.answer(frame, nil)
	if !bytes.Equal(frame, before) {
		t.Error("the frame was changed")
	}
	if out == nil {
		return
	}
	a, ok := parse(out)
	if !ok || m.answer || !a.answer || a.target != m.target || !bytes.Equal(a.sender, macB) || len(out) < minEthernetLen || !unicast(out[:6]) {
		t.Errorf("the answer to %+v is %+v, %v", m, a, ok)
	}
}

func FuzzParseARP(f *testing.F) {
	for _, v := range kernelFrames(f) {
		if v.want.target.Is4() {
			f.Add(v.frame)
		}
	}
	f.Fuzz(checkParsed)
}

// FuzzParseNDP mends the checksum, which would keep nearly all inputs out.
func FuzzParseNDP(f *testing.F) {
	for _, v := range kernelFrames(f) {
		if v.want.target.Is6() {
			f.Add(v.frame, true)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, mend bool) {
		if end := len(frame); mend && end >= ethernetLen+ipv6Len+ndpLen {
			length := int(binary.BigEndian.Uint16(frame[18:]))
			icmp := frame[ethernetLen+ipv6Len:]
			if icmp = icmp[:min(length, len(icmp))]; len(icmp) >= 4 {
				icmp[2], icmp[3] = 0, 0
				binary.BigEndian.PutUint16(icmp[2:], icmpChecksum(frame[22:54], icmp))
			}
		}
		checkParsed(t, frame)
	})
}
