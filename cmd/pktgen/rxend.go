package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"pktgen/frames"
	"pktgen/internal/netdev"
	"pktgen/internal/phc"
	"pktgen/neigh"
	"pktgen/report"
	"pktgen/ring"
	"pktgen/ring/tpacket"
	"pktgen/ring/xsk"
	"pktgen/sink"
	"pktgen/stats"
)

// reception is how to receive: every effective setting.
type reception struct {
	backend    string
	queues     int
	cpus       []int
	ring       int  // octets a queue; 0: chosen
	hardware   bool // the NIC's receive times
	answer     bool
	promisc    bool
	verify     bool
	maxStreams int
	clock      string // what the two ends' clocks are known to be: report.Latency.Clock
}

// rxEnd is a receiving interface.
type rxEnd struct {
	r         *reception
	info      netdev.Info
	port      *netdev.Port
	lock      net.Listener
	responder *neigh.Responder
	stop      context.CancelFunc // ends the responder
	answered  chan struct{}      // closed when the responder has ended
	cpus      []int
	mac       net.HardwareAddr       // that the responder answers with; nil: it does not
	clock     string                 // as reception's, or round-trip once a frame has come back
	nic       *netdev.HardwareStamps // nil: the kernel's receive times
	tie       *phc.Tie
	sink      receiver
	xsk       *xsk.All // of the xdp backend
	backend   string   // that receives
	reason    string   // why that one
	pass      *passing // that the peer needs to send live frames; nil: nothing
	before    counted
	delta     *counted // what the port counted during the run; nil: not known
	notes     []string

	result *sink.Result
	total  *stats.Latency // of all streams; set by report
	jitter stats.JitterSummary
	delay  *stats.DelayVariation
}

