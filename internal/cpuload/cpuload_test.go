package cpuload

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/pin"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func proc(stat, softnet string) fstest.MapFS {
	return fstest.MapFS{"stat": {Data: []byte(stat)}, "net/softnet_stat": {Data: []byte(softnet)}}
}

// Files of kernels, shortened: the numbers of /proc/stat in tests below are
// told from one another by their digits.
const (
	statNew = `cpu  101 21 301 401 501 601 701 801 0 0
cpu0 1 20 300 4000 50000 600000 7000000 80000000 9 9
cpu1 2 20 300 4000 50000 600000 7000000 80000000 9 9
cpu3 4 20 300 4000 50000 600000 7000000 80000000 9 9
intr 31404723 0 0 24 1 1 10
ctxt 64891233
btime 1700000000
processes 52345
procs_running 1
procs_blocked 0
softirq 8723 1 2 3 4 5 6 7 8 9 10
`
	// Linux 6.18; CPU 2 is offline. Columns 14 and 15 are the parts of the backlog.
	softnetNew = `6f028106 00000001 00000017 00000000 00000000 00000000 00000000 00000000 00000000 0000000a 0000000b 0000000c 00000000 0000000c 00000000
0b2914f7 00000002 00000003 00000000 00000000 00000000 00000000 00000000 00000000 0000001a 0000001b 0000001c 00000001 0000001c 00000000
ffffffff 00000003 00000004 00000000 00000000 00000000 00000000 00000000 00000000 0000002a 0000002b 0000002c 00000003 0000002c 00000000
`
	// Linux 4.x: no backlog, no number.
	softnet4 = `6f028106 00000001 00000017 00000000 00000000 00000000 00000000 00000000 00000000 0000000a 0000000b
0b2914f7 00000002 00000003 00000000 00000000 00000000 00000000 00000000 00000000 0000001a 0000001b
ffffffff 00000003 00000004 00000000 00000000 00000000 00000000 00000000 00000000 0000002a 0000002b
`
	// Linux 2.6.10, two CPUs: no steal; nine columns.
	stat26    = "cpu  3 0 0 0 0 0 0\ncpu0 1 20 300 4000 50000 600000 7000000\ncpu1 2 20 300 4000 50000 600000 7000000\nintr 1\n"
	softnet26 = "000000ff 00000001 00000002 00000000 00000000 00000000 00000000 00000000 00000007\n" +
		"000000fe 00000003 00000004 00000000 00000000 00000000 00000000 00000000 00000007\n"
	// Linux 2.4: four columns.
	stat24 = "cpu  3 0 0 0\ncpu0 1 20 300 4000\npage 1 2\n"
)

