package main

import (
	"bufio"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"pktgen/report"
)

// hostInfo is the environment that a result belongs to; what is not known is left out.
func hostInfo() *report.Host {
	name, _ := os.Hostname()
	return &report.Host{
		Hostname: name, Kernel: kernelRelease(), Arch: runtime.GOARCH, CPUModel: cpuModel(),
		CPUs: runtime.NumCPU(), Clock: hostClock(), Version: version, Go: runtime.Version(), Command: os.Args,
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
