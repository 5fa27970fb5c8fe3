// Command bench sends frames through one veth pair by every way there is on this
// machine, one after the other, in turns, and prints how many a second the receiving
// port counted: pktgen's backends, the programs that it is compared with, and, in C,
// the bare kernel calls that it is built on.
//
//	go run ./scripts/bench            sizes 64, 512, 1518; five runs of each
//	go run ./scripts/bench -runs 3 -sizes 64 -only live,trafgen
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/xdp"
	"pktgen/lab"
)

const fcs = 4

// contender is one way to send.
type contender struct {
	name    string
	cores   int
	program string   // that is to be on the PATH
	args    []string // of it; see expand
	far     string   // what the receiving port does; "": drop
	peer    bool     // somebody else's sender: ours are compared with these
}

// What the receiving port does with a frame.
const (
	drop   = ""       // an XDP program drops it
	counts = "counts" // pktgen's sink in the driver; the sender attaches it
	listen = "listen" // the kernel has it: the sender wants an answer
)

// contenders are all of them; {} in an argument is replaced.
func contenders() []contender {
	ours := func(name string, cores int, args string) contender {
		return contender{name: name, cores: cores, program: "{pktgen}", args: strings.Fields("tx --iface {ns}/eth31 --size {size} --dst-mac 02:00:00:00:00:99 --duration 60s --queues " + strconv.Itoa(cores) + " --cpus {cpus} " + args)}
	}
	checked := func(name string, cores int) contender {
		return contender{name: name, cores: cores, far: counts, program: "{pktgen}", args: strings.Fields("run --tx {ns}/eth31 --rx {far}/eth32 --size {size} --duration 60s --backend live --rx-backend count --queues " + strconv.Itoa(cores) + " --cpus {cpus}")}
	}
	theirs := func(name string, cores int, program, args string) contender {
		return contender{name: name, cores: cores, program: program, args: strings.Fields(args), peer: true}
	}
	loop := func(name, mode string) contender {
		return contender{name: "C: " + name, cores: 1, program: "{loops}", args: []string{mode, "eth31", "0", "{octets}"}}
	}
	iperf := theirs("iperf3 -u (to its server)", 1, "iperf3", "-u -c 198.18.0.2 -b 0 -l {payload} -t 60 -A 0")
	iperf.far = listen
	return []contender{
		ours("packet", 1, "--backend packet"), ours("gso", 1, "--backend gso"), ours("xdp", 1, "--backend xdp"), ours("live", 1, "--backend live"),
		ours("packet", 2, "--backend packet"), ours("gso", 2, "--backend gso"), ours("xdp", 2, "--backend xdp"), ours("live", 2, "--backend live"),
		checked("live, counted in the driver", 1), checked("live, counted in the driver", 2),
		theirs("trafgen", 1, "trafgen", "--dev eth31 --conf {trafgen} --cpus 1"),
		theirs("tcpreplay --topspeed -K", 1, "tcpreplay", "-q --topspeed -K --loop 100000000 -i eth31 {pcap}"),
		theirs("mausezahn", 1, "mausezahn", "eth31 -q -c 0 {hex}"),
		theirs("testpmd net_af_packet", 1, "dpdk-testpmd", "--no-huge -m 256 --no-pci -l 0,1 --file-prefix bench --vdev=net_af_packet0,iface=eth31,qdisc_bypass=1 -- --forward-mode=txonly --txpkts={octets} --nb-cores=1 --total-num-mbufs=8192"),
		theirs("testpmd net_af_xdp", 1, "dpdk-testpmd", "--no-huge -m 256 --no-pci -l 0,1 --file-prefix bench --vdev=net_af_xdp0,iface=eth31 -- --forward-mode=txonly --txpkts={octets} --nb-cores=1 --total-num-mbufs=8192"),
		theirs("xdp-trafficgen (64 only)", 1, "xdp-trafficgen", "udp -m 02:00:00:00:00:99 -t 1 eth31"),
		theirs("xdp-trafficgen (64 only)", 2, "xdp-trafficgen", "udp -m 02:00:00:00:00:99 -t 2 eth31"),
		iperf,
		loop("TPACKET_V2 ring, 64 a call", "ring"), loop("UDP GSO, 64 a call", "gso"),
		loop("live frames, each stamped", "stamp"), loop("live frames untouched", "untouched"),
	}
}