func TestRead(t *testing.T) {
	cpu := func(id int, user uint64, s Softnet) CPU {
		return CPU{ID: id, User: user, System: 300, Idle: 54000, IRQ: 600000, SoftIRQ: 7000000, Steal: 80000000, Softnet: s}
	}
	old := func(id int, user uint64, s Softnet) CPU {
		c := cpu(id, user, s)
		c.Steal = 0
		return c
	}
	noBacklog := func(l Load) Load {
		l = slices.Clone(l)
		for i := range l {
			l[i].Softnet.Backlog = 0
		}
		return l
	}
	new := Load{
		cpu(0, 21, Softnet{0x6f028106, 1, 0x17, 10, 11, 12}),
		cpu(1, 22, Softnet{0x0b2914f7, 2, 3, 26, 27, 28}),
		cpu(3, 24, Softnet{0xffffffff, 3, 4, 42, 43, 44}),
	}
	lines := strings.SplitAfter(softnetNew, "\n")
	for _, c := range []struct {
		name          string
		stat, softnet string
		want          Load
	}{
		{"new", statNew, softnetNew, new},
		{"new: the number counts, not the order", statNew, lines[2] + lines[0] + lines[1], new},
		{"new: one gone from softnet_stat", statNew, lines[0] + lines[2], Load{new[0], cpu(1, 22, Softnet{}), new[2]}},
		{"new: one more in softnet_stat", strings.Replace(statNew, "cpu1 ", "was1 ", 1), softnetNew, Load{new[0], new[2]}},
		{"4.x: the order counts", statNew, softnet4, noBacklog(new)},
		{"4.x: one more in softnet_stat", statNew, softnet4 + lines[0][:98] + "\n", noBacklog(new)},
		{"2.6.10", stat26, softnet26, Load{
			old(0, 21, Softnet{Processed: 0xff, Dropped: 1, TimeSqueeze: 2}), old(1, 22, Softnet{Processed: 0xfe, Dropped: 3, TimeSqueeze: 4}),
		}},
		{"2.4", stat24, "1 2 3\n", Load{{ID: 0, User: 21, System: 300, Idle: 4000, Softnet: Softnet{Processed: 1, Dropped: 2, TimeSqueeze: 3}}}},
		{"columns of a kernel to come", "cpu0 1 2 3 4 5 6 7 8 9 10 11 twelve\n", "1 2 3 0 0 0 0 0 0 a b c 0 e f 10 words\n",
			Load{{ID: 0, User: 3, System: 3, Idle: 9, IRQ: 6, SoftIRQ: 7, Steal: 8, Softnet: Softnet{1, 2, 3, 10, 11, 12}}}},
		{"no softnet lines", stat24, "\n", Load{{ID: 0, User: 21, System: 300, Idle: 4000}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(proc(c.stat, c.softnet))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct {
		name          string
		stat, softnet string
		want          string
	}{
		{"empty", "", softnetNew, "proc/stat: no CPU"},
		{"all CPUs only", "cpu  1 2 3 4\n", softnetNew, "proc/stat: no CPU"},
		{"word", "cpu0 1 2 three 4\n", softnetNew, `"cpu0 1 2 three 4\n"`},
		{"negative", "cpu0 1 2 -3 4\n", softnetNew, `"-3"`},
		{"short", "cpu0 1 2 3\n", softnetNew, "want cpuN and four numbers"},
		{"number", "cpu0 1 2 3 4\ncpufreq 1 2 3 4\n", softnetNew, `"cpufreq `},
		{"number too large", "cpu99999999999999999999 1 2 3 4\n", softnetNew, "want cpuN"},
		{"twice", "cpu1 1 2 3 4\ncpu0 1 2 3 4\ncpu1 1 2 3 4\n", softnetNew, "CPU 1 stands twice"},
		{"softnet: short", statNew, "1 2\n", "proc/net/softnet_stat: line \"1 2\\n\""},
		{"softnet: word", statNew, "1 2 nothing\n", `"nothing"`},
		{"softnet: too large", statNew, "1 2 100000000\n", "out of range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(proc(c.stat, c.softnet))
			if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
				t.Errorf("%v, %v; want an error with %q", got, err, c.want)
			}
		})
	}
	for _, missing := range []string{"stat", "net/softnet_stat"} {
		files := proc(statNew, softnetNew)
		delete(files, missing)
		if _, err := Read(files); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

func TestSub(t *testing.T) {
	before := Load{
		{ID: 0, User: 100, System: 200, IRQ: 300, SoftIRQ: 400, Steal: 500, Idle: 600, Softnet: Softnet{10, 20, 30, 40, 50, 60}},
		{ID: 1, Idle: 1000},
		{ID: 2, User: 7, Idle: 7, Softnet: Softnet{Processed: 0xfffffff0, Backlog: 9}},
		{ID: 3, User: 5}, // goes offline
		{ID: 5, User: 1000, Idle: 1000},
	}
	after := Load{
		{ID: 0, User: 110, System: 220, IRQ: 330, SoftIRQ: 440, Steal: 550, Idle: 650, Softnet: Softnet{11, 22, 33, 44, 55, 6}},
		{ID: 1, Idle: 1100},
		{ID: 2, User: 7, Idle: 7, Softnet: Softnet{Processed: 0x10, Backlog: 3}},
		{ID: 4, User: 5}, // has come online
		{ID: 5, User: 1010, Idle: 999},
	}
	want := Shares{
		{ID: 0, Ticks: 200, User: 0.05, System: 0.1, IRQ: 0.15, SoftIRQ: 0.2, Steal: 0.25, Idle: 0.25, Softnet: Softnet{1, 2, 3, 4, 5, 6}},
		{ID: 1, Ticks: 100, Idle: 1},
		{ID: 2, Softnet: Softnet{Processed: 0x20, Backlog: 3}}, // no tick; a counter wrapped
		{ID: 5, Ticks: 10, User: 1},                            // idle went back
	}
	got := after.Sub(before)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for i, busy := range []float64{0.75, 0, 0, 1} {
		if math.Abs(got[i].Busy()-busy) > 1e-9 {
			t.Errorf("CPU %d: busy %v, want %v", got[i].ID, got[i].Busy(), busy)
		}
	}
	for _, c := range []struct {
		of   Shares
		want int
		ok   bool
	}{{got, 5, true}, {got[:3], 0, true}, {got[1:3], 1, true}, {nil, 0, false}} {
		if s, ok := c.of.Busiest(); s.ID != c.want || ok != c.ok {
			t.Errorf("busiest of %v: %v, %v; want CPU %d, %v", c.of, s.ID, ok, c.want, c.ok)
		}
	}
	if got := after.Sub(nil); got != nil {
		t.Errorf("since no reading: %v", got)
	}
}

func live(t *testing.T) Load {
	t.Helper()
	l, err := Read(os.DirFS("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestBusy burns a CPU, and compares with what the kernel says of the thread.
func TestBusy(t *testing.T) {
	cpus, err := pin.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	cpu := cpus[len(cpus)-1]
	err = netdev.OnThread(func() error {
		if err := pin.Thread(cpu); err != nil {
			return err
		}
		used := func() (ticks float64) {
			var u unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
				t.Error(err)
			}
			const userHz = 100
			return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9 * userHz
		}
		before, start := live(t), used()
		// Long against a tick, by the thread's own time: others may want the CPU too.
		const enough = 50
		for used()-start < enough {
			for range 1 << 16 {
				runtime.KeepAlive(cpu)
			}
		}
		own := used() - start
		shares := live(t).Sub(before)
		i := slices.IndexFunc(shares, func(s Share) bool { return s.ID == cpu })
		if i < 0 {
			return fmt.Errorf("CPU %d is not among %v", cpu, shares)
		}
		s := shares[i]
		if s.Busy() < 0.8 {
			t.Errorf("CPU %d, on which a thread was never idle, was busy for %.2f of the time: %+v", cpu, s.Busy(), s)
		}
		if theirs := (s.User + s.System) * float64(s.Ticks); theirs < 0.8*own {
			t.Errorf("CPU %d: %.0f ticks of user and system; the thread alone used %.0f", cpu, theirs, own)
		}
		b, ok := shares.Busiest()
		if !ok || b.Busy() < s.Busy() {
			t.Errorf("busiest %+v, but %+v", b, s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSoftnetIsGlobal: a network namespace shows the counts of the host, and these
// count the frames that pass a veth pair.
func TestSoftnetIsGlobal(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	before := live(t)
	const frames = 1000
	var there Load
	testnet.In(t, tx, func() error {
		info, err := netdev.Lookup(netdev.Ref{Name: tx.Name})
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := make([]byte, 60)
		frame[12], frame[13] = 0x88, 0xb5 // for experiments, IEEE 802
		for range frames {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: info.Index}); err != nil {
				return err
			}
		}
		text, err := os.ReadFile("/proc/thread-self/net/softnet_stat")
		if err != nil {
			return err
		}
		there = slices.Clone(before)
		for i := range there {
			there[i].Softnet = Softnet{}
		}
		return parseSoftnet(string(text), there)
	})
	after := live(t)
	n := 0
	for i, c := range there.Sub(before) {
		n += int(c.Softnet.Processed)
		if max := after.Sub(before)[i].Softnet.Processed; c.Softnet.Processed > max {
			t.Errorf("CPU %d: %d processed since as read in the namespace, %d as read afterwards", c.ID, c.Softnet.Processed, max)
		}
	}
	if n < frames/2 { // some may still wait
		t.Errorf("%d frames passed, the namespace shows %d more", frames, n)
	}
}

func FuzzStat(f *testing.F) {
	for _, s := range []string{statNew, stat26, stat24, "", "cpu", "cpu0", "cpu0 1 2 3 18446744073709551615 1", "cpu-1 1 2 3 4", "cpu+1 1 2 3 4", "cpu0 1 2 3 4\rcpu1 1 2 3 4"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		before, err := parseStat(a)
		if (err == nil) != (len(before) > 0) {
			t.Fatalf("%v, %v", before, err)
		}
		for i := 1; i < len(before); i++ {
			if before[i-1].ID >= before[i].ID {
				t.Fatalf("not in order: %v", before)
			}
		}
		var text strings.Builder // written again, and read, it is the same
		for _, c := range before {
			fmt.Fprintf(&text, "cpu%d %d 0 %d %d 0 %d %d %d\n", c.ID, c.User, c.System, c.Idle, c.IRQ, c.SoftIRQ, c.Steal)
		}
		if again, err := parseStat(text.String()); len(before) > 0 && (err != nil || !slices.Equal(before, again)) {
			t.Fatalf("%v, %v; want %v", again, err, before)
		}
		after, _ := parseStat(b)
		for _, s := range after.Sub(before) {
			sum := s.Busy() + s.Idle
			if ok := math.Abs(sum-1) < 1e-9 || sum == 0; !ok || min(s.User, s.System, s.IRQ, s.SoftIRQ, s.Steal, s.Idle) < 0 {
				t.Fatalf("shares %+v", s)
			}
		}
	})
}

func FuzzSoftnet(f *testing.F) {
	for _, s := range []string{softnetNew, softnet4, softnet26, "", "\n\n", "1 2 3", "0 0 0 0 0 0 0 0 0 0 0 0 ffffffff", "-1 2 3", "+1 2 3", "0x1 2 3", "1_0 2 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		load := Load{{ID: 0}, {ID: 1, User: 7}, {ID: 3}}
		if err := parseSoftnet(text, load); err != nil {
			return
		}
		var again strings.Builder // with all columns, whichever it had
		for _, c := range load {
			s := c.Softnet
			fmt.Fprintf(&again, "%08x %08x %08x 0 0 0 0 0 0 %08x %08x %08x %08x\n", s.Processed, s.Dropped, s.TimeSqueeze, s.ReceivedRPS, s.FlowLimit, s.Backlog, c.ID)
		}
		twin := Load{{ID: 0}, {ID: 1, User: 7}, {ID: 3}}
		if err := parseSoftnet(again.String(), twin); err != nil || !slices.Equal(load, twin) {
			t.Fatalf("%v, %v; want %v", twin, err, load)
		}
	})
}
