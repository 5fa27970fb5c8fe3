package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
	"pktgen/report"
)

// identity holds a result to what every run must obey, whatever happened.
func identity(t *testing.T, r *report.Result) {
	t.Helper()
	if r.TX == nil || r.RX == nil {
		t.Fatalf("a side is missing: %+v", r)
	}
	if got := r.RX.Frames - r.RX.Duplicates + r.RX.Lost; r.TX.Frames != got {
		t.Errorf("sent %d, but received %d - duplicates %d + lost %d = %d", r.TX.Frames, r.RX.Frames, r.RX.Duplicates, r.RX.Lost, got)
	}
	if sum := r.Loss.Path + r.Loss.RXNIC + r.Loss.Sink; sum != r.RX.Lost {
		t.Errorf("lost %d, but the places add up to %d: %+v", r.RX.Lost, sum, *r.Loss)
	}
	if r.Loss.Generator+r.Loss.TXNIC != r.TX.Unsent || r.TX.Offered != r.TX.Frames+r.TX.Unsent {
		t.Errorf("offered %d, sent %d, unsent %d: %+v", r.TX.Offered, r.TX.Frames, r.TX.Unsent, *r.Loss)
	}
	var tx, rx, txBytes, rxBytes, twice, reordered, corrupt, latencies uint64
	for _, iv := range r.Intervals {
		tx, txBytes = tx+iv.TX.Frames, txBytes+iv.TX.Bytes
		rx, rxBytes = rx+iv.RX.Frames, rxBytes+iv.RX.Bytes
		if iv.RX.Latency != nil {
			latencies += iv.RX.Latency.Count
		}
		twice, reordered, corrupt = twice+iv.RX.Duplicates, reordered+iv.RX.Reordered, corrupt+iv.RX.Corrupt
	}
	if tx != r.TX.Frames || rx != r.RX.Frames || txBytes != r.TX.Bytes || rxBytes != r.RX.Bytes {
		t.Errorf("intervals add up to %d, %d frames and %d, %d octets; the totals are %d, %d and %d, %d",
			tx, rx, txBytes, rxBytes, r.TX.Frames, r.RX.Frames, r.TX.Bytes, r.RX.Bytes)
	}
	if latencies != r.RX.Latency.Count {
		t.Errorf("intervals hold %d latencies, the total %d", latencies, r.RX.Latency.Count)
	}
	if twice != r.RX.Duplicates || reordered != r.RX.Reordered || corrupt != r.RX.Corrupt {
		t.Errorf("intervals add up to %d duplicates, %d reordered, %d corrupt; the totals are %d, %d, %d",
			twice, reordered, corrupt, r.RX.Duplicates, r.RX.Reordered, r.RX.Corrupt)
	}
}

// clean is identity for a run in which nothing may be amiss.
func clean(t *testing.T, r *report.Result) {
	t.Helper()
	identity(t, r)
	if x := r.RX; x.Lost+x.Duplicates+x.Reordered+x.Corrupt+x.OtherFrames+x.StaleFrames+x.SocketDrops != 0 {
		t.Errorf("amiss: %+v", *x)
	}
	if r.RX.Port.RxFrames < r.RX.Frames || r.TX.Port.TxFrames < r.TX.Frames {
		t.Errorf("the ports counted %d sent and %d received, we %d and %d", r.TX.Port.TxFrames, r.RX.Port.RxFrames, r.TX.Frames, r.RX.Frames)
	}
	if r.Verdict != verdictOK && r.Verdict != verdictGenerator { // a busy machine may miss the rate; it says so
		t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
	}
}

// TestPacedRun is the promise of the README: at 100,000 frames a second nothing
// is lost, and rate x time frames are sent.
func TestPacedRun(t *testing.T) {
	testnet.Require(t)
	r := mustRun(t, "lab", "wire", "--", "run", "--rate", "100kpps", "--duration", "5s", "--json")
	clean(t, r)
	if d := int64(r.TX.Frames) - 500_000; d < -64 || d > 64 {
		t.Errorf("%d frames sent, want 500,000 within a batch", r.TX.Frames)
	}
	if l := r.RX.Latency; l.Clock != "same-host" || l.Count != r.RX.Frames || *l.Min <= 0 || *l.P50 < *l.Min || *l.P99 < *l.P50 || *l.Max < *l.P999 {
		t.Errorf("latency %+v", l)
	}
}

