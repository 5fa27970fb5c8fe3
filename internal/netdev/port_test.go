package netdev_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func open(t *testing.T, r netdev.Ref) *netdev.Port {
	t.Helper()
	p, err := netdev.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func counters(t *testing.T, p *netdev.Port) netdev.Counters {
	t.Helper()
	c, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// send sends frames of the local experimental EtherType 1 (IEEE 802) from an
// interface.
func send(t *testing.T, r netdev.Ref, frames, octets int) {
	t.Helper()
	info := lookup(t, r)
	testnet.In(t, r, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := make([]byte, octets)
		copy(frame, bytes.Repeat([]byte{0xff}, 6))
		copy(frame[6:], info.MAC)
		binary.BigEndian.PutUint16(frame[12:], 0x88b5)
		for range frames {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: info.Index}); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCounters compares with what was sent, and with /proc/net/dev.
func TestCounters(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	ptx, prx := open(t, tx), open(t, rx)
	for _, p := range []*netdev.Port{ptx, prx} {
		if diff := cmp.Diff(netdev.Counters{}, counters(t, p), cmp.Comparer(func(a, b time.Time) bool { return true })); diff != "" {
			t.Errorf("at first: (-want +got)\n%s", diff)
		}
	}
	const n, octets = 1000, 100
	before := time.Now()
	send(t, tx, n, octets)
	if c := counters(t, ptx); c.TxPackets != n || c.TxBytes != n*octets || c.RxPackets != 0 || c.Time.Before(before) {
		t.Errorf("sent %d frames of %d octets, counted %+v", n, octets, c)
	}
	c := counters(t, prx)
	if c.RxPackets != n || c.RxBytes != n*octets || c.TxPackets != 0 {
		t.Errorf("sent %d frames of %d octets, the other end counted %+v", n, octets, c)
	}
	testnet.In(t, rx, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if f[0] != rx.Name+":" {
				continue
			}
			ours := fmt.Sprint(c.RxBytes, c.RxPackets, c.RxErrors, c.RxDropped+c.RxMissed, c.RxFifo)
			if kernel := strings.Join(f[1:6], " "); ours != kernel {
				t.Errorf("octets, packets, errors, dropped, fifo: %s; /proc/net/dev: %s", ours, kernel)
			}
			return nil
		}
		return errors.New("/proc/net/dev lacks " + rx.Name)
	})
}

// TestPortGone: what was removed is an error that says so, and a closed Port does
// not answer for an interface of the caller's namespace.
func TestPortGone(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	ptx, prx := open(t, tx), open(t, rx)
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error { return h.LinkDel(link) })
	for _, p := range []*netdev.Port{ptx, prx} {
		if _, err := p.Counters(); !errors.Is(err, netdev.ErrLost) {
			t.Errorf("Counters: %v, want ErrLost", err)
		}
		if s, err := p.State(); err != nil || !s.Deleted || !errors.Is(s.Lost(), netdev.ErrLost) {
			t.Errorf("State: %+v, %v, want deleted", s, err)
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.Counters(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Counters of a closed Port: %v", err)
		}
		if _, err := p.State(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("State of a closed Port: %v", err)
		}
		if err := p.Watch(t.Context(), func(netdev.State) {}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Watch of a closed Port: %v", err)
		}
	}
}

// TestPortShared: a Port is safe from any goroutine, Close included.
func TestPortShared(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				if _, err := p.Counters(); err != nil {
					if !errors.Is(err, os.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for range 100 {
		if _, err := p.State(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// watch collects what Watch tells.
func watch(t *testing.T, p *netdev.Port) <-chan netdev.State {
	t.Helper()
	states := make(chan netdev.State, 1000)
	if err := p.Watch(t.Context(), func(s netdev.State) { states <- s }); err != nil {
		t.Fatal(err)
	}
	return states
}

// await waits for a state; the limit only ends a test that fails.
func await(t *testing.T, states <-chan netdev.State, what string, is func(netdev.State) bool) netdev.State {
	t.Helper()
	for limit := time.After(10 * time.Second); ; {
		select {
		case s := <-states:
			if is(s) {
				return s
			}
		case <-limit:
			t.Fatalf("Watch did not tell: %s", what)
		}
	}
}

func TestWatch(t *testing.T) {
	lost := func(s netdev.State) bool { return s.Lost() != nil }
	fine := func(s netdev.State) bool { return s.Lost() == nil }
	set := func(f func(h *netlink.Handle, link netlink.Link) error) func(*testing.T, netdev.Ref, netdev.Ref) {
		return func(t *testing.T, tx, _ netdev.Ref) { change(t, tx, f) }
	}
	setPeer := func(f func(h *netlink.Handle, link netlink.Link) error) func(*testing.T, netdev.Ref, netdev.Ref) {
		return func(t *testing.T, _, rx netdev.Ref) { change(t, rx, f) }
	}
	mac := net.HardwareAddr{0x02, 1, 2, 3, 4, 5}
	for _, c := range []struct {
		name  string
		do    func(t *testing.T, tx, rx netdev.Ref)
		is    func(netdev.State) bool
		error string
	}{
		{"down", set(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) }),
			func(s netdev.State) bool { return lost(s) && !s.Up && !s.Deleted }, "set down"},
		{"no carrier", setPeer(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) }),
			func(s netdev.State) bool { return lost(s) && s.Up && !s.Running && !s.Deleted }, "no carrier"},
		{"deleted", set(func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) }),
			func(s netdev.State) bool { return lost(s) && s.Deleted }, "removed"},
		{"the other end deleted", setPeer(func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) }),
			func(s netdev.State) bool { return s.Deleted }, "removed"},
		{"moved away", func(t *testing.T, tx, rx netdev.Ref) {
			to, err := os.Open(netdev.NamedNamespaces + "/" + rx.Netns)
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			change(t, tx, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNsFd(l, int(to.Fd())) })
		}, func(s netdev.State) bool { return s.Deleted }, "removed"},
		{"MTU", set(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, 1300) }),
			func(s netdev.State) bool { return fine(s) && s.MTU == 1300 }, ""},
		{"address", set(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetHardwareAddr(l, mac) }),
			func(s netdev.State) bool { return fine(s) && s.MAC == mac.String() }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			states := watch(t, open(t, tx))
			await(t, states, "the state at first", func(s netdev.State) bool {
				return fine(s) && s.Up && s.Running && s.MTU == 1500 && s.Ref == tx
			})
			c.do(t, tx, rx)
			err := await(t, states, c.name, c.is).Lost()
			if c.error == "" {
				return
			}
			if !errors.Is(err, netdev.ErrLost) || !strings.Contains(err.Error(), c.error) || !strings.HasPrefix(err.Error(), tx.String()+":") {
				t.Errorf("error %q, want %q of %v", err, c.error, tx)
			}
		})
	}
}

