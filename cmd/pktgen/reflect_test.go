package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// reflecting starts a reflector and waits until it sends back.
func reflecting(t *testing.T, ref netdev.Ref, args ...string) *program {
	t.Helper()
	p := start(t, append([]string{"reflect", "--iface", ref.String(), "--json"}, args...)...)
	eventually(t, "it reflects", func() bool { return strings.Contains(p.stderr.String(), "pktgen: reflecting on") })
	return p
}

// TestRoundTrip: frames come back, each once, whatever they are; the round trip is
// what a capture of what came back says, by the same times.
func TestRoundTrip(t *testing.T) {
	for _, args := range []string{"", "--ipv6", "--vlan 7:3", "--size 1518", "--udp-checksum-zero", "--queues 2", "--flows 100"} {
		t.Run(args, func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{Queues: 2})
			far := reflecting(t, rx, "--clock-offset", "1h")
			const frames = 400
			line := append(strings.Fields("run --round-trip --rate 2kpps --json --tx "+tx.String()+" --count "+strconv.Itoa(frames)), strings.Fields(args)...)
			run := func() {
				r := mustRun(t, line...)
				identity(t, r)
				if x := r.RX; x.Frames != frames || x.Lost+x.Duplicates+x.Corrupt+x.OtherFrames != 0 {
					t.Errorf("amiss: %+v", *x)
				}
				l := r.RX.Latency
				if l.Clock != "round-trip" || l.Count != frames || *l.Min <= 0 || r.RX.Residence == nil || r.RX.Residence.Count != frames {
					t.Errorf("latency %+v, residence %+v", l, r.RX.Residence)
				}
			}
			run()
			_ = far.cmd.Process.Signal(syscall.SIGINT)
			if code := far.wait(2 * time.Second); code != 130 {
				t.Errorf("reflect: exit code %d\n%s", code, far.stderr.String())
			}
			got := far.document().Reflect
			closing := uint64(closingRepeats)
			if strings.Contains(args, "queues") {
				closing *= 2
			}
			if got.Frames != frames+closing || got.Short+got.Corrupt+got.NoRoom+got.Unsent+got.SocketDrops != 0 {
				t.Errorf("%+v", *got)
			}
		})
	}
	t.Run("captured", func(t *testing.T) {
		tx, rx := testnet.Wire(t, lab.Options{})
		reflecting(t, rx, "--clock-offset", "-7s")
		const frames = 500
		var p50, max int64
		file := capture(t, tx, frames, func() { // of what comes back: what is sent passes the capture by
			r := mustRun(t, "run", "--round-trip", "--rate", "1kpps", "--json", "--tx", tx.String(), "--count", strconv.Itoa(frames+50))
			p50, max = *r.RX.Latency.P50, *r.RX.Latency.Max
		})
		var trips []int64
		for _, row := range dissect(t, file, "frame.time_epoch", "udp.payload") {
			sec, frac, _ := strings.Cut(row[0], ".")
			s, err := strconv.ParseInt(sec, 10, 64)
			ns, err2 := strconv.ParseInt((frac + "000000000")[:9], 10, 64)
			b, err3 := hex.DecodeString(row[1])
			if err != nil || err2 != nil || err3 != nil || len(b) < 34 || binary.BigEndian.Uint16(b) != 0x9e39 {
				t.Fatalf("%v", row)
			}
			at := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }
			trips = append(trips, s*1e9+ns-at(10)-(at(26)-at(18)))
		}
		slices.Sort(trips)
		// The capture keeps microseconds, and the kernel stamps a frame for each
		// socket anew.
		if got := trips[len(trips)/2]; math.Abs(float64(got-p50)) > 0.2*float64(got)+2000 || trips[len(trips)-1] > 2*max {
			t.Errorf("p50 %d, max %d; by the capture %d, %d", p50, max, got, trips[len(trips)-1])
		}
	})
	t.Run("too short", func(t *testing.T) {
		tx, rx := testnet.Wire(t, lab.Options{})
		far := reflecting(t, rx)
		mustRun(t, "tx", "--iface", tx.String(), "--count", "100", "--rate", "2kpps", "--json")
		_ = far.cmd.Process.Signal(syscall.SIGTERM)
		if code := far.wait(2 * time.Second); code != 143 {
			t.Errorf("reflect: exit code %d", code)
		}
		r := far.document()
		if r.Reflect.Short != 100 || r.Reflect.Frames != closingRepeats || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "--round-trip") {
			t.Errorf("%+v, warnings %v", *r.Reflect, r.Warnings)
		}
		got, code := run(t, "run", "--round-trip", "--tx", tx.String(), "--size", "64", "--json")
		if code != exitUsage || !strings.Contains(got.Error, "round trip") || !strings.Contains(got.Hint, "80") {
			t.Errorf("exit code %d, error %q, hint %q", code, got.Error, got.Hint)
		}
	})
	t.Run("two facing each other", func(t *testing.T) { // nothing goes to and fro for ever
		a, b := testnet.Wire(t, lab.Options{})
		reflecting(t, b)
		near := reflecting(t, a, "--duration", "1500ms", "--no-answer")
		mustRun(t, "tx", "--iface", a.String(), "--count", "200", "--size", "100", "--rate", "2kpps", "--json")
		if code := near.wait(5 * time.Second); code != 0 {
			t.Errorf("exit code %d\n%s", code, near.stderr.String())
		}
		if r := near.document().Reflect; r.Frames != 0 || r.OtherFrames < 200 {
			t.Errorf("%+v", *r)
		}
	})
}

