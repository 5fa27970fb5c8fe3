package frames

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"pktgen/units"
)

// tshark writes frames to a pcap file and has tshark, which knows nothing of
// this package, take them apart: a map from field to text for each frame.
func tshark(t *testing.T, frames [][]byte, fields ...string) []map[string]string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("PKTGEN_REQUIRE_NET") == "1" {
			t.Fatalf("PKTGEN_REQUIRE_NET=1: %v", err)
		}
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "frames.pcap")
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(65600, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, 0), CaptureLength: len(f), Length: len(f)}, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "occurrence=a",
		"-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // no preferences of the user's
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(frames) {
		t.Fatalf("tshark tells of %d frames of %d\n%s", len(lines), len(frames), &stderr)
	}
	var told []map[string]string
	for _, line := range lines {
		m := map[string]string{}
		for i, v := range strings.Split(line, "\t") {
			m[fields[i]] = v
		}
		told = append(told, m)
	}
	return told
}

func TestTshark(t *testing.T) {
	var all [][]byte
	var want []map[string]string
	for _, v6 := range []bool{false, true} {
		for _, tagged := range []bool{false, true} {
			for _, more := range []int{0, 1, 700, 1450, 9000} {
				for _, zero := range []bool{false, true} {
					if v6 && zero {
						continue
					}
					s := testSpec(v6, tagged)
					s.Size += units.FrameSize(more)
					s.SrcPort, s.Flows, s.DstPort, s.TTL, s.TOS = 50000, 37, 9999, 17, 0x28
					if zero {
						s.UDPChecksum = ChecksumZero
					}
					tm := compile(t, s)
					slot := tm.Bytes()
					for _, n := range []uint64{0, 1, 36, 37, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<64 - 1, 0x0123456789abcdef} {
						nowNs := int64(n*0x9e3779b97f4a7c15 + 1)
						tm.Apply(slot, n, nowNs)
						all = append(all, bytes.Clone(slot))
						stamp := hexBytes("9e37 1234 0007")
						stamp = binary.BigEndian.AppendUint32(stamp, uint32(n))
						stamp = binary.BigEndian.AppendUint64(stamp, uint64(nowNs))
						m := map[string]string{
							"frame.len": fmt.Sprint(int(s.Size) - 4), "eth.src": "02:00:00:00:00:01", "eth.dst": "02:00:00:00:00:02",
							"udp.srcport": fmt.Sprint(50000 + n%37), "udp.dstport": "9999", "udp.length": fmt.Sprint(26 + more),
							"udp.payload": hex.EncodeToString(stamp) + strings.Repeat("00", more),
							"vlan.id":     "", "vlan.priority": "", "vlan.dei": "",
							"ip.src": "", "ip.dst": "", "ip.len": "", "ip.ttl": "", "ip.dsfield": "", "ip.flags.df": "", "ip.checksum.status": "",
							"ipv6.src": "", "ipv6.dst": "", "ipv6.plen": "", "ipv6.hlim": "", "ipv6.tclass": "",
							"udp.checksum.status": "1", "_ws.malformed": "", "_ws.expert.severity": "",
						}
						if zero {
							m["udp.checksum.status"] = "3" // not present
							m["_ws.expert.severity"] = "*" // and tshark has a word to say on it
						}
						if tagged {
							m["vlan.id"], m["vlan.priority"], m["vlan.dei"] = "100", "5", "0"
						}
						if v6 {
							m["ipv6.src"], m["ipv6.dst"], m["ipv6.plen"] = "2001:2::1", "2001:2::2", m["udp.length"]
							m["ipv6.hlim"], m["ipv6.tclass"] = "17", "0x00000028"
						} else {
							m["ip.src"], m["ip.dst"], m["ip.len"] = "198.18.0.1", "198.18.0.2", fmt.Sprint(46+more)
							m["ip.ttl"], m["ip.dsfield"], m["ip.flags.df"], m["ip.checksum.status"] = "17", "0x28", "1", "1"
						}
						want = append(want, m)
					}
					closing := tm.Bytes()
					tm.ApplyClosing(closing, 4, 123456789)
					all = append(all, closing)
					last := map[string]string{}
					for k, v := range want[len(want)-1] {
						last[k] = v
					}
					last["udp.srcport"] = "50004"
					last["udp.payload"] = "9e38123400070000000400000000075bcd15" + strings.Repeat("00", more)
					want = append(want, last)
				}
			}
		}
	}
	var fields []string
	for f := range want[0] {
		fields = append(fields, f)
	}
	for i, got := range tshark(t, all, fields...) {
		for f, w := range want[i] {
			if got[f] != w && w != "*" {
				t.Errorf("frame %d: tshark has %s = %q, want %q\n%x", i, f, got[f], w, all[i])
			}
		}
	}
}

// A checksum that is off by one is told by tshark: else TestTshark says nothing.
func TestTsharkSeesBadChecksums(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := testSpec(v6, false)
		b := compile(t, s).Bytes()
		b[s.headers()-1] ^= 1
		if !v6 {
			b[25] ^= 1
		}
		got := tshark(t, [][]byte{b}, "ip.checksum.status", "udp.checksum.status")[0]
		if got["udp.checksum.status"] != "0" || !v6 && got["ip.checksum.status"] != "0" {
			t.Errorf("v6=%v: %v, want both 0 (bad)", v6, got)
		}
	}
}

// Wireshark's dissector of the kernel's pktgen reads what ParseStamp reads.
func TestTsharkKernelPktgen(t *testing.T) {
	b := hexBytes(kernelFrame)
	var p Parsed
	if ParseStamp(b, &p) != KindKernelPktgen {
		t.Fatal("not recognised")
	}
	got := tshark(t, [][]byte{b}, "pktgen.magic", "pktgen.seqnum", "pktgen.tvsec", "pktgen.tvusec")[0]
	if got["pktgen.magic"] != fmt.Sprintf("%#x", MagicKernel) || got["pktgen.seqnum"] != fmt.Sprint(p.Stamp.Seq) ||
		got["pktgen.tvsec"] != fmt.Sprint(p.Stamp.TimeNs/1e9) || got["pktgen.tvusec"] != fmt.Sprint(p.Stamp.TimeNs%1e9/1e3) {
		t.Errorf("tshark reads %v, ParseStamp %+v", got, p.Stamp)
	}
}
