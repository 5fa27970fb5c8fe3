package main

import (
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// TestSlowDevice: a sender behind a token bucket of its own port. What it holds
// back counts as sent when it has left, and in the time that this took.
func TestSlowDevice(t *testing.T) {
	slow := func(t *testing.T) (tx, rx netdev.Ref) {
		tx, rx = testnet.Wire(t, lab.Options{})
		command(t, tx, "tc", "qdisc", "add", "dev", tx.Name, "root", "tbf", "rate", "8mbit", "burst", "5k", "limit", "1m")
		return tx, rx
	}
	t.Run("whole", func(t *testing.T) {
		tx, rx := slow(t)
		r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--qdisc", "--size", "1018", "--count", "1500", "--json")
		identity(t, r)
		if r.TX.Frames != 1500 || r.RX.Lost != 0 || r.RX.Duplicates != 0 {
			t.Errorf("sent %d, lost %d, duplicates %d", r.TX.Frames, r.RX.Lost, r.RX.Duplicates)
		}
		if ratio := r.TX.PPS / r.RX.PPS; math.Abs(ratio-1) > 0.05 {
			t.Errorf("sent at %.0f frames/s, received at %.0f", r.TX.PPS, r.RX.PPS)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		tx, rx := slow(t)
		p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--qdisc", "--size", "1018", "--duration", "60s", "--json")
		eventually(t, "the bucket is full", func() bool { return arrived(rx) > 500 })
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		if code := p.wait(2 * time.Second); code != 130 {
			t.Errorf("exit code %d", code)
		}
		r := p.document()
		identity(t, r)
		if r.RX.Duplicates != 0 || r.TX.Frames == 0 {
			t.Errorf("duplicates %d, sent %d", r.RX.Duplicates, r.TX.Frames)
		}
	})
}

// TestLinkLostInDrain: a link that goes down while frames are under way voids
// the run, though all of them were sent.
func TestLinkLostInDrain(t *testing.T) {
	tx, rx, out := bridged(t)
	command(t, out, "tc", "qdisc", "add", "dev", out.Name, "root", "tbf", "rate", "1mbit", "burst", "2k", "limit", "1m")
	p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--size", "1018", "--count", "500", "--json")
	eventually(t, "all are sent", func() bool { c := sentBy(t, tx); return c >= 500 })
	eventually(t, "some have arrived", func() bool { return arrived(rx) > 20 })
	ip(t, out, "link", "set", out.Name, "down") // rx loses its carrier
	if code := p.wait(6 * time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	r := p.document()
	identity(t, r)
	if r.Verdict != verdictVoid || !strings.Contains(r.Error, "carrier") || r.TX.Frames != 500 {
		t.Errorf("verdict %s, error %q, sent %d", r.Verdict, r.Error, r.TX.Frames)
	}
}

func sentBy(t *testing.T, ref netdev.Ref) uint64 {
	t.Helper()
	p, err := netdev.Open(ref)
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

// TestReceiverUnderTraffic: a receiver of several queues that begins while frames
// come in counts none of them twice, and ends with its senders.
func TestReceiverUnderTraffic(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Queues: 4})
	sender := start(t, "tx", "--iface", tx.String(), "--queues", "4", "--rate", "60kpps", "--duration", "3s", "--json")
	eventually(t, "frames come in", func() bool { return arrived(rx) > 1000 })
	sink := start(t, "rx", "--iface", rx.String(), "--queues", "4", "--once", "--json")
	if code := sender.wait(20 * time.Second); code != 0 {
		t.Fatalf("tx: exit code %d\n%s", code, sender.stderr.String())
	}
	if code := sink.wait(10 * time.Second); code != 0 {
		t.Fatalf("rx: exit code %d\n%s", code, sink.stderr.String())
	}
	r := sink.document()
	if r.RX.Duplicates+r.RX.Reordered != 0 || len(r.RX.Streams) != 4 {
		t.Errorf("duplicates %d, reordered %d, %d streams", r.RX.Duplicates, r.RX.Reordered, len(r.RX.Streams))
	}
	for _, s := range r.RX.Streams {
		if s.Frames+s.FirstSeq != *s.Sent || s.Lost != s.FirstSeq {
			t.Errorf("stream %d of %d frames, the first seen %d: received %d, lost %d", s.ID, *s.Sent, s.FirstSeq, s.Frames, s.Lost)
		}
	}
	if r.Verdict != verdictLate {
		t.Errorf("verdict %s (%s)", r.Verdict, r.Reason)
	}
}

// TestReaderGone: when nobody reads stdout any more, the run ends and the lab is
// taken down.
func TestReaderGone(t *testing.T) {
	testnet.Require(t)
	before := len(namespaces(t))
	for _, args := range []string{
		"lab wire -- run --rate 1kpps --duration 60s --interval 100ms --json-stream",
		"lab wire -- run --rate 1kpps --duration 200ms --json",
	} {
		cmd := exec.Command(self(t), strings.Fields(args)...)
		cmd.Env = append(os.Environ(), asPktgen+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(args, "stream") {
			if _, err := out.Read(make([]byte, 1)); err != nil && err != io.EOF {
				t.Error(err)
			}
		}
		out.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			t.Errorf("%s: no end", args)
		}
		if code := cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%s: exit code %d, want 1", args, code)
		}
		if n := len(namespaces(t)); n != before {
			t.Errorf("%s: %d namespaces left", args, n-before)
		}
	}
}

// TestOddPatterns: patterns of which no rate can be told, or whose rate varies,
// still make a document, and none is said to be slow.
func TestOddPatterns(t *testing.T) {
	testnet.Require(t)
	for _, args := range []string{
		"--rate 20kpps --burst 1000 --on-off 50ms:950ms --duration 500ms",
		"--rate 1 --duration 1ms",
		"--rate 5kpps --poisson --seed 3 --duration 300ms",
		"--rate 20kpps --burst 64 --duration 500ms",
		"--ramp 1kpps:20kpps:1s --duration 500ms",
		"--plan 2kpps:200ms,0:100ms,10kpps:200ms",
	} {
		r := mustRun(t, append(strings.Fields("lab wire -- run --json"), strings.Fields(args)...)...)
		identity(t, r)
		if r.TX.Frames == 0 || r.RX.Lost != 0 || (r.Verdict != verdictOK && r.TX.LateEvents == 0) {
			t.Errorf("%s: sent %d, lost %d, verdict %s (%s)", args, r.TX.Frames, r.RX.Lost, r.Verdict, r.Reason)
		}
		if r.TX.RateError != nil && math.Abs(*r.TX.RateError) > 0.01 && r.TX.LateEvents == 0 {
			t.Errorf("%s: rate error %v", args, *r.TX.RateError)
		}
	}
}