// TestExactCount: --count is exact in total, with any number of workers, for
// every kind of frame.
func TestExactCount(t *testing.T) {
	testnet.Require(t)
	for _, args := range []string{
		"--count 1",
		"--count 63 --rate 1kpps",
		"--count 20001",
		"--count 20001 --queues 2",
		"--count 20001 --queues 3 --rate 50kpps",
		"--count 20001 --size 1518",
		"--count 2001 --size 9018 --rate 10kpps",
		"--count 201 --size 65553 --rate 1kpps --queues 2",
		"--count 20001 --ipv6",
		"--count 20001 --vlan 100:5 --size 512",
		"--count 20001 --ipv6 --vlan 0 --size 88",
		"--count 20001 --flows 1000 --refill",
		"--count 20001 --udp-checksum-zero --qdisc --batch 1",
		"--count 20001 --tos 184 --ttl 1 --batch 256",
	} {
		t.Run(args, func(t *testing.T) {
			r := mustRun(t, append(strings.Fields("lab wire --queues 3 --mtu 65535 -- run --json"), strings.Fields(args)...)...)
			clean(t, r)
			if want := strings.Fields(args)[1]; fmt.Sprint(r.TX.Frames) != want {
				t.Errorf("%d frames sent, want %s", r.TX.Frames, want)
			}
		})
	}
}

func TestBothWaysAndPairs(t *testing.T) {
	testnet.Require(t)
	for _, args := range []string{"--both-ways", "--both-ways --ipv6"} {
		r := mustRun(t, append(strings.Fields("lab wire --pairs 2 -- run --json --rate 5kpps --count 3000"), strings.Fields(args)...)...)
		if len(r.Pairs) != 4 || r.TX.Frames != 4*3000 || r.RX.Frames != 4*3000 || r.RX.Lost != 0 {
			t.Errorf("%d pairs, sent %d, received %d, lost %d", len(r.Pairs), r.TX.Frames, r.RX.Frames, r.RX.Lost)
		}
		for _, p := range r.Pairs {
			if p.TX.Frames != 3000 || p.RX.Frames != 3000 || p.RX.OtherFrames != 0 {
				t.Errorf("%s -> %s: sent %d, received %d, other %d", p.TX.Iface, p.RX.Iface, p.TX.Frames, p.RX.Frames, p.RX.OtherFrames)
			}
		}
	}
}

// TestTwoProcesses: rx alone knows what tx has sent, from its closing frames.
func TestTwoProcesses(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Queues: 2})
	sink := start(t, "rx", "--iface", rx.String(), "--once", "--json", "--clock", "same-host")
	awaitReceiver(t, sink)
	sent := mustRun(t, "tx", "--iface", tx.String(), "--queues", "2", "--count", "30001", "--rate", "50kpps", "--json")
	if code := sink.wait(5 * time.Second); code != 0 {
		t.Fatalf("rx: exit code %d\n%s", code, sink.stderr.String())
	}
	r := sink.document()
	if sent.TX.Frames != 30001 || r.RX.Frames != 30001 || r.RX.Lost != 0 || !r.RX.SenderClosed || len(r.RX.Streams) != 2 {
		t.Errorf("sent %d, received %d, lost %d, closed %v, %d streams", sent.TX.Frames, r.RX.Frames, r.RX.Lost, r.RX.SenderClosed, len(r.RX.Streams))
	}
	for _, s := range r.RX.Streams {
		if s.Sent == nil || *s.Sent != s.Frames || s.RunID != *sent.RunID {
			t.Errorf("stream %+v", s)
		}
	}
	if len(sent.Warnings) > 0 {
		t.Errorf("tx was to find its destination: %v", sent.Warnings)
	}
	if r.RX.Answered == 0 {
		t.Error("rx answered no ARP request")
	}
}

// awaitReceiver waits until rx counts what arrives.
func awaitReceiver(t *testing.T, p *program) {
	t.Helper()
	eventually(t, "rx receives", func() bool { return strings.Contains(p.stderr.String(), "pktgen: receiving on") })
}

