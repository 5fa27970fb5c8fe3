package main

import (
	"fmt"
	"slices"

	"pktgen/internal/netdev"
	"pktgen/internal/pin"
)

// planCPUs gives each worker of the session a CPU of its own, where there are
// enough: the senders first, then the receivers, each near its NIC. CPU 0,
// where the kernel's own work gathers, comes last where there are more than two.
func planCPUs(s *session, asked []int) error {
	allowed, err := pin.Allowed()
	if err != nil {
		return err
	}
	if asked != nil {
		return useCPUs(s, asked, allowed)
	}
	free := slices.Clone(allowed)
	if len(free) > 2 && free[0] == 0 {
		free = append(free[1:], 0)
	}
	workers, senders := 0, 0
	for _, e := range s.tx {
		senders += e.t.queues
	}
	workers = senders
	for i, e := range s.rx {
		if s.needsSocket(i) {
			workers += e.r.queues
		}
	}
	if workers > len(free) {
		// Several workers share a CPU: leave it to the scheduler, and say so. Live
		// frames have one of their own all the same, or are none.
		for _, e := range s.tx {
			if senders <= len(free) && e.intends() == backendLive {
				e.cpus, free = free[:e.t.queues], free[e.t.queues:]
			}
		}
		note := fmt.Sprintf("%d workers share %d CPUs: they disturb each other", workers, len(allowed))
		if len(s.tx) > 0 {
			s.tx[0].notes = append(s.tx[0].notes, note)
		} else {
			s.rx[0].notes = append(s.rx[0].notes, note)
		}
		return nil
	}
	take := func(info *netdev.Info, queue int) int {
		i := bestCPU(free, info, queue)
		cpu := free[i]
		free = slices.Delete(free, i, i+1)
		return cpu
	}
	for _, e := range s.tx {
		for q := range e.t.queues {
			e.cpus = append(e.cpus, take(&e.info, q))
		}
	}
	for i, e := range s.rx {
		if !s.needsSocket(i) && len(free) < e.r.queues {
			continue
		}
		for q := range e.r.queues {
			e.cpus = append(e.cpus, take(&e.info, q))
		}
	}
	return nil
}

// needsSocket says that receiver i will have workers, which an XDP program has none
// of.
func (s *session) needsSocket(i int) bool {
	asked := s.rx[i].r.backend
	return asked == backendPacket || asked == backendXDP || asked == backendAuto && (i >= len(s.tx) || s.tx[i].intends() != backendLive)
}

// bestCPU is the index in free of the CPU for a queue: one that XPS maps to
// this transmit queue, else one of the NIC's NUMA node, else the first.
func bestCPU(free []int, info *netdev.Info, queue int) int {
	if queue < len(info.XPS) && len(info.XPS[queue]) < len(free) {
		if i := slices.IndexFunc(free, func(cpu int) bool { return slices.Contains(info.XPS[queue], cpu) }); i >= 0 {
			return i
		}
	}
	if info.NUMANode >= 0 {
		node := pin.NUMANode(info.NUMANode)
		if i := slices.IndexFunc(free, func(cpu int) bool { return slices.Contains(node, cpu) }); i >= 0 {
			return i
		}
	}
	return 0
}

// useCPUs deals out the CPUs that were asked for, in their order; workers
// beyond them begin again at the first.
func useCPUs(s *session, asked, allowed []int) error {
	for _, cpu := range asked {
		if !slices.Contains(allowed, cpu) {
			return withHint(fmt.Errorf("--cpus: this machine gives pktgen no CPU %d", cpu), "the CPUs are %v", allowed)
		}
	}
	next := 0
	take := func() int { cpu := asked[next%len(asked)]; next++; return cpu }
	for _, e := range s.tx {
		for range e.t.queues {
			e.cpus = append(e.cpus, take())
		}
	}
	for _, e := range s.rx {
		for range e.r.queues {
			e.cpus = append(e.cpus, take())
		}
	}
	return nil
}
