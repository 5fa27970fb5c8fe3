package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// able are the sending backends that can do what flags ask for.
func able(args string) (names []string) {
	names = append(names, backendPacket, backendXDP)
	if !strings.Contains(args, "--refill") {
		names = append(names, backendLive)
		if !strings.Contains(args, "--udp-checksum-zero") && !strings.Contains(args, "--flows") {
			names = append(names, backendGSO)
		}
	}
	return names
}

// takesLive has a veth take live frames, by a program that lets all pass.
func takesLive(t *testing.T, ref netdev.Ref) {
	t.Helper()
	info, err := netdev.Lookup(ref)
	if err != nil {
		t.Fatal(err)
	}
	pass, err := passOn(info)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pass.Close(); err != nil {
			t.Error(err)
		}
	})
}

// untouched says that a run left the interfaces as a new pair has them.
func untouched(t *testing.T, refs ...netdev.Ref) {
	t.Helper()
	for _, ref := range refs {
		if out := command(t, ref, "ip", "link", "show", ref.Name); strings.Contains(out, "xdp") {
			t.Errorf("%v: a program is left: %s", ref, out)
		}
		on, err := netdev.Features(ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"tx-checksum-ip-generic", "tx-udp-segmentation"} {
			if !slices.Contains(on, name) {
				t.Errorf("%v: %s is left off", ref, name)
			}
		}
	}
}

// TestBackends: every way to send and every way to receive say the same of the
// same frames, to the frame.
func TestBackends(t *testing.T) {
	const count = 6_001
	for _, args := range []string{
		"", "--size 512", "--size 1518", "--size 3000", "--size 9000",
		"--ipv6 --size 200", "--ipv6 --vlan 7:3 --size 1522", "--vlan 7", "--flows 1000", "--ipv6 --flows 60000", "--udp-checksum-zero",
		"--queues 2", "--queues 2 --flows 3 --ipv6",
	} {
		for _, send := range able(args) {
			if (send == backendLive || send == backendXDP) && strings.Contains(args, "9000") {
				continue // a page holds no such frame
			}
			for _, receive := range []string{backendPacket, backendXDP, backendCount} {
				mtu := 9000
				if receive == backendXDP {
					if mtu = 3500; strings.Contains(args, "9000") {
						continue
					}
				}
				t.Run(send+" "+receive+" "+args, func(t *testing.T) {
					tx, rx := testnet.Wire(t, lab.Options{Queues: 2, MTU: mtu})
					before := received(t, rx)
					r := mustRun(t, append([]string{"run", "--tx", tx.String(), "--rx", rx.String(), "--backend", send, "--rx-backend", receive,
						"--rate", "20kpps", "--count", strconv.Itoa(count), "--json"}, strings.Fields(args)...)...)
					identity(t, r)
					clean(t, r)
					if r.TX.Frames != count || r.RX.Frames != count || r.TX.Backend != send || r.RX.Backend != receive {
						t.Errorf("sent %d by %s, received %d by %s", r.TX.Frames, r.TX.Backend, r.RX.Frames, r.RX.Backend)
					}
					if r.TX.Bytes != r.RX.Bytes {
						t.Errorf("octets: sent %d, received %d", r.TX.Bytes, r.RX.Bytes)
					}
					for _, st := range r.RX.Streams {
						if st.FirstSeq != 0 || st.Sent == nil || *st.Sent != st.Frames {
							t.Errorf("stream %d: first number %d, %d frames, its sender says %v", st.ID, st.FirstSeq, st.Frames, st.Sent)
						}
					}
					if l := r.RX.Latency; l.Count != count || l.Negative != 0 || *l.Min < 0 || *l.Max > 1e9 {
						t.Errorf("latency %+v", l)
					}
					closings := uint64(len(r.RX.Streams) * closingRepeats)
					if got := received(t, rx) - before; got < count+closings || got > count+closings+10 { // what made ready
						t.Errorf("the port received %d", got)
					}
					untouched(t, tx, rx)
				})
			}
		}
	}
}