// TestNobodyThere: with no receiver tx warns, sends, and says what it sent.
func TestNobodyThere(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	r := mustRun(t, "tx", "--iface", tx.String(), "--count", "1000", "--rate", "10kpps", "--json")
	if r.TX.Frames != 1000 || r.RX != nil {
		t.Errorf("sent %d", r.TX.Frames)
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "nobody answers") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// TestSignals: a signal ends a run within a second, with a complete partial
// result, and the lab gone.
func TestSignals(t *testing.T) {
	testnet.Require(t)
	for _, c := range []struct {
		sig  syscall.Signal
		code int
		args string
	}{
		{syscall.SIGINT, 130, "lab wire -- run --duration 60s --json"},
		{syscall.SIGTERM, 143, "lab wire -- run --duration 60s --rate 1kpps --json"},
		{syscall.SIGINT, 130, "lab wire --queues 2 -- run --duration 60s --queues 2 --json"},
		{syscall.SIGINT, 130, "lab wire -- run --duration 60s --rate 1 --json"},
	} {
		t.Run(fmt.Sprint(c.sig, c.args), func(t *testing.T) {
			before := len(namespaces(t))
			p := start(t, strings.Fields(c.args)...)
			// The test binary's namespaces are its own, and this is its only lab.
			least := uint64(1)
			if !strings.Contains(c.args, "--rate") {
				least = 1000 // more than the frames that make ready for the run
			}
			eventually(t, "the run has begun", func() bool {
				for _, name := range namespaces(t) {
					if strings.HasSuffix(name, "-rx") {
						return arrived(netdev.Ref{Netns: filepath.Base(name), Name: "eth32"}) >= least
					}
				}
				return false
			})
			_ = p.cmd.Process.Signal(c.sig)
			if code := p.wait(2 * time.Second); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			r := p.document()
			identity(t, r)
			if !r.Interrupted || r.TX.Frames == 0 || r.RX.Lost != 0 {
				t.Errorf("interrupted %v, sent %d, lost %d", r.Interrupted, r.TX.Frames, r.RX.Lost)
			}
			if n := len(namespaces(t)); n != before {
				t.Errorf("%d namespaces left", n-before)
			}
		})
	}
}

// TestSignalAtAnyMoment: also before the run, and while it ends.
func TestSignalAtAnyMoment(t *testing.T) {
	testnet.Require(t)
	before := len(namespaces(t))
	for delay := time.Duration(0); delay < 300*time.Millisecond; delay += 23 * time.Millisecond {
		p := start(t, strings.Fields("lab wire -- run --count 50 --rate 500 --json")...)
		time.Sleep(delay)
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		code := p.wait(3 * time.Second)
		if code != 130 && code != 0 && p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
			t.Errorf("after %v: exit code %d\n%s", delay, code, p.stderr.String())
		}
		if n := len(namespaces(t)); n != before {
			t.Errorf("after %v: %d namespaces left", delay, n-before)
		}
	}
}

// TestSignalReachesScripts: a program in the lab that has started others ends
// with them.
func TestSignalReachesScripts(t *testing.T) {
	testnet.Require(t)
	pids := filepath.Join(t.TempDir(), "pids")
	p := start(t, "lab", "wire", "--", "sh", "-c", "sleep 60 & echo $! > "+pids+"; sh -c 'sleep 60; true'; true")
	eventually(t, "the script runs", func() bool { b, _ := os.ReadFile(pids); return len(b) > 0 })
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(4 * time.Second); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the background process has ended", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
}

// TestKilled: what SIGKILL leaves, lab clean removes; what others use, it keeps.
func TestKilled(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	before := namespaces(t)
	p := start(t, "lab", "wire", "--", "run", "--duration", "60s")
	eventually(t, "the lab stands", func() bool { return len(namespaces(t)) == len(before)+2 })
	_ = p.cmd.Process.Kill()
	<-p.done
	clean := start(t, "lab", "clean")
	if code := clean.wait(5 * time.Second); code != 0 || strings.Count(clean.stdout.String(), "removed pktgen-") != 2 {
		t.Errorf("lab clean: exit code %d\n%s%s", code, clean.stdout.String(), clean.stderr.String())
	}
	if after := namespaces(t); len(after) != len(before) {
		t.Errorf("before %v, after %v", before, after)
	}
	if _, err := netdev.Lookup(tx); err != nil {
		t.Errorf("the lab of this test was to stay: %v", err)
	}
}

