package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
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
	"pktgen/ring/tpacket"
)

// requireProgram skips where a second program that a test asks is missing; CI
// installs it.
func requireProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("PKTGEN_REQUIRE_NET") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// capture has tshark capture frames frames on an interface, to a file, while f runs.
func capture(t *testing.T, ref netdev.Ref, frames int, f func()) (file string) {
	t.Helper()
	requireProgram(t, "tshark")
	file = filepath.Join(t.TempDir(), "wire.pcap")
	cmd := exec.Command("tshark", "-n", "-Q", "-i", ref.Name, "-f", "udp", "-c", strconv.Itoa(frames), "-a", "duration:20", "-F", "pcap", "-w", file)
	if err := ref.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, "tshark captures", func() bool {
		open := false
		testnet.In(t, ref, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/packet")
			open = strings.Count(string(b), "\n") > 1
			return err
		})
		st, err := os.Stat(file)
		return open && err == nil && st.Size() > 0
	})
	f()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("tshark did not end")
	}
	return file
}

// dissect has tshark print fields of each frame of a capture.
func dissect(t *testing.T, file string, fields ...string) [][]string {
	t.Helper()
	args := []string{"-n", "-r", file, "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimRight(line, "\n"), "|"))
	}
	return rows
}

// TestOnTheWire: what leaves is what was asked for, as tshark sees it.
func TestOnTheWire(t *testing.T) {
	const frames = 40
	for _, c := range []struct {
		args   string
		length int // octets without FCS
		want   []string
	}{
		{"--size 64", 60, []string{"0x0800", "", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "1"}},
		{"--size 64 --refill", 60, []string{"0x0800", "", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "1"}},
		{"--size 1518 --src 198.19.1.2 --dst 198.19.3.4 --sport 7 --dport 8", 1514, []string{"0x0800", "", "198.19.1.2", "198.19.3.4", "", "", "7", "8", "1", "1"}},
		{"--size 65", 61, []string{"0x0800", "", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "1"}},
		{"--size 68 --vlan 100:5", 64, []string{"0x0800", "100", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "1"}},
		{"--size 1522 --vlan 4094", 1518, []string{"0x0800", "4094", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "1"}},
		{"--ipv6", 80, []string{"0x86dd", "", "", "", "2001:2::1", "2001:2::2", "1024", "9", "", "1"}},
		{"--ipv6 --vlan 1 --size 1522", 1518, []string{"0x86dd", "1", "", "", "2001:2::1", "2001:2::2", "1024", "9", "", "1"}},
		{"--udp-checksum-zero", 60, []string{"0x0800", "", "198.18.0.1", "198.18.0.2", "", "", "1024", "9", "1", "3"}}, // 3: not present
	} {
		for _, backend := range able(c.args) {
			t.Run(backend+c.args, func(t *testing.T) {
				tx, rx := testnet.Wire(t, lab.Options{})
				info, err := netdev.Lookup(tx)
				if err != nil {
					t.Fatal(err)
				}
				takesLive(t, rx)
				file := capture(t, rx, frames+closingRepeats, func() {
					mustRun(t, append(strings.Fields("tx --json --rate 2kpps --backend "+backend+" --iface "+tx.String()+" --dst-mac 02:00:00:00:00:02 --count "+strconv.Itoa(frames)), strings.Fields(c.args)...)...)
				})
				rows := dissect(t, file, "frame.len", "eth.src", "eth.dst", "udp.payload",
					"eth.type", "vlan.id", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "udp.srcport", "udp.dstport", "ip.checksum.status", "udp.checksum.status")
				if len(rows) != frames+closingRepeats {
					t.Fatalf("%d frames captured", len(rows))
				}
				for n, r := range rows {
					if r[5] != "" { // behind a tag the EtherType is vlan.etype
						r[4] = c.want[0]
					}
					if got := strings.Join(r[4:], "|"); r[0] != strconv.Itoa(c.length) || r[1] != info.MAC.String() || r[2] != "02:00:00:00:00:02" || got != strings.Join(c.want, "|") {
						t.Fatalf("frame %d: %d octets wanted, got %v, want %v", n, c.length, r, c.want)
					}
					magic, seq := r[3][:4], r[3][12:20]
					want := fmt.Sprintf("9e37 %08x", n)
					if n >= frames {
						want = fmt.Sprintf("9e38 %08x", n-frames)
					}
					if magic+" "+seq != want {
						t.Errorf("frame %d: magic and number %s %s, want %s", n, magic, seq, want)
					}
				}
				if n, err := strconv.ParseUint(rows[frames][3][20:36], 16, 64); err != nil || n != frames {
					t.Errorf("the closing frame says %d", n)
				}
			})
		}
	}
}