// TestBackendPace: each backend sends at the rate asked for.
func TestBackendPace(t *testing.T) {
	for _, send := range able("") {
		for _, rate := range []string{"1kpps", "100kpps"} {
			t.Run(send+rate, func(t *testing.T) {
				tx, rx := testnet.Wire(t, lab.Options{})
				r := mustRun(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--backend", send, "--rate", rate, "--duration", "1s", "--json")
				identity(t, r)
				want := map[string]uint64{"1kpps": 1000, "100kpps": 100_000}[rate]
				if r.TX.Frames+64 < want || r.TX.Frames > want {
					t.Errorf("sent %d in a second, not %d", r.TX.Frames, want)
				}
				if e := r.TX.RateError; e == nil || *e < -0.01 || *e > 0.01 {
					t.Errorf("rate error %v", e)
				}
			})
		}
	}
}

// TestBackendInterrupted: whatever ends a run early, what was measured by then is
// whole, and the interfaces are as they were.
func TestBackendInterrupted(t *testing.T) {
	for _, send := range able("") {
		for _, receive := range []string{backendPacket, backendXDP, backendCount} {
			for _, how := range []string{"signal", "sender down", "receiver down"} {
				t.Run(fmt.Sprint(send, receive, how), func(t *testing.T) {
					tx, rx := testnet.Wire(t, lab.Options{})
					p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--backend", send, "--rx-backend", receive, "--duration", "60s", "--json")
					eventually(t, "the run has begun", func() bool { return arrived(rx) >= 1000 })
					want := 1
					switch how {
					case "signal":
						want = 130
						_ = p.cmd.Process.Signal(syscall.SIGINT)
					case "sender down":
						ip(t, tx, "link", "set", tx.Name, "down")
					case "receiver down":
						ip(t, rx, "link", "set", rx.Name, "down")
					}
					if code := p.wait(5 * time.Second); code != want {
						t.Errorf("exit code %d, want %d", code, want)
					}
					r := p.document()
					identity(t, r)
					if r.TX.Frames == 0 || r.RX.Frames == 0 {
						t.Errorf("sent %d, received %d", r.TX.Frames, r.RX.Frames)
					}
					untouched(t, tx, rx)
				})
			}
		}
	}
}

// TestBackendCannot: what a backend cannot do is said, with the way out.
func TestBackendCannot(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{MTU: 9000})
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--backend live --burst 8 --rate 1kpps", exitUsage, "evenly"},
		{"--backend live --poisson --rate 1kpps", exitUsage, "evenly"},
		{"--backend live --refill", exitUsage, "payload"},
		{"--backend live --size 9000", exitPrivilege, "none of 8996 octets"},
		{"--backend live", exitPrivilege, "takes no redirected frames"},
		{"--backend gso --flows 2", exitUsage, "ports"},
		{"--backend gso --udp-checksum-zero", exitUsage, "checksum"},
		{"--backend gso --refill", exitUsage, "headers"},
		{"--backend xdp --queues 2", exitPrivilege, "use --queues 1"},
		{"--backend xdp --size 9000", exitPrivilege, "frame of 8996 octets"},
		{"--backend fast", exitUsage, "packet"},
	} {
		p := start(t, append(strings.Fields("tx --iface "+tx.String()+" --count 10"), strings.Fields(c.args)...)...)
		if code := p.wait(5 * time.Second); code != c.code || !strings.Contains(p.stderr.String(), c.says) {
			t.Errorf("%s: exit code %d\n%s", c.args, code, p.stderr.String())
		}
	}
	untouched(t, tx, rx)
	p := start(t, "run", "--round-trip", "--tx", tx.String(), "--rx-backend", "count", "--count", "10")
	if code := p.wait(5 * time.Second); code != exitUsage || !strings.Contains(p.stderr.String(), "come back") {
		t.Errorf("round trips: exit code %d\n%s", code, p.stderr.String())
	}
	takesLive(t, rx)
	p = start(t, "rx", "--iface", rx.String(), "--backend", "count", "--count", "1")
	if code := p.wait(5 * time.Second); code != 1 || !strings.Contains(p.stderr.String(), "another XDP program") || !strings.Contains(p.stderr.String(), "hint: ip link show") {
		t.Errorf("a port with a program: exit code %d\n%s", code, p.stderr.String())
	}
}

// TestAutoFallsBack: where the fastest way is closed the next one is taken, and
// the result says why.
func TestAutoFallsBack(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	for args, want := range map[string]string{
		"":                         backendGSO,
		"--flows 2":                backendXDP,
		"--qdisc":                  backendPacket,
		"--rate 10kpps":            backendPacket,
		"--burst 4 --rate 400kpps": backendGSO,
		"--refill":                 backendXDP,
	} {
		r := mustRun(t, append(strings.Fields("tx --json --count 1000 --iface "+tx.String()), strings.Fields(args)...)...)
		if r.TX.Backend != want || r.TX.BackendReason == "" || r.TX.Frames != 1000 {
			t.Errorf("%s: %d frames by %s: %s", args, r.TX.Frames, r.TX.Backend, r.TX.BackendReason)
		}
	}
}