// TestLinkLost: an interface set down or removed in mid-run ends it with exit
// code 1, and what was measured so far is printed.
func TestLinkLost(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(tx, rx netdev.Ref) (netdev.Ref, []string)
		rate string
	}{
		{"sender down", func(tx, _ netdev.Ref) (netdev.Ref, []string) { return tx, []string{"link", "set", tx.Name, "down"} }, "max"},
		{"sender down, slow", func(tx, _ netdev.Ref) (netdev.Ref, []string) { return tx, []string{"link", "set", tx.Name, "down"} }, "2"},
		{"receiver down", func(_, rx netdev.Ref) (netdev.Ref, []string) { return rx, []string{"link", "set", rx.Name, "down"} }, "20kpps"},
		{"removed", func(tx, _ netdev.Ref) (netdev.Ref, []string) { return tx, []string{"link", "del", tx.Name} }, "max"},
		{"removed, slow", func(_, rx netdev.Ref) (netdev.Ref, []string) { return rx, []string{"link", "del", rx.Name} }, "100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", c.rate, "--duration", "60s", "--json")
			least := uint64(1)
			if c.rate == "max" {
				least = 1000 // more than the frames that make ready for the run
			}
			eventually(t, "the run has begun", func() bool { return arrived(rx) >= least })
			ref, args := c.end(tx, rx)
			ip(t, ref, args...)
			if code := p.wait(5 * time.Second); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			r := p.document()
			identity(t, r)
			if r.Error == "" || r.Hint == "" || r.Verdict != verdictVoid || r.TX.Frames == 0 {
				t.Errorf("error %q, hint %q, verdict %q, sent %d", r.Error, r.Hint, r.Verdict, r.TX.Frames)
			}
			if n := strings.Count(p.stderr.String(), "pktgen: error:"); n != 1 {
				t.Errorf("%d error lines:\n%s", n, p.stderr.String())
			}
		})
	}
	for _, end := range []string{"sender", "receiver"} {
		t.Run("MTU lowered, "+end, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--size", "1518", "--rate", "5kpps", "--duration", "60s", "--json")
			eventually(t, "the run has begun", func() bool { return arrived(rx) > 0 })
			ref := tx
			if end == "receiver" {
				ref = rx
			}
			ip(t, ref, "link", "set", ref.Name, "mtu", "1000")
			if code := p.wait(5 * time.Second); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			r := p.document()
			identity(t, r)
			if !strings.Contains(r.Error, "MTU was lowered to 1000") || r.Verdict != verdictVoid || r.DurationS < 0 {
				t.Errorf("error %q, verdict %q, %v s", r.Error, r.Verdict, r.DurationS)
			}
		})
	}
	t.Run("far end's MTU", func(t *testing.T) {
		tx, rx := testnet.Wire(t, lab.Options{})
		ip(t, rx, "link", "set", rx.Name, "mtu", "576")
		r, code := run(t, "tx", "--iface", tx.String(), "--size", "1518", "--rate", "1kpps", "--duration", "10s", "--json")
		if code != 1 || r.TX.Frames != 0 || r.DurationS < 0 || !strings.Contains(r.Error, "the port dropped") || !strings.Contains(r.Hint, "MTU") {
			t.Errorf("exit code %d, sent %d, %v s, error %q, hint %q", code, r.TX.Frames, r.DurationS, r.Error, r.Hint)
		}
		if n := r.TX.Port.TxDropped; n > 20_000 {
			t.Errorf("%d attempts in 2 s at a device that takes nothing", n)
		}
	})
	t.Run("rx alone", func(t *testing.T) {
		_, rx := testnet.Wire(t, lab.Options{})
		p := start(t, "rx", "--iface", rx.String(), "--json")
		awaitReceiver(t, p)
		ip(t, rx, "link", "set", rx.Name, "down")
		if code := p.wait(5 * time.Second); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
		if r := p.document(); r.Error == "" || r.RX == nil {
			t.Errorf("error %q, rx %v", r.Error, r.RX)
		}
	})
	t.Run("down before", func(t *testing.T) {
		tx, rx := testnet.Wire(t, lab.Options{})
		ip(t, tx, "link", "set", tx.Name, "down")
		for _, args := range [][]string{{"tx", "--iface", tx.String()}, {"rx", "--iface", rx.String()}} {
			r, code := run(t, append(args, "--json")...)
			if code != 1 || r.Error == "" || r.Hint == "" {
				t.Errorf("%v: exit code %d, error %q, hint %q", args, code, r.Error, r.Hint)
			}
		}
	})
}

// TestTwoReceivers: the second rx on an interface is refused, and the first
// goes on; another interface is free.
func TestTwoReceivers(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	first := start(t, "rx", "--iface", rx.String(), "--json")
	awaitReceiver(t, first)
	r, code := run(t, "rx", "--iface", rx.String(), "--json")
	if code != 1 || !strings.Contains(r.Error, fmt.Sprintf("process %d", first.cmd.Process.Pid)) || r.Hint == "" {
		t.Errorf("exit code %d, error %q, hint %q", code, r.Error, r.Hint)
	}
	if r, code := run(t, "rx", "--iface", tx.String(), "--duration", "10ms", "--json"); code != 0 {
		t.Errorf("the other interface: exit code %d, error %q", code, r.Error)
	}
	_ = first.cmd.Process.Signal(syscall.SIGINT)
	if code := first.wait(2 * time.Second); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if r := first.document(); r.Error != "" {
		t.Errorf("error %q", r.Error)
	}
}

