package cpuload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Load is one reading: the CPUs that are online, in rising order.
type Load []CPU

// CPU is where a CPU's time went since the host started, in ticks of USER_HZ, 100
// a second.
type CPU struct {
	ID      int
	User    uint64 // nice and guests among it
	System  uint64
	IRQ     uint64
	SoftIRQ uint64 // most of the kernel's network work
	Steal   uint64 // the hypervisor gave it to others
	Idle    uint64 // waiting for disks among it
	Softnet Softnet
}

// Softnet is what a CPU's network backlog has counted (struct softnet_data,
// linux/netdevice.h), modulo 2^32. All but Backlog are totals.
type Softnet struct {
	Processed   uint32 // frames
	Dropped     uint32 // frames, as the backlog was full: net.core.netdev_max_backlog
	TimeSqueeze uint32 // times that work was left when net.core.netdev_budget was used up
	ReceivedRPS uint32 // times that another CPU woke this one to give it frames
	FlowLimit   uint32 // frames, as their flow had more than its part of the backlog
	Backlog     uint32 // frames that wait now; 0 on older kernels, which do not say
}

// Read reads both files; proc is os.DirFS("/proc"). The counts of softnet_stat are
// the host's, in whichever network namespace it is read. Errors: those of opening
// and reading, and a line that cannot be understood.
func Read(proc fs.FS) (Load, error) {
	var load Load
	for _, file := range []struct {
		name string
		read func(string) error
	}{
		{"stat", func(text string) (err error) { load, err = parseStat(text); return err }},
		{"net/softnet_stat", func(text string) error { return parseSoftnet(text, load) }},
	} {
		text, err := fs.ReadFile(proc, file.name)
		if err != nil {
			return nil, fmt.Errorf("CPU load: %w", err)
		}
		if err := file.read(string(text)); err != nil {
			return nil, fmt.Errorf("CPU load: proc/%s: %w", file.name, err)
		}
	}
	return load, nil
}

// parseStat reads the lines "cpu0 user nice system idle iowait irq softirq steal
// ..."; old kernels end them after idle or after softirq.
func parseStat(text string) (Load, error) {
	var load Load
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		number, ok := strings.CutPrefix(f[0], "cpu")
		if !ok || number == "" { // "cpu" is all of them
			continue
		}
		id, err := strconv.ParseUint(number, 10, 31)
		if err != nil || len(f) < 5 {
			return nil, fmt.Errorf("line %q: want cpuN and four numbers or more", line)
		}
		var v [8]uint64
		for i := range min(len(v), len(f)-1) {
			if v[i], err = strconv.ParseUint(f[1+i], 10, 64); err != nil {
				return nil, fmt.Errorf("line %q: %w", line, err)
			}
		}
		load = append(load, CPU{
			ID: int(id), User: v[0] + v[1], System: v[2], Idle: v[3] + v[4], IRQ: v[5], SoftIRQ: v[6], Steal: v[7],
		})
	}
	if len(load) == 0 {
		return nil, errors.New("no CPU in it")
	}
	slices.SortFunc(load, func(a, b CPU) int { return cmp.Compare(a.ID, b.ID) })
	for i := range load[1:] {
		if load[i].ID == load[i+1].ID {
			return nil, fmt.Errorf("CPU %d stands twice", load[i].ID)
		}
	}
	return load, nil
}

// parseSoftnet reads a line of hexadecimal numbers for each online CPU into load:
// processed, dropped, time_squeeze, 0 x 5, collisions, and each on newer kernels
// only: received_rps, flow_limit, backlog and the CPU's number. Without that the
// lines are in the order of the CPUs. A CPU that is not in load has gone online
// since, and is left out.
func parseSoftnet(text string, load Load) error {
	n := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 3 {
			return fmt.Errorf("line %q: want three numbers or more", line)
		}
		var v [13]uint32
		for i := range min(len(v), len(f)) {
			x, err := strconv.ParseUint(f[i], 16, 32)
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			v[i] = uint32(x)
		}
		at, found := n, n < len(load)
		if len(f) >= len(v) {
			at, found = slices.BinarySearchFunc(load, int(v[12]), func(c CPU, id int) int { return cmp.Compare(c.ID, id) })
		}
		n++
		if found {
			load[at].Softnet = Softnet{
				Processed: v[0], Dropped: v[1], TimeSqueeze: v[2], ReceivedRPS: v[9], FlowLimit: v[10], Backlog: v[11],
			}
		}
	}
	return nil
}

// Share is what a CPU did between two readings: parts of its time, 0 to 1, whose
// sum is 1; all 0 where no tick passed.
type Share struct {
	ID                                      int
	Ticks                                   uint64 // that passed, of USER_HZ: the shares are no finer
	User, System, IRQ, SoftIRQ, Steal, Idle float64
	Softnet                                 Softnet // counted between; Backlog: at the later reading
}

// Busy is the part of the time, 0 to 1, in which the CPU had something to do,
// that which the hypervisor took included: what ran there wanted all of it.
func (s Share) Busy() float64 {
	return s.User + s.System + s.IRQ + s.SoftIRQ + s.Steal
}

// Shares are CPUs in rising order.
type Shares []Share

// Sub is what the CPUs did since before: those that were online at both
// readings. A time that went back counts as nothing: idle times do so by a tick or
// two, and all of them where a CPU was offline meanwhile.
func (l Load) Sub(before Load) Shares {
	var shares Shares
	for _, b := range l {
		i, found := slices.BinarySearchFunc(before, b.ID, func(c CPU, id int) int { return cmp.Compare(c.ID, id) })
		if !found {
			continue
		}
		a := before[i]
		s := Share{ID: b.ID, Softnet: b.Softnet.sub(a.Softnet)}
		parts := []struct {
			share         *float64
			after, before uint64
		}{
			{&s.User, b.User, a.User}, {&s.System, b.System, a.System}, {&s.IRQ, b.IRQ, a.IRQ},
			{&s.SoftIRQ, b.SoftIRQ, a.SoftIRQ}, {&s.Steal, b.Steal, a.Steal}, {&s.Idle, b.Idle, a.Idle},
		}
		total := 0.0 // not Ticks, which the kernel's numbers could overflow
		for _, p := range parts {
			if p.after > p.before {
				*p.share = float64(p.after - p.before)
				total += *p.share
				s.Ticks += p.after - p.before
			}
		}
		if total > 0 {
			for _, p := range parts {
				*p.share /= total
			}
		}
		shares = append(shares, s)
	}
	return shares
}

func (s Softnet) sub(before Softnet) Softnet {
	return Softnet{
		Processed: s.Processed - before.Processed, Dropped: s.Dropped - before.Dropped,
		TimeSqueeze: s.TimeSqueeze - before.TimeSqueeze, ReceivedRPS: s.ReceivedRPS - before.ReceivedRPS,
		FlowLimit: s.FlowLimit - before.FlowLimit, Backlog: s.Backlog,
	}
}

// Busiest is the CPU with the largest Busy, of equals the first; false where there
// is none.
func (s Shares) Busiest() (Share, bool) {
	if len(s) == 0 {
		return Share{}, false
	}
	return slices.MaxFunc(s, func(a, b Share) int { return cmp.Compare(a.Busy(), b.Busy()) }), true
}
