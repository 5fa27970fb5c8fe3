package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
	"pktgen/report"
)

// TestStarvedSink: a receiver that does not run for longer than its ring rides out
// blames itself, for exactly what the kernel dropped at its socket.
func TestStarvedSink(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		pause time.Duration
	}{
		"ring too small": {[]string{"--ring", "1"}, 600 * time.Millisecond},
		"no CPU":         {nil, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			rate, count := "50kpps", "60000"
			if c.args == nil {
				rate, count = "250kpps", "1500000"
			}
			sink := start(t, append([]string{"rx", "--iface", rx.String(), "--json"}, c.args...)...)
			awaitReceiver(t, sink)
			sender := start(t, "tx", "--iface", tx.String(), "--rate", rate, "--count", count, "--json")
			eventually(t, "frames come in", func() bool { return arrived(rx) > 1000 })
			_ = sink.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(c.pause) // how long it is taken off its CPU is what is tested
			_ = sink.cmd.Process.Signal(syscall.SIGCONT)
			if code := sender.wait(30 * time.Second); code != 0 {
				t.Fatalf("tx: exit code %d\n%s", code, sender.stderr.String())
			}
			_ = sink.cmd.Process.Signal(syscall.SIGINT)
			if code := sink.wait(5 * time.Second); code != 130 {
				t.Fatalf("rx: exit code %d\n%s", code, sink.stderr.String())
			}
			sent, r := sender.document().TX, sink.document()
			if r.RX.Frames-r.RX.Duplicates+r.RX.Lost != sent.Frames {
				t.Errorf("sent %d, received %d, lost %d", sent.Frames, r.RX.Frames, r.RX.Lost)
			}
			// A closing frame or another may be among what the socket dropped.
			if r.RX.Lost == 0 || r.Loss.Sink != r.RX.Lost || r.RX.SocketDrops < r.RX.Lost || r.RX.SocketDrops > r.RX.Lost+10 {
				t.Errorf("lost %d, at the sink %d, dropped at the socket %d", r.RX.Lost, r.Loss.Sink, r.RX.SocketDrops)
			}
			if r.Verdict != verdictSink || !strings.Contains(r.Reason, fmt.Sprint(r.RX.SocketDrops)) {
				t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
			}
		})
	}
}

// TestQdiscLimit: what the sender's own queueing discipline refuses is sent again,
// so that nothing is lost; the generator is what is slow, with the figure that tc
// counts, and no device is blamed.
func TestQdiscLimit(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	command(t, tx, "tc", "qdisc", "add", "dev", tx.Name, "root", "tbf", "rate", "20mbit", "burst", "10k", "limit", "30k")
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--qdisc", "--size", "512", "--rate", "20kpps", "--duration", "1s", "--json")
	identity(t, r)
	d := dropped(t, tx, "tbf")
	if d == 0 || r.TX.Port.QdiscDrops != d || r.TX.Busy != d || r.TX.Unsent+r.RX.Lost != 0 {
		t.Errorf("tc counts %d drops, we %d, and %d refusals; unsent %d, lost %d", d, r.TX.Port.QdiscDrops, r.TX.Busy, r.TX.Unsent, r.RX.Lost)
	}
	if r.Verdict != verdictGenerator || !strings.Contains(r.Reason, fmt.Sprintf("qdisc drops %d", d)) {
		t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
	}
	if want := (report.LossCounter{Place: "generator", Counter: "qdisc drops", Frames: d}); len(r.Loss.Counters) != 1 || r.Loss.Counters[0] != want {
		t.Errorf("counters %+v, want %+v", r.Loss.Counters, want)
	}
}