// TestSafety: no test traffic on the interface that the host lives by.
func TestSafety(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	ip(t, tx, "addr", "add", "192.0.2.1/24", "dev", tx.Name)
	r, code := run(t, "tx", "--iface", tx.String(), "--count", "1", "--json")
	if code != 1 || !strings.Contains(r.Error, "only global address") {
		t.Errorf("exit code %d, error %q", code, r.Error)
	}
	ip(t, tx, "link", "add", "other0", "type", "bridge")
	ip(t, tx, "link", "set", "other0", "up")
	ip(t, tx, "addr", "add", "203.0.113.1/24", "dev", "other0")
	ip(t, tx, "route", "add", "default", "via", "192.0.2.254")
	r, code = run(t, "tx", "--iface", tx.String(), "--count", "1", "--json")
	if code != 1 || !strings.Contains(r.Error, "default route") {
		t.Errorf("exit code %d, error %q", code, r.Error)
	}
	ip(t, tx, "route", "del", "default")
	r, code = run(t, "tx", "--iface", tx.String(), "--count", "1", "--dst", "203.0.113.7", "--json")
	if code != 1 || !strings.Contains(r.Error, "neither a benchmarking address nor on the link") {
		t.Errorf("exit code %d, error %q", code, r.Error)
	}
	if n := received(t, rx); n != 0 {
		t.Errorf("%d frames were sent all the same", n)
	}
	mustRun(t, "tx", "--iface", tx.String(), "--count", "1", "--dst", "192.0.2.7", "--dst-mac", "02:00:00:00:00:07", "--json")
	mustRun(t, "tx", "--iface", tx.String(), "--count", "1", "--dst", "203.0.113.7", "--dst-mac", "02:00:00:00:00:07", "--force", "--json")
}

// arrived is the number of test frames that a port has received: the kernel
// counts an ARP request before them.
func arrived(r netdev.Ref) uint64 {
	p, err := netdev.Open(r)
	if err != nil {
		return 0
	}
	defer p.Close()
	c, err := p.Counters()
	if err != nil || c.RxPackets == 0 {
		return 0
	}
	return c.RxPackets - 1
}

func received(t *testing.T, r netdev.Ref) uint64 {
	t.Helper()
	p, err := netdev.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.RxPackets
}

// TestNeighbours: the kernel of the other end is asked, and routes are followed.
func TestNeighbours(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	ip(t, rx, "addr", "add", "198.18.0.254/24", "dev", rx.Name)
	info, err := netdev.Lookup(rx)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--dst", "198.18.0.254"},
		{"--dst", "198.19.0.1", "--gateway", "198.18.0.254"},
	} {
		r := mustRun(t, append([]string{"tx", "--iface", tx.String(), "--count", "1", "--json"}, args...)...)
		if r.TX.DstMAC != info.MAC.String() {
			t.Errorf("%v: destination MAC %s, want %v", args, r.TX.DstMAC, info.MAC)
		}
	}
	ip(t, tx, "addr", "add", "198.18.0.1/24", "dev", tx.Name)
	ip(t, tx, "route", "add", "198.19.0.0/16", "via", "198.18.0.254")
	r := mustRun(t, "tx", "--iface", tx.String(), "--count", "1", "--dst", "198.19.3.4", "--json")
	if r.TX.DstMAC != info.MAC.String() {
		t.Errorf("by route: destination MAC %s, want %v", r.TX.DstMAC, info.MAC)
	}
}

// ip runs iproute2's ip in the interface's namespace.
func ip(t *testing.T, ref netdev.Ref, args ...string) { t.Helper(); command(t, ref, "ip", args...) }

