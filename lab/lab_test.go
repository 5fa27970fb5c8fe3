package lab_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// helper names, in the environment of a copy of the test binary, what it is to
// be instead.
const helper = "PKTGEN_LAB_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helper); name != "" {
		os.Exit(helpers[name]())
	}
	testnet.Main(m)
}

var helpers = map[string]func() int{
	"hold":         hold,
	"unprivileged": unprivileged,
	"reexec":       reexecPass,
	"reexec-wait":  reexecWait,
}

// hold makes a test bed and keeps it until standard input ends.
func hold() int {
	l, err := lab.Wire(lab.Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(l.Name)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// names lists what stands in /run/netns, which is the test binary's own.
func names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(netdev.NamedNamespaces)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// alone is the start of a test that counts namespaces.
func alone(t *testing.T) {
	t.Helper()
	testnet.Require(t)
	if left := names(t); len(left) > 0 {
		t.Fatalf("an earlier test has left %q", left)
	}
	t.Cleanup(func() {
		if left := names(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

func wire(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	l, err := lab.Wire(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// etherType is the local experimental EtherType 1 of IEEE 802.
const etherType = 0x88b5

// socket is an AF_PACKET socket on an interface, in its namespace. It receives
// frames of etherType, for a second at most.
func socket(r netdev.Ref) (fd int, err error) {
	const protocol = etherType>>8 | etherType&0xff<<8 // in network byte order, packet(7)
	err = r.Do(func() error {
		info, err := netdev.Lookup(netdev.Ref{Name: r.Name})
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("socket(AF_PACKET): %w", err)
		}
		return errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: info.Index}))
	})
	return fd, err
}

// pass sends a frame from one interface, and says whether it came to the other.
func pass(from, to netdev.Ref, octets int, mark byte) error {
	in, err := socket(to)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := socket(from)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	frame := bytes.Repeat([]byte{mark}, octets)
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01")
	binary.BigEndian.PutUint16(frame[12:], etherType)
	if _, err := unix.Write(out, frame); err != nil {
		return fmt.Errorf("%v: send: %w", from, err)
	}
	got := make([]byte, 1<<16)
	n, err := unix.Read(in, got)
	if err != nil {
		return fmt.Errorf("%v: receive: %w", to, err)
	}
	if !bytes.Equal(got[:n], frame) {
		return fmt.Errorf("%v: another frame came", to)
	}
	return nil
}

// TestWire: the ends are where they are said to be, as they were asked for, and
// joined in pairs, both ways.
func TestWire(t *testing.T) {
	alone(t)
	for _, o := range []lab.Options{
		{},
		{Name: "pktgen-named", MTU: 9000, Queues: 4, Pairs: 3},
		{Name: "short", MTU: 68},
		{MTU: 65535},
	} {
		l := wire(t, o)
		pairs, mtu, queues := max(o.Pairs, 1), o.MTU, max(o.Queues, 1)
		if mtu == 0 {
			mtu = 1500
		}
		if len(l.Pairs) != pairs {
			t.Fatalf("%+v: %d pairs", o, len(l.Pairs))
		}
		if !strings.HasPrefix(l.Name, "pktgen-") || !strings.Contains(l.Name, o.Name) {
			t.Errorf("%+v: name %s", o, l.Name)
		}
		for i, p := range l.Pairs {
			want := lab.Pair{
				TX: netdev.Ref{Netns: l.Name + "-tx", Name: fmt.Sprintf("eth%d", 31+2*i)},
				RX: netdev.Ref{Netns: l.Name + "-rx", Name: fmt.Sprintf("eth%d", 32+2*i)},
			}
			if p != want {
				t.Errorf("pair %d: %+v, want %+v", i, p, want)
			}
			for _, r := range []netdev.Ref{p.TX, p.RX} {
				info, err := netdev.Lookup(r)
				if err != nil {
					t.Fatal(err)
				}
				if !info.Up || !info.Running || info.MTU != mtu || info.TxQueues != queues || info.RxQueues != queues || len(info.Addrs) != 0 {
					t.Errorf("%v: %+v", r, info)
				}
			}
			octets := min(mtu+14, 9014)
			if err := errors.Join(pass(p.TX, p.RX, octets, 1), pass(p.RX, p.TX, octets, 2)); err != nil {
				t.Error(err)
			}
		}
		lo, err := netdev.Lookup(netdev.Ref{Netns: l.Name + "-rx", Name: "lo"})
		if err != nil || !lo.Up {
			t.Errorf("lo: %+v, %v", lo, err)
		}
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if left := names(t); len(left) > 0 {
			t.Errorf("after Close: %q", left)
		}
		if _, err := netdev.Lookup(l.Pairs[0].TX); !errors.Is(err, netdev.ErrNoNamespace) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestNetnsCommands: ip-netns(8) works on a test bed.
func TestNetnsCommands(t *testing.T) {
	alone(t)
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("needs ip of iproute2")
	}
	l := wire(t, lab.Options{Pairs: 2})
	out, err := exec.Command(ip, "netns", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"-tx", "-rx"} {
		if !slices.ContainsFunc(strings.Split(string(out), "\n"), func(s string) bool { return strings.Fields(s + " .")[0] == l.Name+role }) {
			t.Errorf("ip netns list lacks %s%s:\n%s", l.Name, role, out)
		}
	}
	if out, err = exec.Command(ip, "netns", "exec", l.Name+"-rx", "ls", "/sys/class/net").Output(); err != nil || string(out) != "eth32\neth34\nlo\n" {
		t.Errorf("ip netns exec: %q, %v", out, err)
	}
}

// TestQuiet: the kernel sends nothing of its own. That it has had the time to is
// seen on a second test bed, where IPv6 is on.
func TestQuiet(t *testing.T) {
	alone(t)
	quiet, loud := wire(t, lab.Options{}), wire(t, lab.Options{})
	sent := func(r netdev.Ref) uint64 {
		p, err := netdev.Open(r)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		c, err := p.Counters()
		if err != nil {
			t.Fatal(err)
		}
		return c.TxPackets
	}
	testnet.In(t, loud.Pairs[0].TX, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("0"), 0)
	})
	// Multicast listener reports, duplicate address detection, a first router solicitation.
	for limit := time.Now().Add(20 * time.Second); sent(loud.Pairs[0].TX) < 3; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("with IPv6 on the kernel sends nothing either")
		}
	}
	for _, r := range []netdev.Ref{quiet.Pairs[0].TX, quiet.Pairs[0].RX} {
		if n := sent(r); n != 0 {
			t.Errorf("%v: the kernel has sent %d frames", r, n)
		}
	}
}

// TestTwoLabs: two stand side by side, and do not hear each other.
func TestTwoLabs(t *testing.T) {
	alone(t)
	a, b := wire(t, lab.Options{}), wire(t, lab.Options{})
	if a.Name == b.Name {
		t.Fatalf("both are %s", a.Name)
	}
	if err := pass(a.Pairs[0].TX, a.Pairs[0].RX, 60, 1); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		r    netdev.Ref
		want uint64
	}{{a.Pairs[0].RX, 1}, {b.Pairs[0].RX, 0}} {
		p, err := netdev.Open(c.r)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if got, err := p.Counters(); err != nil || got.RxPackets != c.want {
			t.Errorf("%v: %d frames, want %d (%v)", c.r, got.RxPackets, c.want, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := pass(b.Pairs[0].TX, b.Pairs[0].RX, 60, 1); err != nil {
		t.Errorf("after the other was closed: %v", err)
	}
}

// TestWireFails: nothing is left, and nothing of others is taken away.
func TestWireFails(t *testing.T) {
	alone(t)
	for _, o := range []lab.Options{{MTU: 67}, {MTU: 65536}, {MTU: -1}, {Queues: 5000}, {Name: "a/b"}, {Name: strings.Repeat("x", 300)}} {
		l, err := lab.Wire(o)
		if err == nil {
			t.Errorf("%+v: no error", o)
			_ = l.Close()
			continue
		}
		if !strings.HasPrefix(err.Error(), "lab pktgen-") {
			t.Errorf("%+v: %v: does not say which", o, err)
		}
		if left := names(t); len(left) > 0 {
			t.Fatalf("%+v: left %q", o, left)
		}
	}

	first := wire(t, lab.Options{Name: "pktgen-one"})
	if _, err := lab.Wire(lab.Options{Name: "pktgen-one"}); !errors.Is(err, os.ErrExist) {
		t.Errorf("the same name twice: %v", err)
	}
	if err := pass(first.Pairs[0].TX, first.Pairs[0].RX, 60, 1); err != nil {
		t.Errorf("the first of that name: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}

	// The second namespace's name is taken: the first has to go.
	taken := filepath.Join(netdev.NamedNamespaces, "pktgen-two-rx")
	if err := os.WriteFile(taken, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Wire(lab.Options{Name: "pktgen-two"}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a taken name: %v", err)
	}
	if left := names(t); !slices.Equal(left, []string{"pktgen-two-rx"}) {
		t.Errorf("left %q", left)
	}
	if err := os.Remove(taken); err != nil {
		t.Error(err)
	}
}

// unprivileged is what an ordinary user can do without Reexec.
func unprivileged() int {
	l, err := lab.Wire(lab.Options{})
	if l != nil || !errors.Is(err, unix.EPERM) {
		fmt.Println("Wire:", l, err)
	}
	if all, err := lab.List(); err != nil || len(all) != 2 || !all[0].Held || all[0].Interfaces != nil {
		fmt.Println("List:", all, err)
	}
	if removed, err := lab.Clean(); err != nil || len(removed) != 0 {
		fmt.Println("Clean, nothing to do:", removed, err)
	}
	return 0
}

func TestWithoutPrivilege(t *testing.T) {
	alone(t)
	if !lab.Privileged() {
		t.Error("this test runs without privilege")
	}
	wire(t, lab.Options{})
	if out, err := ordinary(t, "unprivileged").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKilled: what a killed process leaves is known for it, and Clean removes
// that alone.
func TestKilled(t *testing.T) {
	alone(t)
	own := wire(t, lab.Options{})
	stray := filepath.Join(netdev.NamedNamespaces, "pktgen-stray") // killed between two system calls
	foreign := filepath.Join(netdev.NamedNamespaces, "foreign")
	for _, path := range []string{stray, foreign} {
		if err := os.WriteFile(path, nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Remove(foreign)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helper+"=hold")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	name := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(name, fmt.Sprintf("pktgen-%d", cmd.Process.Pid)) {
		t.Fatalf("the helper says %q (%v)", line, err)
	}
	list := func(held bool) {
		t.Helper()
		got, err := lab.List()
		if err != nil {
			t.Error(err)
		}
		want := []lab.Entry{
			{Name: own.Name + "-rx", Held: true, Interfaces: []string{"eth32"}},
			{Name: own.Name + "-tx", Held: true, Interfaces: []string{"eth31"}},
			{Name: name + "-rx", Held: held, Interfaces: []string{"eth32"}},
			{Name: name + "-tx", Held: held, Interfaces: []string{"eth31"}},
			{Name: "pktgen-stray"},
		}
		slices.SortFunc(want, func(a, b lab.Entry) int { return strings.Compare(a.Name, b.Name) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("List (-want +got)\n%s", diff)
		}
	}
	list(true)
	if removed, err := lab.Clean(); err != nil || !slices.Equal(removed, []string{"pktgen-stray"}) {
		t.Errorf("Clean, while the helper lives: %q, %v", removed, err)
	}
	if err := os.WriteFile(stray, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	list(false)
	removed, err := lab.Clean()
	slices.Sort(removed)
	if want := []string{name + "-rx", name + "-tx", "pktgen-stray"}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("Clean: %q, %v; want %q", removed, err, want)
	}
	if removed, err := lab.Clean(); err != nil || len(removed) > 0 {
		t.Errorf("Clean again: %q, %v", removed, err)
	}
	if err := pass(own.Pairs[0].TX, own.Pairs[0].RX, 60, 1); err != nil {
		t.Errorf("the test bed of this process: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("what is nobody's test bed: %v", err)
	}
}

// TestCleanMeanwhile: Clean, at any moment, takes nothing of a test bed that is
// being made.
func TestCleanMeanwhile(t *testing.T) {
	alone(t)
	var makers, cleaner sync.WaitGroup
	done := make(chan struct{})
	cleaner.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if removed, err := lab.Clean(); err != nil || len(removed) > 0 {
				t.Errorf("Clean: %q, %v", removed, err)
			}
		}
	})
	for range 4 {
		makers.Go(func() {
			for range 20 {
				l, err := lab.Wire(lab.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := netdev.Lookup(l.Pairs[0].RX); err != nil {
					t.Error(err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	close(done)
	cleaner.Wait()
}