func main() {
	runs := flag.Int("runs", 5, "of each")
	sizes := flag.String("sizes", "64,512,1518", "octets, FCS included")
	only := flag.String("only", "", "contenders whose names begin with one of these, by commas")
	window := flag.Duration("window", 700*time.Millisecond, "that frames are counted for")
	binary := flag.String("pktgen", "./pktgen", "the binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{ctx: ctx, runs: *runs, window: *window}
	err := b.main(*binary, *sizes, *only)
	if err := errors.Join(err, b.close()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	ctx    context.Context
	runs   int
	window time.Duration
	dir    string
	lab    *lab.Lab
	tx, rx netdev.Ref
	port   *netdev.Port
	drop   *ebpf.Program
	on     *xdp.Attached // the program that drops
	finish func() error
	files  map[string]string
}

func (b *bench) main(binary, sizes, only string) (err error) {
	if b.dir, err = os.MkdirTemp("", "pktgen-bench"); err != nil {
		return err
	}
	b.files = map[string]string{}
	if b.files["pktgen"], err = filepath.Abs(binary); err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	loops := filepath.Join(b.dir, "loops")
	if out, err := exec.CommandContext(b.ctx, "gcc", "-O2", "-o", loops, "scripts/bench/loops.c").CombinedOutput(); err == nil {
		b.files["loops"] = loops
	} else {
		fmt.Printf("the C loops are left out: gcc: %v %s\n", err, out)
	}
	if err := b.wire(); err != nil {
		return err
	}
	all := b.present(only)
	fmt.Printf("M frames/s that the receiving port counted: median of %d (least to most)\n", b.runs)
	fmt.Printf("veth pair, XDP drops at its far end; Linux %s, %d CPUs, %s; load %s\n", release(), runtime.NumCPU(), time.Now().Format(time.DateOnly), load())
	for _, size := range strings.Split(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		if err := b.size(n, all); err != nil {
			return err
		}
	}
	return nil
}

// wire makes the test bed.
func (b *bench) wire() (err error) {
	if b.lab, err = lab.Wire(lab.Options{Queues: 2}); err != nil {
		return err
	}
	b.tx, b.rx = b.lab.Pairs[0].TX, b.lab.Pairs[0].RX
	for _, args := range [][]string{{b.tx.Netns, "198.18.0.1/24", "eth31"}, {b.rx.Netns, "198.18.0.2/24", "eth32"}} {
		if out, err := exec.Command("ip", "-n", args[0], "address", "add", args[1], "dev", args[2]).CombinedOutput(); err != nil {
			return fmt.Errorf("ip address add: %w: %s", err, out)
		}
	}
	info, err := netdev.Lookup(b.tx)
	if err != nil {
		return err
	}
	if b.finish, err = netdev.FinishFrames(info); err != nil { // for the C loop
		return err
	}
	if b.port, err = netdev.Open(b.rx); err != nil {
		return err
	}
	b.drop, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1 /* XDP_DROP */), asm.Return()}})
	return err
}

func (b *bench) close() error {
	var errs []error
	if b.on != nil {
		errs = append(errs, b.on.Close())
	}
	if b.port != nil {
		errs = append(errs, b.port.Close())
	}
	if b.finish != nil {
		errs = append(errs, b.finish())
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

// far has the receiving port do what a contender wants.
func (b *bench) far(what string) error {
	if b.on != nil && what != drop {
		err := b.on.Close()
		b.on = nil
		return err
	}
	if b.on != nil || what != drop {
		return nil
	}
	return b.rx.Do(func() (err error) {
		info, err := netdev.Lookup(b.rx)
		if err != nil {
			return err
		}
		b.on, err = xdp.Attach(b.rx.String(), info.Index, b.drop)
		return err
	})
}

// present are the contenders that this machine has.
func (b *bench) present(only string) (all []contender) {
	missing := map[string]bool{}
	for _, c := range contenders() {
		if only != "" && !slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(c.name, p) }) {
			continue
		}
		if c.cores > runtime.NumCPU() {
			continue
		}
		if name, ok := strings.CutPrefix(c.program, "{"); ok {
			c.program = b.files[strings.TrimSuffix(name, "}")]
		} else if _, err := exec.LookPath(c.program); err != nil {
			if !missing[c.program] {
				fmt.Printf("%s is not installed: left out\n", c.program)
			}
			missing[c.program] = true
			continue
		}
		if c.program != "" {
			all = append(all, c)
		}
	}
	return all
}

// size measures all at one frame size, and prints the table.
func (b *bench) size(size int, all []contender) error {
	if err := b.frames(size); err != nil {
		return err
	}
	rates := make([][]float64, len(all))
	failed := make([]error, len(all))
	for range b.runs {
		for i, c := range all {
			if failed[i] != nil || size != 64 && strings.Contains(c.name, "64 only") {
				continue
			}
			r, err := b.rate(c)
			if b.ctx.Err() != nil {
				return b.ctx.Err()
			}
			if err != nil {
				failed[i] = err
				continue
			}
			rates[i] = append(rates[i], r)
		}
	}
	best := -1 // of the peers on one core
	for i, c := range all {
		if c.peer && c.cores == 1 && len(rates[i]) > 0 && (best < 0 || median(rates[i]) > median(rates[best])) {
			best = i
		}
	}
	trafgen := slices.IndexFunc(all, func(c contender) bool { return c.name == "trafgen" })
	fmt.Printf("\n%-30s %5s %22s %10s %8s\n", fmt.Sprintf("%d octets", size), "cores", "", "best peer", "trafgen")
	for i, c := range all {
		switch {
		case failed[i] != nil:
			fmt.Printf("%-30s %5d   %s\n", c.name, c.cores, failed[i])
		case len(rates[i]) > 0:
			fmt.Printf("%-30s %5d %6.3f (%6.3f to %6.3f) %9s %8s\n", c.name, c.cores, median(rates[i])/1e6, slices.Min(rates[i])/1e6, slices.Max(rates[i])/1e6,
				ratio(rates, i, best), ratio(rates, i, trafgen))
		}
	}
	return nil
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return s[len(s)/2]
}

