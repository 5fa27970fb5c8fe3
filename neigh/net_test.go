package neigh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func iface(t *testing.T, r netdev.Ref) Iface {
	t.Helper()
	info, err := netdev.Lookup(r)
	if err != nil {
		t.Fatal(err)
	}
	return Iface{Index: info.Index, Name: info.Ref.Name, MAC: info.MAC}
}

// sh runs a program in the interface's namespace.
func sh(t *testing.T, r netdev.Ref, line string) string {
	t.Helper()
	var out []byte
	testnet.In(t, r, func() (err error) {
		out, err = exec.Command("sh", "-c", line).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return err
	})
	return string(out)
}

// hosts gives the receiving end addresses that its kernel answers for.
func hosts(t *testing.T, r netdev.Ref) {
	sh(t, r, "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/"+r.Name+"/disable_ipv6")
	sh(t, r, "ip addr add 198.18.0.2/24 dev "+r.Name+"; ip addr add 2001:2::2/64 dev "+r.Name+" nodad")
}

// TestResolveFromKernel: the kernel of the other end answers our questions.
func TestResolveFromKernel(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	hosts(t, rx)
	ifi, want := iface(t, tx), iface(t, rx).MAC
	for _, q := range []Query{
		{Src: ip4A, Dst: ip4B},
		{Src: ip6A, Dst: ip6B},
	} {
		var mac net.HardwareAddr
		testnet.In(t, tx, func() (err error) {
			mac, err = Resolve(context.Background(), ifi, q)
			return err
		})
		if mac.String() != want.String() {
			t.Errorf("%v: %v, want %v", q.Dst, mac, want)
		}
	}
}

// TestKernelAsksResponder: the kernel of the other end finds every test address
// with us, and none of the others.
func TestKernelAsksResponder(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	hosts(t, rx) // here the asker
	ifi := iface(t, tx)
	ifi.MAC = LocalMAC(7)
	var r *Responder
	testnet.In(t, tx, func() (err error) {
		r, err = NewResponder(ifi, netdev.BenchmarkPrefixes(), ResponderOptions{Exclude: []netip.Addr{netip.MustParseAddr("198.18.0.77")}})
		return err
	})
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- r.Run(ctx) }()
	for _, c := range []struct {
		addr, dev string
		want      bool
	}{
		{"198.18.0.1", rx.Name, true},
		{"198.18.0.254", rx.Name, true},
		{"2001:2::1", rx.Name, true},
		{"198.18.0.77", rx.Name, false},
	} {
		// A datagram to the address makes the kernel ask.
		family := ""
		if strings.Contains(c.addr, ":") {
			family = "-6 "
		}
		sh(t, rx, "bash -c 'echo > /dev/udp/"+c.addr+"/9' || true")
		found := false
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !found; time.Sleep(10 * time.Millisecond) {
			state := sh(t, rx, "ip "+family+"neigh show "+c.addr+" dev "+c.dev)
			found = strings.Contains(state, ifi.MAC.String())
			if strings.Contains(state, "FAILED") {
				break
			}
		}
		if found != c.want {
			t.Errorf("%s: found %v, want %v", c.addr, found, c.want)
		}
	}
	if n := r.Answered(); n < 3 {
		t.Errorf("%d answered", n)
	}
	// An interface that goes down and up again is answered for as before.
	sh(t, tx, "ip link set "+tx.Name+" down && ip link set "+tx.Name+" up")
	sh(t, rx, "ip neigh flush dev "+rx.Name+"; bash -c 'echo > /dev/udp/198.18.0.1/9' || true")
	for end := time.Now().Add(5 * time.Second); !strings.Contains(sh(t, rx, "ip neigh show 198.18.0.1 dev "+rx.Name), ifi.MAC.String()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not answered after the interface was down")
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Run goes on after its context")
	}
}

// TestTagged: a question with a tag is answered with the same tag, which the
// kernel takes off and tells beside the frame.
func TestTagged(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	far := iface(t, rx)
	far.MAC = LocalMAC(8)
	var r *Responder
	testnet.In(t, rx, func() (err error) {
		r, err = NewResponder(far, netdev.BenchmarkPrefixes(), ResponderOptions{})
		return err
	})
	defer r.Close()
	go func() { _ = r.Run(context.Background()) }()
	var s *socket
	testnet.In(t, tx, func() (err error) {
		s, err = open(iface(t, tx), true)
		return err
	})
	defer s.close()
	if err := s.setDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []*VLAN{{ID: 100, PCP: 5}, {ID: 4094}, {ID: 0, PCP: 7}, nil} {
		if err := s.write(ask(macA, ip4A, ip4B, tag)); err != nil {
			t.Fatal(err)
		}
		frame, got, err := s.read()
		if err != nil {
			t.Fatal(err)
		}
		m, ok := parse(frame)
		if !ok || m.sender.String() != far.MAC.String() || (got == nil) != (tag == nil) || (tag != nil && *got != *tag) {
			t.Errorf("tag %+v: answer %+v, %v, tag %+v", tag, m, ok, got)
		}
	}
	for _, q := range []Query{{Src: ip4A, Dst: ip4B, VLAN: &VLAN{ID: 7}}, {Src: ip6A, Dst: ip6B, VLAN: &VLAN{ID: 7, PCP: 1}}} {
		var mac net.HardwareAddr
		testnet.In(t, tx, func() (err error) {
			mac, err = Resolve(context.Background(), iface(t, tx), q)
			return err
		})
		if mac.String() != far.MAC.String() {
			t.Errorf("%v: %v, want %v", q.Dst, mac, far.MAC)
		}
	}
}

// TestNobodyAnswers, and a question can be broken off.
func TestNobodyAnswers(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	ifi := iface(t, tx)
	for _, dst := range []netip.Addr{ip4B, ip6B} {
		src := ip4A
		if dst.Is6() {
			src = ip6A
		}
		err := tx.Do(func() error {
			_, err := Resolve(context.Background(), ifi, Query{Src: src, Dst: dst, Tries: 2, Interval: 20 * time.Millisecond})
			return err
		})
		if !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%v: %v", dst, err)
		}
	}
	why := errors.New("broken off")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	err := tx.Do(func() error {
		_, err := Resolve(ctx, ifi, Query{Src: ip4A, Dst: ip4B, Interval: time.Hour})
		return err
	})
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
}
