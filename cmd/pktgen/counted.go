package main

import (
	"fmt"
	"os"
	"time"

	"pktgen/internal/clock"
	"pktgen/internal/cpuload"
	"pktgen/internal/netdev"
	"pktgen/report"
)

// counted is what an interface counts: the kernel's counters of the port, which
// every one has, its queueing disciplines', its driver's.
type counted struct {
	netdev.Counters
	qdisc  netdev.QdiscCounters
	driver netdev.DriverCounters
}

// readPort reads all of them. Its error is that of the port's own; of the others
// what cannot be read is 0.
func readPort(p *netdev.Port) (c counted, err error) {
	if c.Counters, err = p.Counters(); err != nil {
		return c, err
	}
	c.qdisc, _ = p.Qdiscs()
	c.driver, _ = p.Driver()
	return c, nil
}

// since is what was counted after before, until now; nil with an error.
func since(p *netdev.Port, before counted) (*counted, error) {
	now, err := readPort(p)
	if err != nil {
		return nil, err
	}
	var d counted
	if d.Counters, err = now.Counters.Since(before.Counters); err != nil {
		return nil, fmt.Errorf("%v: %w", p.Ref(), err)
	}
	if d.qdisc, err = now.qdisc.Since(before.qdisc); err != nil {
		d.qdisc = netdev.QdiscCounters{} // other disciplines than before: they say nothing of the run
	}
	if d.driver, err = now.driver.Since(before.driver); err != nil {
		return nil, fmt.Errorf("%v: %w", p.Ref(), err)
	}
	return &d, nil
}

// settled is since, once the port has counted as sent what it was given, or after
// a while.
func settled(p *netdev.Port, before counted, sent uint64, wait time.Duration) (*counted, error) {
	for start := clock.Mono(); clock.Mono()-start < int64(wait); clock.Sleep(int64(settleStep)) {
		now, err := p.Counters()
		if err != nil || now.TxPackets-before.TxPackets >= sent {
			break
		}
	}
	return since(p, before)
}

// dropsOfOurs takes what this tool's XDP program dropped, the only one of the port,
// out of what counts as lost: it dropped each frame that it had counted. These
// drivers count it among their own drops.
func (d *counted) dropsOfOurs(driver string) {
	ours := d.driver.RxXDPDrop
	switch driver {
	case "virtio_net":
		d.RxDropped -= min(d.RxDropped, ours)
		d.driver.RxMissed -= min(d.driver.RxMissed, ours)
	case "tun":
		d.RxDropped = 0 // what else it counts there never was a frame
	}
	d.driver.RxXDPDrop = 0
}

// counters is what the result says of a port.
func counters(d *counted) *report.Counters {
	return &report.Counters{
		RxFrames: d.RxPackets, RxDropped: d.RxDropped, RxErrors: d.RxErrors, RxMissed: d.RxMissed,
		TxFrames: d.TxPackets, TxDropped: d.TxDropped, TxErrors: d.TxErrors,
		QdiscDrops: d.qdisc.Drops, PauseRx: d.driver.PauseRx, PauseTx: d.driver.PauseTx,
	}
}

// txPlaces are the counters that tell where frames given to the kernel stayed, the
// surest first. The kernel counts no frame twice among the first two; a driver's
// own count is of the same frames as the port's.
func (d *counted) txPlaces() []report.LossCounter {
	return named(
		report.LossCounter{Place: "generator", Counter: "qdisc drops", Frames: d.qdisc.Drops},
		report.LossCounter{Place: "tx_nic", Counter: "tx_errors", Frames: max(d.TxErrors, d.driver.TxErrors)},
		report.LossCounter{Place: "tx_nic", Counter: "tx_dropped", Frames: max(d.TxDropped, d.driver.TxDrop)},
	)
}

// rxPlaces are the counters that tell where frames stayed that the wire brought. A
// frame with a wrong FCS was damaged before.
func (d *counted) rxPlaces() []report.LossCounter {
	errs := max(d.RxErrors, d.driver.RxErrors)
	crc := min(d.driver.RxCRC, errs)
	return named(
		report.LossCounter{Place: "path", Counter: "rx_crc_errors", Frames: crc},
		report.LossCounter{Place: "rx_nic", Counter: "rx_missed_errors", Frames: max(d.RxMissed, d.driver.RxMissed)},
		report.LossCounter{Place: "rx_nic", Counter: "rx_dropped", Frames: d.RxDropped},
		report.LossCounter{Place: "rx_nic", Counter: "rx_errors", Frames: errs - crc},
		report.LossCounter{Place: "rx_nic", Counter: "xdp drops", Frames: d.driver.RxXDPDrop},
	)
}

// named are those that counted anything.
func named(all ...report.LossCounter) (some []report.LossCounter) {
	for _, c := range all {
		if c.Frames > 0 {
			some = append(some, c)
		}
	}
	return some
}

// take is how much of left is at a place by these counters, at most.
func take(left uint64, place string, counters []report.LossCounter) uint64 {
	n := uint64(0)
	for _, c := range counters {
		if c.Place == place {
			n += c.Frames
		}
	}
	return min(n, left)
}

// readCPUs is the load of this host's CPUs so far; nil where it cannot be told.
func readCPUs() cpuload.Load {
	l, err := cpuload.Read(os.DirFS("/proc"))
	if err != nil {
		return nil
	}
	return l
}

// cpus is what the CPUs did between two readings.
func cpus(shares cpuload.Shares) (out []report.CPU) {
	for _, s := range shares {
		out = append(out, report.CPU{
			CPU: s.ID, User: s.User, System: s.System, IRQ: s.IRQ, SoftIRQ: s.SoftIRQ, Steal: s.Steal, Idle: s.Idle,
			SoftnetDropped: s.Softnet.Dropped, TimeSqueeze: s.Softnet.TimeSqueeze,
		})
	}
	return out
}

// fullCPU is a share of its time from which on a CPU has no time left: ticks are
// no finer than a hundredth of a second.
const fullCPU = 0.98

// hostLimit says what of this host was at its end while frames were lost or not
// sent; "" where nothing was. A worker that waits for its next frame fills a CPU
// too, so that only the kernel's own work and what others took count.
func hostLimit(all []report.CPU) string {
	for _, c := range all {
		switch {
		case c.SoftnetDropped > 0:
			return fmt.Sprintf("the kernel's backlog of CPU %d had no room for %d frames (softnet_stat)", c.CPU, c.SoftnetDropped)
		case c.SoftIRQ+c.IRQ >= fullCPU*(1-c.Steal) && c.SoftIRQ+c.IRQ > 0.5:
			return fmt.Sprintf("CPU %d spent %.0f %% of its time in interrupts", c.CPU, 100*(c.SoftIRQ+c.IRQ))
		case c.Steal > stolen:
			return fmt.Sprintf("the hypervisor took %.0f %% of CPU %d", 100*c.Steal, c.CPU)
		}
	}
	return ""
}

// stolen is the share of a CPU from which on its being taken spoils a run.
const stolen = 0.05
