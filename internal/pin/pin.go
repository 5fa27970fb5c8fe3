// Package pin binds threads to CPUs.
package pin

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCPUs bounds what a list may name: the kernel's own largest NR_CPUS.
const maxCPUs = 8192

// Thread binds the calling thread, which the caller has locked, to one CPU.
// Threads that the Go runtime starts later do not inherit it.
func Thread(cpu int) error {
	set := unix.NewCPUSet(cpu + 1)
	set.Set(cpu)
	if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
		return fmt.Errorf("bind thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// Worker prepares the calling thread, which the caller has locked and will not
// unlock, for a worker of the data plane: enter, if any, moves it into a network
// namespace; then it is bound to a CPU, if cpu is not negative.
func Worker(enter func() error, cpu int) error {
	if enter != nil {
		if err := enter(); err != nil {
			return err
		}
	}
	if cpu < 0 {
		return nil
	}
	return Thread(cpu)
}

// Allowed lists the CPUs that this process may run on, in rising order.
func Allowed() ([]int, error) {
	set := unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for cpu := range maxCPUs {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// ParseList reads a CPU list in the kernel's form, such as "2-5,8", and keeps
// its order. Each CPU stands once.
func ParseList(s string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := parseCPU(first)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", s, err)
		}
		hi := lo
		if isRange {
			if hi, err = parseCPU(last); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", s, err)
			}
		}
		if hi < lo {
			return nil, fmt.Errorf("CPU list %q: %d-%d runs backwards", s, lo, hi)
		}
		for cpu := lo; cpu <= hi; cpu++ {
			if slices.Contains(cpus, cpu) {
				return nil, fmt.Errorf("CPU list %q: CPU %d stands twice", s, cpu)
			}
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

func parseCPU(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n >= maxCPUs {
		return 0, fmt.Errorf("%q is not a CPU number (0 to %d), as in 2-5,8", s, maxCPUs-1)
	}
	return int(n), nil
}

// NUMANode lists the CPUs of a NUMA node; nil where the machine does not say.
func NUMANode(node int) []int {
	b, err := os.ReadFile("/sys/devices/system/node/node" + strconv.Itoa(node) + "/cpulist")
	if err != nil {
		return nil
	}
	cpus, err := ParseList(strings.TrimSpace(string(b)))
	if err != nil {
		return nil
	}
	return cpus
}