// ratio is the median of the ratios, run by run.
func ratio(rates [][]float64, i, of int) string {
	if of < 0 || len(rates[i]) != len(rates[of]) || len(rates[i]) == 0 {
		return ""
	}
	var all []float64
	for k := range rates[i] {
		all = append(all, rates[i][k]/rates[of][k])
	}
	return fmt.Sprintf("%.2f", median(all))
}

// expand is a contender's command, in its namespace.
func (b *bench) expand(c contender) []string {
	cpus := "0"
	if c.cores == 2 {
		cpus = "0,1"
	}
	with := strings.NewReplacer("{ns}", b.tx.Netns, "{far}", b.rx.Netns, "{cpus}", cpus, "{size}", b.files["size"], "{octets}", b.files["octets"],
		"{payload}", b.files["payload"], "{trafgen}", b.files["trafgen"], "{pcap}", b.files["pcap"], "{hex}", b.files["hex"])
	argv := []string{c.program}
	if c.program != b.files["pktgen"] {
		argv = []string{"ip", "netns", "exec", b.tx.Netns, c.program}
	}
	for _, a := range c.args {
		argv = append(argv, with.Replace(a))
	}
	return argv
}

// rate runs a contender, and returns the frames a second in its midst.
func (b *bench) rate(c contender) (float64, error) {
	if err := b.far(c.far); err != nil {
		return 0, err
	}
	if c.far == listen {
		server := exec.Command("ip", "netns", "exec", b.rx.Netns, "iperf3", "-s", "-1")
		if err := server.Start(); err != nil {
			return 0, err
		}
		defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
		time.Sleep(300 * time.Millisecond)
	}
	before, err := b.port.Counters()
	if err != nil {
		return 0, err
	}
	argv := b.expand(c)
	out, err := os.Create(filepath.Join(b.dir, "output"))
	if err != nil {
		return 0, err
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe() // testpmd ends with its input
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer func() {
		_ = in.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
	}()
	for end := time.Now().Add(8 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		now, err := b.port.Counters()
		if err != nil {
			return 0, err
		}
		if now.RxPackets > before.RxPackets+2000 {
			break
		}
		select {
		case err := <-done:
			done <- err
			return 0, fmt.Errorf("it ended: %v: %s", err, lastLine(out.Name()))
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		default:
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("it sent nothing: %s", lastLine(out.Name()))
		}
	}
	time.Sleep(300 * time.Millisecond)
	first, err := b.port.Counters()
	if err != nil {
		return 0, err
	}
	time.Sleep(b.window)
	last, err := b.port.Counters()
	if err != nil {
		return 0, err
	}
	return float64(last.RxPackets-first.RxPackets) / last.Time.Sub(first.Time).Seconds(), nil
}

// lastLine is the last of a file that says something.
func lastLine(name string) string {
	text, _ := os.ReadFile(name)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// frames writes the frame of a size as each peer wants it.
func (b *bench) frames(size int) error {
	octets := size - fcs
	frame := append([]byte{2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, byte((octets - 14) >> 8), byte(octets - 14), 0, 0, 0, 0, 64, 17, 0, 0,
		198, 18, 0, 1, 198, 18, 0, 2, 4, 0, 0, 9, byte((octets - 34) >> 8), byte(octets - 34), 0, 0}, make([]byte, octets-42)...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(frame[i])<<8 | uint32(frame[i+1])
	}
	sum = sum&0xffff + sum>>16
	frame[24], frame[25] = ^byte(sum>>8), ^byte(sum)
	var hex, text []string
	for _, o := range frame {
		hex, text = append(hex, fmt.Sprintf("%02x", o)), append(text, fmt.Sprintf("0x%02x", o))
	}
	b.files["size"], b.files["octets"], b.files["payload"], b.files["hex"] = strconv.Itoa(size), strconv.Itoa(octets), strconv.Itoa(octets-42), strings.Join(hex, ":")
	b.files["trafgen"], b.files["pcap"] = filepath.Join(b.dir, "frame.cfg"), filepath.Join(b.dir, "frame.pcap")
	if err := os.WriteFile(b.files["trafgen"], []byte("{ "+strings.Join(text, ", ")+" }\n"), 0o600); err != nil {
		return err
	}
	le := func(v int) string { return string([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}) }
	pcap := "\xd4\xc3\xb2\xa1\x02\x00\x04\x00" + le(0) + le(0) + le(65535) + le(1)
	for range 64 { // tcpreplay begins anew after each reading of the file
		pcap += le(0) + le(0) + le(octets) + le(octets) + string(frame)
	}
	return os.WriteFile(b.files["pcap"], []byte(pcap), 0o600)
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// load is what else the machine does.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