// command runs a program in the interface's namespace and returns its output.
func command(t *testing.T, ref netdev.Ref, name string, args ...string) string {
	t.Helper()
	var out []byte
	err := ref.Do(func() (err error) {
		out, err = exec.Command(name, args...).Output()
		return err
	})
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// bridged is a path with a bridge between the ends, in a namespace of its own;
// out is the bridge's port towards rx, where tests drop frames.
func bridged(t *testing.T) (tx, rx, out netdev.Ref) {
	t.Helper()
	tx, in := testnet.Wire(t, lab.Options{})
	out, rx = testnet.Wire(t, lab.Options{})
	// The far side's port moves beside the near side's.
	ip(t, out, "link", "set", out.Name, "netns", in.Netns, "name", "out")
	out = netdev.Ref{Netns: in.Netns, Name: "out"}
	ip(t, in, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	for _, port := range []string{in.Name, "out"} {
		ip(t, in, "link", "set", port, "master", "br0", "up")
	}
	ip(t, in, "link", "set", "br0", "up")
	eventually(t, "the ends have carrier", func() bool {
		a, errA := netdev.Lookup(tx)
		b, errB := netdev.Lookup(rx)
		return errA == nil && errB == nil && a.Running && b.Running
	})
	return tx, rx, out
}

// dropped is what a queueing discipline of the kernel says that it has dropped.
func dropped(t *testing.T, ref netdev.Ref, kind string) uint64 {
	t.Helper()
	var qs []struct {
		Kind  string
		Drops uint64
	}
	if err := json.Unmarshal([]byte(command(t, ref, "tc", "-s", "-j", "qdisc", "show", "dev", ref.Name)), &qs); err != nil {
		t.Fatal(err)
	}
	for _, q := range qs {
		if q.Kind == kind {
			return q.Drops
		}
	}
	t.Fatalf("no %s on %v", kind, ref)
	return 0
}

// TestTokenBucket: what a token bucket on the path drops is what we call lost.
func TestTokenBucket(t *testing.T) {
	tx, rx, out := bridged(t)
	command(t, out, "tc", "qdisc", "add", "dev", out.Name, "root", "tbf", "rate", "20mbit", "burst", "10k", "limit", "30k")
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--size", "512", "--rate", "20kpps", "--duration", "2s", "--json")
	identity(t, r)
	if d := dropped(t, out, "tbf"); d == 0 || r.Loss.Path != d || r.RX.Lost != d {
		t.Errorf("the token bucket dropped %d, we say lost %d, on the path %d", d, r.RX.Lost, r.Loss.Path)
	}
	if r.Verdict != verdictPath {
		t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
	}
	if r.RX.Duplicates+r.RX.Reordered+r.RX.Corrupt != 0 {
		t.Errorf("%+v", *r.RX)
	}
}

// filtered has a port drop each frame whose number ends in 0x05.
func filtered(t *testing.T, out netdev.Ref) {
	t.Helper()
	command(t, out, "tc", "qdisc", "add", "dev", out.Name, "root", "handle", "1:", "htb", "default", "1")
	command(t, out, "tc", "class", "add", "dev", out.Name, "parent", "1:", "classid", "1:1", "htb", "rate", "10gbit")
	command(t, out, "tc", "class", "add", "dev", out.Name, "parent", "1:", "classid", "1:2", "htb", "rate", "10gbit")
	command(t, out, "tc", "qdisc", "add", "dev", out.Name, "parent", "1:2", "pfifo", "limit", "0")
	command(t, out, "tc", "filter", "add", "dev", out.Name, "parent", "1:", "protocol", "ip", "u32",
		"match", "u8", "0x05", "0xff", "at", "37", "classid", "1:2") // IPv4 20 + UDP 8 + the last octet of the sequence number
}

// TestFilter: what a filter drops is lost, to the frame.
func TestFilter(t *testing.T) {
	tx, rx, out := bridged(t)
	filtered(t, out)
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--rate", "20kpps", "--count", "25600", "--json")
	identity(t, r)
	if d := dropped(t, out, "htb"); d != 100 || r.RX.Lost != d || r.RX.Streams[0].Lost != d {
		t.Errorf("the filter dropped %d, we say lost %d; of 25,600 frames each 256th is 100", d, r.RX.Lost)
	}
}

// TestNotHere: what this host's NIC or kernel has not is refused with a hint, and
// exit code 4.
func TestNotHere(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	for _, args := range [][]string{
		{"rx", "--iface", rx.String(), "--rx-time", "hardware"},
		{"run", "--tx", tx.String(), "--rx", rx.String(), "--rx-time", "hardware"},
		{"tx", "--iface", tx.String(), "--rate", "1kpps", "--launch-time", "1ms"},
	} {
		r, code := run(t, append(args, "--json")...)
		if code != exitPrivilege || r.Error == "" || r.Hint == "" {
			t.Errorf("%v: exit code %d, error %q, hint %q", args, code, r.Error, r.Hint)
		}
	}
}