// TestWatchFlap: what was undone at once is told all the same: the run it fell
// into is void.
func TestWatchFlap(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	states := watch(t, open(t, tx))
	await(t, states, "the state at first", func(s netdev.State) bool { return s.Lost() == nil })
	change(t, tx, func(h *netlink.Handle, l netlink.Link) error {
		return errors.Join(h.LinkSetDown(l), h.LinkSetUp(l))
	})
	await(t, states, "down", func(s netdev.State) bool { return !s.Up })
	await(t, states, "up again", func(s netdev.State) bool { return s.Lost() == nil })
}

// TestWatchBridge: a port that leaves its bridge is told of by RTM_DELLINK,
// family AF_BRIDGE, and has not gone.
func TestWatchBridge(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	states := watch(t, open(t, tx))
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
	change(t, tx, func(h *netlink.Handle, l netlink.Link) error {
		return errors.Join(h.LinkAdd(br), h.LinkSetUp(br), h.LinkSetMaster(l, br), h.LinkSetNoMaster(l), h.LinkDel(br), h.LinkSetMTU(l, 1400))
	})
	await(t, states, "the MTU, set last", func(s netdev.State) bool {
		if s.Deleted {
			t.Error("told as deleted")
		}
		return s.MTU == 1400
	})
}

// TestWatchOverrun: more changes than the socket holds, while nobody reads: what
// is true in the end is told.
func TestWatchOverrun(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	first, hold := make(chan struct{}), make(chan struct{})
	states := make(chan netdev.State, 10000)
	var told atomic.Int32
	err := p.Watch(t.Context(), func(s netdev.State) {
		if told.Add(1) == 1 {
			close(first)
			<-hold
		}
		states <- s
	})
	if err != nil {
		t.Fatal(err)
	}
	<-first
	const changes = 2000 // of more than 1 KB each, into 208 KB (net.core.rmem_default)
	change(t, tx, func(h *netlink.Handle, l netlink.Link) error {
		for i := range changes {
			if err := h.LinkSetMTU(l, 1400+i%2); err != nil {
				return err
			}
		}
		return h.LinkSetDown(l)
	})
	close(hold)
	await(t, states, "down, though its message was dropped", func(s netdev.State) bool { return !s.Up })
	if n := told.Load(); n >= changes {
		t.Errorf("%d changes told of %d: the socket did not overrun, and the test tests nothing", n, changes)
	}
	change(t, tx, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) })
	await(t, states, "a change after that", func(s netdev.State) bool { return s.Up })
}

// TestWatchEnds: with its context, and with the interface; no goroutine stays,
// and nothing is told afterwards.
func TestWatchEnds(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	before := runtime.NumGoroutine()
	gone := func(why string) {
		t.Helper()
		for limit := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(limit) {
				t.Fatalf("%s: %d goroutines, before %d", why, runtime.NumGoroutine(), before)
			}
		}
	}
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan struct{}, 1)
		var ended bool
		err := p.Watch(ctx, func(netdev.State) {
			if ended {
				t.Error("told after the end")
			}
			select {
			case first <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		<-first
		cancel()
		gone("context ended")
		ended = true
		change(t, tx, func(h *netlink.Handle, l netlink.Link) error {
			return errors.Join(h.LinkSetMTU(l, 1400), h.LinkSetMTU(l, 1500))
		})
	}
	if err := p.Watch(context.WithoutCancel(t.Context()), func(netdev.State) {}); err != nil {
		t.Fatal(err)
	}
	change(t, tx, func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) })
	gone("interface removed")
}

// TestSince: no counter is forgotten, and each that goes back is an error that
// names it.
func TestSince(t *testing.T) {
	var before, after netdev.Counters
	b, a := reflect.ValueOf(&before).Elem(), reflect.ValueOf(&after).Elem()
	after.Time = time.Now()
	for i := 1; i < b.NumField(); i++ {
		b.Field(i).SetUint(uint64(100 * i))
		a.Field(i).SetUint(uint64(101 * i))
	}
	d, err := after.Since(before)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := 1, reflect.ValueOf(d); i < v.NumField(); i++ {
		if v.Field(i).Uint() != uint64(i) {
			t.Errorf("%s: %d, want %d", v.Type().Field(i).Name, v.Field(i).Uint(), i)
		}
		was := a.Field(i).Uint()
		a.Field(i).SetUint(1)
		if _, err := after.Since(before); !errors.Is(err, netdev.ErrReset) || !strings.Contains(err.Error(), fmt.Sprintf("from %d to 1", 100*i)) {
			t.Errorf("%s went back: %v", v.Type().Field(i).Name, err)
		}
		a.Field(i).SetUint(was)
	}
}