// TestSTAMPAnswers: a Session-Sender's packets from an ordinary socket come back
// as tshark's dissector for the same format (TWAMP Light) understands them.
func TestSTAMPAnswers(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	reflecting(t, rx)
	ip(t, tx, "addr", "add", "198.18.0.1/24", "dev", tx.Name)
	const packets = 5
	file := capture(t, tx, 2*packets, func() {
		testnet.In(t, tx, func() error {
			c, err := net.Dial("udp", "198.18.0.2:862")
			if err != nil {
				return err
			}
			defer c.Close()
			// IP_TTL 255, as RFC 8762, section 4.2, asks for.
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 255) }); err != nil {
				return err
			}
			for i := range packets {
				b := make([]byte, 44)
				binary.BigEndian.PutUint32(b, uint32(100+i))
				now := time.Now()
				binary.BigEndian.PutUint32(b[4:], uint32(now.Unix()+2208988800))
				binary.BigEndian.PutUint16(b[12:], 0x8001)
				if _, err := c.Write(b); err != nil {
					return err
				}
				if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
					return err
				}
				answer := make([]byte, 200)
				n, err := c.Read(answer)
				if err != nil {
					return fmt.Errorf("answer %d: %w", i, err)
				}
				if n != 44 || binary.BigEndian.Uint32(answer) != uint32(100+i) {
					return fmt.Errorf("answer %d: %d octets, % x", i, n, answer[:n])
				}
			}
			return nil
		})
	})
	out, err := exec.Command("tshark", "-n", "-r", file, "-d", "udp.port==862,twamp.test", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-Y", "udp.srcport == 862", "-T", "fields", "-E", "separator=|",
		"-e", "twamp.test.seq_number", "-e", "twamp.test.sender_seq_number", "-e", "twamp.test.sender_ttl", "-e", "udp.checksum.status", "-e", "ip.checksum.status",
		"-e", "twamp.test.timestamp", "-e", "twamp.test.receive_timestamp", "-e", "frame.time_epoch").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != packets {
		t.Fatalf("%d answers:\n%s", len(lines), out)
	}
	for i, line := range lines {
		f := strings.Split(line, "|")
		if f[0] != strconv.Itoa(100+i) || f[1] != f[0] || f[2] != "255" || f[3] != "1" || f[4] != "1" {
			t.Errorf("answer %d: %v", i, f)
		}
		if sent, received := ntpTime(t, f[5]), ntpTime(t, f[6]); sent.Before(received) || time.Since(sent).Abs() > time.Minute || sent.Sub(received) > 5*time.Second {
			t.Errorf("answer %d: received %v, sent %v", i, received, sent)
		}
	}
}

// ntpTime reads tshark's text of an NTP time.
func ntpTime(t *testing.T, text string) time.Time {
	t.Helper()
	for _, layout := range []string{"Jan _2, 2006 15:04:05.999999999 MST", "2006-01-02T15:04:05.999999999Z", "Jan  2, 2006 15:04:05.999999999 MST"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	t.Fatalf("no time: %q", text)
	return time.Time{}
}

// TestClockOffset: a far clock that is off and drifts, by as much as it was told,
// is found within the bound that is printed, and each way is longer than nothing
// and shorter than the round trip.
func TestClockOffset(t *testing.T) {
	for _, c := range []struct {
		offset time.Duration
		ppm    float64
	}{{0, 0}, {time.Hour, 0}, {-1500 * time.Microsecond, 0}, {-20 * time.Minute, 40}, {3 * time.Millisecond, -120}} {
		t.Run(fmt.Sprint(c.offset, " ", c.ppm), func(t *testing.T) {
			tx, rx := testnet.Wire(t, lab.Options{})
			reflecting(t, rx, "--clock-offset", c.offset.String(), "--clock-drift", fmt.Sprint(c.ppm))
			r := mustRun(t, "run", "--round-trip", "--rate", "5kpps", "--duration", "2s", "--json", "--tx", tx.String())
			o := r.RX.ClockOffset
			if o == nil || o.Error != "" {
				t.Fatalf("%+v", o)
			}
			if math.Abs(o.DriftPPM-c.ppm) > o.DriftBoundPPM || o.DriftBoundPPM > 200 {
				t.Errorf("drift %v ppm, found %v, right to %v", c.ppm, o.DriftPPM, o.DriftBoundPPM)
			}
			// The clock has drifted since the reflector began, a little before the run.
			since := time.Since(*r.Started)
			least, most := 0., math.Abs(c.ppm)*1e-6*float64(since+10*time.Second)
			if c.ppm < 0 {
				least, most = -most, least
			}
			off := float64(o.Ns - int64(c.offset))
			if off < least-float64(o.BoundNs) || off > most+float64(o.BoundNs) || o.BoundNs > 1_000_000 {
				t.Errorf("offset %v, found %d ns, right to %d", c.offset, o.Ns, o.BoundNs)
			}
			w := r.RX.OneWay
			if w == nil || w.Bound != o.BoundNs || w.There.Count != w.Back.Count || w.There.Count == 0 {
				t.Fatalf("%+v", w)
			}
			if sum := w.There.Mean + w.Back.Mean; sum > 2*(*r.RX.Latency.Mean)+float64(o.BoundNs) || w.There.Mean <= 0 || w.Back.Mean <= 0 {
				t.Errorf("there %v, back %v, round trip %v", w.There.Mean, w.Back.Mean, *r.RX.Latency.Mean)
			}
		})
	}
}