// TestBacklog: frames for which the receiving CPU's backlog has no room are the
// host's, with the CPU's own figure.
func TestBacklog(t *testing.T) {
	tx, rx, _ := bridged(t) // on a plain wire the sender is told, and sends again
	// The other CPU takes the frames in, with room for few: a setting of the host,
	// put back at once.
	const backlog = "/proc/sys/net/core/netdev_max_backlog"
	was, err := os.ReadFile(backlog)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backlog, []byte("4"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(backlog, was, 0o644); err != nil {
			t.Error(err)
		}
	})
	command(t, rx, "ip", "netns", "exec", rx.Netns, "sh", "-c", "echo 2 > /sys/class/net/"+rx.Name+"/queues/rx-0/rps_cpus")
	// Live frames would overrun the bridge port first, which is the sender's loss.
	r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--cpus", "0,1", "--backend", "packet", "--duration", "1s", "--json")
	identity(t, r)
	var softnet uint32
	for _, c := range r.CPUs {
		softnet += c.SoftnetDropped
	}
	if r.Loss.RXNIC == 0 || uint64(softnet) < r.Loss.RXNIC || r.RX.Port.RxDropped != r.Loss.RXNIC {
		t.Errorf("softnet_stat counts %d, the port %d, we say %d", softnet, r.RX.Port.RxDropped, r.Loss.RXNIC)
	}
	if r.RX.SocketDrops == 0 && (r.Verdict != verdictHost || !strings.Contains(r.Reason, "softnet_stat")) {
		t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
	}
}

// TestJudge: what counted decides whom the verdict blames, the tool first.
func TestJudge(t *testing.T) {
	ends := func(f func(c *counted)) (*session, *report.RX, *report.TX, *report.Loss) {
		d := &counted{}
		f(d)
		tx := &report.TX{Rates: report.Rates{Frames: 1000}, Offered: 1000}
		rx := &report.RX{Rates: report.Rates{Frames: 900}}
		s := newSession("run", nil)
		s.result = &report.Result{TX: tx, RX: rx, Loss: &report.Loss{}}
		s.account(&rxEnd{delta: d}, rx, tx, s.result.Loss)
		return s, rx, tx, s.result.Loss
	}
	for name, c := range map[string]struct {
		count   func(c *counted)
		change  func(s *session)
		verdict string
		loss    report.Loss
	}{
		"nothing counted":    {func(*counted) {}, nil, verdictPath, report.Loss{Path: 100}},
		"ring overrun":       {func(c *counted) { c.RxMissed = 100 }, nil, verdictNIC, report.Loss{RXNIC: 100}},
		"driver's count":     {func(c *counted) { c.driver = netdev.DriverCounters{RxMissed: 100} }, nil, verdictNIC, report.Loss{RXNIC: 100}},
		"counted twice":      {func(c *counted) { c.RxMissed = 60; c.driver.RxMissed = 60 }, nil, verdictNIC, report.Loss{RXNIC: 60, Path: 40}},
		"of others too":      {func(c *counted) { c.RxDropped = 1000 }, nil, verdictNIC, report.Loss{RXNIC: 100}},
		"damaged on the way": {func(c *counted) { c.RxErrors = 100; c.driver = netdev.DriverCounters{RxErrors: 100, RxCRC: 100} }, nil, verdictPath, report.Loss{Path: 100}},
		"sink":               {func(*counted) {}, func(s *session) { s.result.RX.SocketDrops = 30 }, verdictSink, report.Loss{Sink: 30, Path: 70}},
		"busy CPU": {func(c *counted) { c.RxMissed = 100 }, func(s *session) {
			s.result.CPUs = []report.CPU{{CPU: 0, Idle: 1}, {CPU: 1, SoftIRQ: 0.99, System: 0.01}}
		}, verdictHost, report.Loss{RXNIC: 100}},
		"spinning worker": {func(*counted) {}, func(s *session) {
			s.result.CPUs = []report.CPU{{CPU: 0, User: 1}}
		}, verdictPath, report.Loss{Path: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			s, rx, tx, loss := ends(c.count)
			if c.change != nil {
				c.change(s)
				*loss = report.Loss{}
				d := &counted{}
				c.count(d)
				s.account(&rxEnd{delta: d}, rx, tx, loss)
			}
			s.judge()
			got := *loss
			got.Counters = nil
			if s.result.Verdict != c.verdict || fmt.Sprint(got) != fmt.Sprint(c.loss) || rx.Lost != 100 {
				t.Errorf("verdict %s (%s), %+v; want %s, %+v", s.result.Verdict, s.result.Reason, got, c.verdict, c.loss)
			}
		})
	}
}