// TestFlowsOnTheWire: --flows rotates through source ports.
func TestFlowsOnTheWire(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	file := capture(t, rx, 30, func() {
		mustRun(t, strings.Fields("tx --json --rate 2kpps --flows 7 --sport 2000 --dst-mac 02:00:00:00:00:02 --count 30 --iface "+tx.String())...)
	})
	for n, r := range dissect(t, file, "udp.srcport", "udp.checksum.status") {
		if r[0] != strconv.Itoa(2000+n%7) || r[1] != "1" {
			t.Errorf("frame %d: source port %s, checksum status %s", n, r[0], r[1])
		}
	}
}

// TestGarbage: whatever comes in, rx counts it as other, and its memory stays flat.
func TestGarbage(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	p := start(t, "rx", "--iface", rx.String(), "--json", "--max-streams", "16")
	awaitReceiver(t, p)
	info, err := netdev.Lookup(tx)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var sent uint64
	flood := func(frames int) {
		testnet.In(t, tx, func() error {
			ring, err := tpacket.OpenTX(tpacket.TXOptions{Interface: tx.Name, Index: info.Index, MaxFrame: 1514})
			if err != nil {
				return err
			}
			defer ring.Close()
			for left := frames; left > 0; {
				slots := ring.Reserve(min(64, left))
				for i := range slots {
					s := slots[i][:14+rnd.IntN(1501)]
					for j := range s {
						s[j] = byte(rnd.Uint32())
					}
					copy(s[12:], []byte{0x08, 0x00, 0x45}) // so that some look further into it
					slots[i] = s
				}
				ring.Commit(slots)
				left -= len(slots)
				for ring.Outstanding() > 0 {
					if err := ring.Kick(); err != nil {
						return err
					}
				}
			}
			sent += ring.Counts().Sent
			return nil
		})
	}
	flood(20_000)
	before := resident(t, p.cmd.Process.Pid)
	flood(60_000)
	after := resident(t, p.cmd.Process.Pid)
	if after > before+8<<20 {
		t.Errorf("resident memory grew from %d to %d KiB", before>>10, after>>10)
	}
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	if code := p.wait(5 * time.Second); code != 130 {
		t.Errorf("exit code %d", code)
	}
	r := p.document()
	if r.RX.OtherFrames+r.RX.SocketDrops != sent || r.RX.Frames != 0 || sent != 80_000 {
		t.Errorf("%d sent, %d other, %d dropped, %d of ours", sent, r.RX.OtherFrames, r.RX.SocketDrops, r.RX.Frames)
	}
}

// resident is a process's resident memory, octets.
func resident(t *testing.T, pid int) uint64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// TestFullDisk: a result that cannot be kept is still printed, and the exit code tells.
func TestFullDisk(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4k,nr_inodes=8"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	if err := os.WriteFile(dir+"/full", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "run", "--tx", tx.String(), "--rx", rx.String(), "--count", "100", "--rate", "10kpps", "--json", "--out", dir)
	if code := p.wait(20 * time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if r := p.document(); r.TX.Frames != 100 || r.RX.Lost != 0 {
		t.Errorf("sent %d, lost %d", r.TX.Frames, r.RX.Lost)
	}
	if !strings.Contains(p.stderr.String(), "no space left") {
		t.Errorf("stderr %q", p.stderr.String())
	}
	if names, _ := filepath.Glob(dir + "/.result*"); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}
