package netdev_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func qdiscs(t *testing.T, p *netdev.Port) netdev.QdiscCounters {
	t.Helper()
	c, err := p.Qdiscs()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tc runs tc(8) of iproute2 in the interface's namespace; DEV in the arguments is
// the interface.
func tc(t *testing.T, r netdev.Ref, args string) []byte {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(args, "DEV", r.Name))
	out, err := exec.Command("tc", append([]string{"-netns", r.Netns}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %s: %v\n%s", args, err, out)
	}
	return out
}

// tcQdisc is a discipline as tc -s -j shows it.
type tcQdisc struct {
	Kind                              string
	Root                              bool
	Drops, Overlimits, Requeues, Qlen uint64
}

func tcQdiscs(t *testing.T, r netdev.Ref) (all []tcQdisc) {
	t.Helper()
	out := tc(t, r, "-s -j qdisc show dev DEV")
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return all
}

// offer sends frames through the disciplines from a plain AF_PACKET socket, and
// counts those that the kernel says it has dropped.
func offer(t *testing.T, r netdev.Ref, frames, octets int) (refused uint64) {
	t.Helper()
	info := lookup(t, r)
	testnet.In(t, r, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := make([]byte, octets)
		copy(frame[6:], info.MAC)
		frame[12], frame[13] = 0x88, 0xb5 // for experiments, IEEE 802
		for range frames {
			switch err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: info.Index}); {
			case errors.Is(err, unix.ENOBUFS): // net_xmit_errno, linux/netdevice.h
				refused++
			case err != nil:
				return err
			}
		}
		return nil
	})
	return refused
}

// poll asks until it is so; the limit only ends a test that fails.
func poll(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("never so: %s", what)
		}
	}
}

// TestQdiscs compares with what did not come out, with what the socket was told,
// and with tc(8), for trees in which a parent shows its children's drops as its own.
func TestQdiscs(t *testing.T) {
	testnet.Require(t)
	if _, err := exec.LookPath("tc"); err != nil {
		t.Skip("needs tc of iproute2, to set disciplines and to compare with")
	}
	for _, c := range []struct {
		name     string
		queues   int
		tc       []string
		mirrored bool // tc shows some drops twice
	}{
		{"tbf", 1, []string{
			"qdisc add dev DEV root tbf rate 200kbit burst 500 limit 3000",
		}, false},
		{"pfifo in tbf", 1, []string{
			"qdisc add dev DEV root handle 1: tbf rate 200kbit burst 500 limit 100000",
			"qdisc add dev DEV parent 1:1 handle 2: pfifo limit 20",
		}, true},
		{"pfifo in htb", 1, []string{
			"qdisc add dev DEV root handle 1: htb default 1",
			"class add dev DEV parent 1: classid 1:1 htb rate 200kbit burst 500",
			"qdisc add dev DEV parent 1:1 handle 2: pfifo limit 20",
		}, true},
		{"pfifo in tbf in htb", 1, []string{
			"qdisc add dev DEV root handle 1: htb default 1",
			"class add dev DEV parent 1: classid 1:1 htb rate 400kbit burst 500",
			"qdisc add dev DEV parent 1:1 handle 2: tbf rate 200kbit burst 500 limit 100000",
			"qdisc add dev DEV parent 2:1 handle 3: pfifo limit 20",
		}, true},
		{"tbf in mq", 2, []string{
			"qdisc add dev DEV root handle 1: mq",
			"qdisc add dev DEV parent 1:1 handle 2: tbf rate 200kbit burst 500 limit 3000",
			"qdisc add dev DEV parent 1:2 handle 3: tbf rate 200kbit burst 500 limit 3000",
		}, true},
		{"clsact beside tbf", 1, []string{
			"qdisc add dev DEV clsact",
			"qdisc add dev DEV root tbf rate 200kbit burst 500 limit 3000",
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, _ := testnet.Wire(t, lab.Options{Queues: c.queues})
			p := open(t, tx)
			if got := qdiscs(t, p); got != (netdev.QdiscCounters{}) {
				t.Errorf("without a discipline: %+v", got)
			}
			for _, args := range c.tc {
				tc(t, tx, args)
			}
			start := counters(t, p)
			before := qdiscs(t, p)

			const frames, octets = 200, 100
			const large, largeOctets = 7, 1000 // no burst of tbf holds one; pfifo and htb take it
			refused := offer(t, tx, frames, octets)
			refused += offer(t, tx, large, largeOctets)
			const sent = frames + large

			if got := qdiscs(t, p); got.Backlog == 0 {
				t.Errorf("nothing waits: %+v", got)
			}
			poll(t, "what was sent has come out, was dropped, or waits", func() bool {
				got := qdiscs(t, p)
				return counters(t, p).TxPackets-start.TxPackets+got.Drops+got.Backlog == sent
			})
			poll(t, "nothing waits", func() bool { return qdiscs(t, p).Backlog == 0 })
			// A frame leaves the discipline before the device counts it.
			poll(t, "drops are what was sent and has not come out", func() bool {
				return qdiscs(t, p).Drops == sent-(counters(t, p).TxPackets-start.TxPackets)
			})
			got, err := qdiscs(t, p).Since(before)
			if err != nil {
				t.Fatal(err)
			}
			if got.Drops != refused {
				t.Errorf("%d drops, the socket was told of %d", got.Drops, refused)
			}
			if tbf := strings.Contains(c.name, "tbf"); got.Drops == 0 || tbf && got.Overlimits == 0 {
				t.Errorf("the test compares nothing: %+v", got)
			}

			var root, all tcQdisc
			for _, q := range tcQdiscs(t, tx) {
				if q.Root {
					root = q
				}
				all.Drops += q.Drops
				if q.Kind != "mq" { // which repeats its children's
					all.Overlimits += q.Overlimits
					all.Requeues += q.Requeues
				}
			}
			if got.Drops != root.Drops || got.Overlimits != all.Overlimits || got.Requeues != all.Requeues {
				t.Errorf("%+v; tc: root %+v, all %+v", got, root, all)
			}
			if (all.Drops > root.Drops) != c.mirrored {
				t.Errorf("tc: %d drops of all disciplines, %d of the root: not as the comment at sumQdiscs has it", all.Drops, root.Drops)
			}
		})
	}
}