// newRXEnd takes the interface: nobody else receives on it, and it answers for
// the test addresses. Frames are not yet counted.
func newRXEnd(ref netdev.Ref, r *reception, seed uint64) (*rxEnd, error) {
	info, err := lookupUp(ref)
	if err != nil {
		return nil, err
	}
	e := &rxEnd{r: r, info: info, clock: r.clock}
	err = func() error {
		if err := e.takeLock(); err != nil {
			return err
		}
		if e.port, err = netdev.Open(ref); err != nil {
			return err
		}
		if r.hardware {
			if err := e.useHardware(); err != nil {
				return err
			}
		}
		if r.answer {
			return e.startResponder(seed)
		}
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// useHardware has the NIC note receive times, and ties its clock to the system's.
func (e *rxEnd) useHardware() error {
	h, err := netdev.EnableHardwareStamps(e.info.Ref)
	if err != nil {
		return err
	}
	e.nic = &h
	e.tie, err = phc.Open(h.PHC)
	return err
}

// system is the system's time of one of the NIC's; nil without.
func (e *rxEnd) system() func(int64) int64 {
	if e.tie == nil {
		return nil
	}
	return e.tie.System
}

// takeLock holds an abstract Unix socket named after the interface: it belongs
// to the interface's network namespace, as the interface does, and the kernel
// takes it away with the process.
func (e *rxEnd) takeLock() error {
	name := "@pktgen/rx/" + e.info.Ref.Name
	return e.info.Ref.Do(func() error {
		l, err := net.Listen("unix", name)
		if err == nil {
			e.lock = l
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%v: lock: %w", e.info.Ref, err)
		}
		who := "another pktgen"
		if pid := peerPID(name); pid > 0 {
			who = fmt.Sprintf("another pktgen (process %d)", pid)
		}
		return withHint(fmt.Errorf("%v: %s receives on this interface", e.info.Ref, who),
			"end that one first, or take another interface: both would count and answer the same frames")
	})
}

// peerPID is the process that listens on an abstract socket; 0 when unknown.
func peerPID(name string) int {
	c, err := net.Dial("unix", name)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// startResponder answers ARP and NDP for the benchmarking addresses that are
// not the host's own, with a MAC that is not the interface's: frames sent there
// do not enter the host's IP stack, which would route them, or answer each
// with an ICMP error.
func (e *rxEnd) startResponder(seed uint64) error {
	var own []netip.Addr
	for _, p := range e.info.Addrs {
		own = append(own, p.Addr())
	}
	mac := neigh.LocalMAC(seed)
	if !e.r.promisc || e.info.Kind == "macvlan" || e.info.Kind == "macvtap" { // a macvlan gets no others
		mac = e.info.MAC
	}
	e.mac = mac
	err := e.info.Ref.Do(func() (err error) {
		e.responder, err = neigh.NewResponder(
			neigh.Iface{Index: e.info.Index, Name: e.info.Ref.Name, MAC: mac},
			netdev.BenchmarkPrefixes(), neigh.ResponderOptions{Exclude: own})
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop, e.answered = cancel, make(chan struct{})
	go func() {
		defer close(e.answered)
		_ = e.responder.Run(ctx) // the link's end is told by the sink and by the port
	}()
	return nil
}

// announce says that mac has an address, on this interface.
func (e *rxEnd) announce(ip netip.Addr, mac net.HardwareAddr, tag *frames.VLAN) error {
	var t *neigh.VLAN
	if tag != nil {
		t = &neigh.VLAN{ID: tag.ID, PCP: tag.PCP}
	}
	return e.info.Ref.Do(func() error {
		return neigh.Announce(neigh.Iface{Index: e.info.Index, Name: e.info.Ref.Name, MAC: mac}, ip, t)
	})
}

// socketSink counts what a socket receives.
func (e *rxEnd) socketSink(own *sink.Own) (*sink.Sink, error) {
	var fanout *tpacket.Fanout
	if e.r.queues > 1 {
		fanout = &tpacket.Fanout{}
	}
	return sink.Open(sink.Config{
		Workers: e.r.queues, CPUs: e.cpus, Enter: e.info.Ref.Enter,
		Open: func(worker int) (ring.RX, error) {
			return tpacket.OpenRX(tpacket.RXOptions{
				Interface: e.info.Ref.String(), Index: e.info.Index, Queue: worker,
				Promisc: e.r.promisc, Fanout: fanout, Blocks: e.r.ringBlocks(), Hardware: e.tie != nil,
			})
		},
		System: e.system(), Own: own, MaxStreams: e.r.maxStreams, NoVerify: !e.r.verify,
	})
}

// ringBlocks is the size of a queue's ring: as asked for, else such that those of
// many queues together keep to 512 MiB, or 4 MiB each.
func (r *reception) ringBlocks() int {
	if r.ring > 0 {
		return r.ring / tpacket.DefaultRXBlockSize
	}
	return max(16, min(tpacket.DefaultRXBlocks, 8*tpacket.DefaultRXBlocks/r.queues))
}

// maxRing is the largest ring, MiB, that may be asked for.
const maxRing = 2047

// start begins to count.
func (e *rxEnd) start() (err error) {
	e.sink.Start()
	e.before, err = readPort(e.port)
	return err
}

// wait ends the workers and reads the port's counters.
func (e *rxEnd) wait() error {
	e.sink.Stop()
	e.result = e.sink.Wait()
	var err error
	e.delta, err = since(e.port, e.before)
	if e.delta != nil && e.backend == backendCount {
		e.delta.dropsOfOurs(e.info.Driver)
	}
	return errors.Join(e.result.Err, err)
}

// close gives the interface back.
func (e *rxEnd) close() error {
	var errs []error
	if e.sink != nil && e.result == nil {
		e.sink.Stop()
		e.result = e.sink.Wait()
	}
	if e.responder != nil {
		e.stop()
		errs = append(errs, e.responder.Close())
		<-e.answered
		e.responder = nil
	}
	if e.pass != nil {
		errs = append(errs, e.pass.Close())
		e.pass = nil
	}
	if e.tie != nil {
		errs = append(errs, e.tie.Close())
		e.tie = nil
	}
	if e.nic != nil {
		errs = append(errs, e.nic.Restore())
		e.nic = nil
	}
	if e.port != nil {
		errs = append(errs, e.port.Close())
		e.port = nil
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
		e.lock = nil
	}
	return errors.Join(errs...)
}

// report makes the receiving side of the result, loss left open.
func (e *rxEnd) report() *report.RX {
	r := e.result
	c := r.Counts
	rx := &report.RX{
		Iface: e.info.Ref.String(), Backend: e.backend, BackendReason: e.reason,
		Rates:      report.MakeRates(c.Frames, c.Bytes, float64(r.LastNs-r.FirstNs)/1e9),
		Duplicates: c.Duplicates, Reordered: c.Reordered, TooOld: c.TooOld, Corrupt: c.Corrupt,
		OtherFrames: c.Other, StaleFrames: c.Stale, Overflow: r.Overflow, SocketDrops: c.KernelDrops,
		Streams: []report.Stream{}, Queues: []report.Queue{},
		SenderClosed: len(r.Streams) > 0,
	}
	if e.responder != nil {
		rx.Answered = e.responder.Answered()
	}
	total, jitter, delay := stats.NewLatency(), stats.JitterSummary{}, stats.NewDelayVariation()
	residence := stats.NewLatency()
	for _, st := range r.Streams {
		if st.RoundTrip != nil {
			e.clock = clockRoundTrip
			residence.Merge(st.RoundTrip.Residence)
		}
	}
	rx.Residence = spread(residence)
	rx.ClockOffset, rx.OneWay = clocks(r.Streams)
	for _, st := range r.Streams {
		total.Merge(st.Latency)
		delay.Merge(st.Delay)
		jitter = addJitter(jitter, st.Jitter.Summary())
		rx.Streams = append(rx.Streams, e.stream(st))
		rx.SenderClosed = rx.SenderClosed && st.Closed
	}
	e.total, e.jitter, e.delay = total, jitter, delay
	rx.IPDV, rx.PDV = variation(delay)
	rx.Latency, rx.Gaps = e.latency(total), spread(r.Gaps)
	rx.Jitter = jitterReport(jitter)
	for _, w := range r.Workers {
		q := report.Queue{Queue: w.Worker, Frames: w.Frames, Drops: w.Drops.Drops,
			PPS: report.MakeRates(w.Frames, 0, float64(r.LastNs-r.FirstNs)/1e9).PPS}
		if w.CPU >= 0 {
			q.CPU = &w.CPU
		}
		rx.Queues = append(rx.Queues, q)
	}
	if e.delta != nil {
		rx.Port = counters(e.delta)
	}
	if r.Malformed > 0 {
		e.notes = append(e.notes, fmt.Sprintf("%v: %d blocks of the receive ring were malformed, and the frames behind the fault in them are not counted", e.info.Ref, r.Malformed))
	}
	return rx
}

func (e *rxEnd) stream(st *sink.Stream) report.Stream {
	s := report.Stream{
		ID: st.ID, Name: fmt.Sprintf("stream-%d", st.ID), RunID: st.RunID,
		Frames: st.Frames, Bytes: st.Bytes, Lost: st.Lost(), Duplicates: st.Duplicates,
		Reordered: st.Reordered, TooOld: st.TooOld, Corrupt: st.Corrupt, FirstSeq: st.First(),
		Latency: e.latency(st.Latency), Jitter: jitterReport(st.Jitter.Summary()),
	}
	s.IPDV, s.PDV = variation(st.Delay)
	if st.KernelGen {
		s.Name = kernelStream
	}
	if sent := st.Sent(); sent > 0 {
		s.LossRatio = float64(s.Lost) / float64(sent)
	}
	if st.Closed {
		s.Sent = &st.Expected
	}
	return s
}

func (e *rxEnd) latency(l *stats.Latency) report.Latency {
	s := l.Summary()
	if e.clock == clockNone {
		return report.Latency{Clock: clockNone}
	}
	out := report.Latency{Clock: e.clock, Count: s.Count, Negative: s.Negative, Send: "stamp", Receive: e.receiveTime()}
	if s.Count > 0 {
		out.Min, out.Mean, out.Max = &s.Min, &s.Mean, &s.Max
		out.P50, out.P90, out.P99, out.P999, out.P9999 = &s.P50, &s.P90, &s.P99, &s.P999, &s.P9999
	}
	return out
}

// variation is nil of nothing.
func variation(d *stats.DelayVariation) (*report.IPDV, *report.PDV) {
	s := d.Summary()
	var ipdv *report.IPDV
	if v := s.IPDV; v.Count > 0 {
		ipdv = &report.IPDV{Count: v.Count, Min: v.Min, Max: v.Max, MeanAbs: v.MeanAbs, P50: v.P50, P90: v.P90, P99: v.P99, P999: v.P999}
	}
	var pdv *report.PDV
	if v := s.PDV; v.Count > 0 {
		pdv = &report.PDV{Count: v.Count, P50: v.P50, P90: v.P90, P99: v.P99, P999: v.P999, Max: v.Max}
	}
	return ipdv, pdv
}

// receiveTime is what noted the receive times.
func (e *rxEnd) receiveTime() string {
	switch {
	case e.backend == backendXDP && e.xsk.Untimed() > 0:
		return "reading"
	case e.backend == backendXDP, e.backend == backendCount:
		return "xdp"
	}
	if e.result == nil || e.result.Hardware == 0 {
		return "kernel"
	}
	if e.result.Hardware < e.result.Counts.Frames {
		return "hardware and kernel"
	}
	return "hardware"
}

// spread is nil of nothing.
func spread(l *stats.Latency) *report.Spread {
	if l == nil || l.Count() == 0 {
		return nil
	}
	s := l.Summary()
	return &report.Spread{Count: s.Count, Min: s.Min, Mean: s.Mean, P50: s.P50, P90: s.P90, P99: s.P99, P999: s.P999, P9999: s.P9999, Max: s.Max}
}

// What is known of the clocks of the two ends.
const (
	clockNone      = "none"
	clockSameHost  = "same-host"
	clockSynced    = "synced"
	clockRoundTrip = "round-trip"
)

func jitterReport(j stats.JitterSummary) report.Jitter {
	return report.Jitter{RFC3550: j.RFC3550, Mean: j.Mean, Max: j.Max, Count: j.Count}
}

// addJitter is the jitter of two sets of streams: each frame counts alike in the
// mean; of the RFC's running estimate the greatest stands.
func addJitter(a, b stats.JitterSummary) stats.JitterSummary {
	if b.Count > 0 {
		a.Mean = (a.Mean*float64(a.Count) + b.Mean*float64(b.Count)) / float64(a.Count+b.Count)
		a.Count += b.Count
		a.Max = max(a.Max, b.Max)
		a.RFC3550 = max(a.RFC3550, b.RFC3550)
	}
	return a
}