// TestQdiscsChildReplaced: what a child has dropped does not go with it.
func TestQdiscsChildReplaced(t *testing.T) {
	testnet.Require(t)
	if _, err := exec.LookPath("tc"); err != nil {
		t.Skip("needs tc of iproute2, to set disciplines")
	}
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	tc(t, tx, "qdisc add dev DEV root handle 1: tbf rate 200kbit burst 500 limit 100000")
	tc(t, tx, "qdisc add dev DEV parent 1:1 handle 2: pfifo limit 20")
	refused := offer(t, tx, 100, 100)
	before := qdiscs(t, p)
	if before.Drops != refused || refused == 0 {
		t.Fatalf("%+v, refused %d", before, refused)
	}
	poll(t, "nothing waits", func() bool { return qdiscs(t, p).Backlog == 0 })
	tc(t, tx, "qdisc replace dev DEV parent 1:1 handle 3: pfifo limit 10")
	refused = offer(t, tx, 100, 100)
	if got, err := qdiscs(t, p).Since(before); err != nil || got.Drops != refused || refused == 0 {
		t.Errorf("with a new child: %+v, %v; refused %d", got, err, refused)
	}
	// A new root has nothing of the old.
	tc(t, tx, "qdisc del dev DEV root")
	if got, err := qdiscs(t, p).Since(before); !errors.Is(err, netdev.ErrReset) {
		t.Errorf("with another root: %+v, %v; want ErrReset", got, err)
	}
}

func TestQdiscsGone(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error { return h.LinkDel(link) })
	if _, err := p.Qdiscs(); !errors.Is(err, netdev.ErrLost) {
		t.Errorf("interface removed: %v, want ErrLost", err)
	}
	p.Close()
	if _, err := p.Qdiscs(); !errors.Is(err, os.ErrClosed) || !strings.HasPrefix(err.Error(), tx.String()+": qdiscs") {
		t.Errorf("closed: %v", err)
	}
}

// TestQdiscSince: no counter is forgotten, and each that goes back is an error.
func TestQdiscSince(t *testing.T) {
	before := netdev.QdiscCounters{Drops: 100, Overlimits: 200, Requeues: 300, Backlog: 9}
	after := netdev.QdiscCounters{Drops: 101, Overlimits: 202, Requeues: 303, Backlog: 4}
	if got, err := after.Since(before); err != nil || got != (netdev.QdiscCounters{Drops: 1, Overlimits: 2, Requeues: 3, Backlog: 4}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"Drops", "Overlimits", "Requeues"} {
		reset := after
		reflect.ValueOf(&reset).Elem().FieldByName(name).SetUint(1)
		if _, err := reset.Since(before); !errors.Is(err, netdev.ErrReset) || !strings.Contains(err.Error(), strings.ToLower(name)) {
			t.Errorf("%s went back: %v", name, err)
		}
	}
}
