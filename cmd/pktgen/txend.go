package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/internal/netdev"
	"pktgen/neigh"
	"pktgen/report"
	"pktgen/stats"
	"pktgen/units"
)

// txEnd is a sending interface: what was asked for, what is there, and what
// came of it.
type txEnd struct {
	t           *traffic
	info        netdev.Info
	port        *netdev.Port
	spec        frames.Spec
	load        gen.Pattern
	cpus        []int
	gen         sender
	backend     string       // that sends
	mode        string       // of AF_XDP: copy or zero-copy
	reason      string       // why that one
	pass        *passing     // that the port needs for it; nil: nothing
	unfinished  func() error // has the port take unfinished frames again, where it did; nil: as it was
	launchClock int          // of --launch-time; 0: none
	before      counted
	delta       *counted // what the port counted during the run; nil: not known
	notes       []string // for the result's warnings

	results []gen.Result
}

// lookupUp finds an interface that frames can go through.
func lookupUp(ref netdev.Ref) (netdev.Info, error) {
	info, err := netdev.Lookup(ref)
	if err != nil {
		return info, err
	}
	switch {
	case !info.Ethernet:
		return info, withHint(fmt.Errorf("%v: not an Ethernet interface (%s)", ref, info.Type),
			"pktgen sends and receives Ethernet frames; give a port, bridge, bond, VLAN, veth or TAP interface")
	case !info.Up:
		return info, withHint(fmt.Errorf("%v: the interface is down", ref), "ip link set %s up", ref.Name)
	case !info.Running:
		return info, withHint(fmt.Errorf("%v: no carrier", ref), "connect the cable, and set the other end up")
	}
	return info, nil
}

// newTXEnd checks everything that can be checked before the first frame.
func newTXEnd(ctx context.Context, ref netdev.Ref, t *traffic, runID, firstStream uint16) (*txEnd, error) {
	info, err := lookupUp(ref)
	if err != nil {
		return nil, err
	}
	e := &txEnd{t: t, info: info}
	if err := e.safety(); err != nil {
		return nil, err
	}
	e.addresses(runID, firstStream)
	if e.spec.Size == 0 {
		e.spec.Size = e.spec.MinSize()
	}
	if err := e.spec.Validate(); err != nil {
		var size *frames.SizeError
		if errors.As(err, &size) {
			return nil, err
		}
		return nil, usageError{err}
	}
	if err := e.fits(); err != nil {
		return nil, err
	}
	if err := e.pattern(); err != nil {
		return nil, err
	}
	if err := e.destination(ctx); err != nil {
		return nil, err
	}
	if e.port, err = netdev.Open(ref); err != nil {
		return nil, err
	}
	if err := e.launch(); err != nil {
		return nil, errors.Join(err, e.port.Close())
	}
	return e, nil
}

// pattern settles when frames are due, which needs their size and the link.
func (e *txEnd) pattern() (err error) {
	t := e.t
	e.load = gen.Pattern{Burst: t.burst, Ramp: t.ramp, On: t.on, Off: t.off, Poisson: t.poisson, Seed: t.seed}
	if e.load.Rate, err = t.rate.PPS(e.spec.Size, e.info.SpeedBps); err != nil {
		return fmt.Errorf("%v: --rate %v: %w", e.info.Ref, t.rate, err)
	}
	for _, s := range t.plan {
		step := gen.Step{For: s.time}
		if !s.silent {
			if step.Rate, err = s.rate.PPS(e.spec.Size, e.info.SpeedBps); err != nil {
				return fmt.Errorf("%v: --plan: %w", e.info.Ref, err)
			}
		}
		e.load.Steps = append(e.load.Steps, step)
	}
	if e.load.RampTo, err = t.rampTo.PPS(e.spec.Size, e.info.SpeedBps); err != nil {
		return fmt.Errorf("%v: --ramp: %w", e.info.Ref, err)
	}
	return nil
}

// asked is the number of frames that the whole run was to send; 0: not known.
func (e *txEnd) asked() uint64 {
	n := e.load.Frames(e.t.duration)
	if c := e.t.count; c != 0 && (n == 0 || c < n) {
		n = c
	}
	return n
}

// sampling is which frames of each stream are asked about when they left.
func (e *txEnd) sampling() stats.Sampling {
	pps := e.load.Mean(e.t.duration)
	if pps == 0 {
		return stats.Sampling{}
	}
	n := uint64(e.t.queues)
	return stats.NewSampling(pps/float64(n), e.asked()/n)
}

// safety keeps test traffic off the interface that the host lives by.
func (e *txEnd) safety() error {
	if e.t.force {
		return nil
	}
	const hint = "give a port of the test bed; --force sends all the same"
	if e.info.DefaultRoute {
		return withHint(fmt.Errorf("%v carries the default route: not sending test traffic there", e.info.Ref), hint)
	}
	if e.info.OnlyGlobalAddr {
		return withHint(fmt.Errorf("%v carries the only global address of this host: not sending test traffic there", e.info.Ref), hint)
	}
	return nil
}

// addresses fills the frame in: what was asked for, else what the interface
// has, else the benchmarking range.
func (e *txEnd) addresses(runID, firstStream uint16) {
	t := e.t
	src, dst := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	if t.ipv6 {
		src, dst = netip.MustParseAddr("2001:2::1"), netip.MustParseAddr("2001:2::2")
	}
	if t.back {
		src, dst = dst, src
	}
	for _, p := range e.info.Addrs {
		if a := p.Addr(); a.Is6() == t.ipv6 && netdev.Benchmarking(a) {
			if a == dst {
				dst = src
			}
			src = a
			break
		}
	}
	if t.src.IsValid() {
		src = t.src
	}
	if t.dst.IsValid() {
		dst = t.dst
	}
	mac := t.srcMAC
	if mac == nil {
		mac = e.info.MAC
	}
	e.spec = frames.Spec{
		Size: t.size, SrcMAC: mac, DstMAC: t.dstMAC, VLAN: t.vlan, Src: src, Dst: dst,
		SrcPort: t.srcPort, DstPort: t.dstPort, TTL: t.ttl, TOS: t.tos, Flows: t.flows,
		Stamp: t.stamp, RoundTrip: t.roundTrip, RunID: runID, StreamID: firstStream,
	}
	if t.zeroChecksum {
		e.spec.UDPChecksum = frames.ChecksumZero
	}
	if e.spec.DstMAC == nil {
		e.spec.DstMAC = neigh.LocalMAC(uint64(runID)) // until destination finds it
	}
}

const ethernetHeader = 14

// payload is what the MTU has to hold: the kernel lets one tag stand beside it.
func (e *txEnd) payload() int {
	n := e.spec.Size.Socket() - ethernetHeader
	if e.spec.VLAN != nil {
		n -= 4
	}
	return n
}

// fits holds the frame to the interface's MTU: the kernel would drop a larger
// one without a word (PACKET_LOSS).
func (e *txEnd) fits() error {
	payload := e.payload()
	if payload <= e.info.MTU {
		return nil
	}
	largest := e.info.MTU + ethernetHeader + units.FCSOctets
	if e.spec.VLAN != nil {
		largest += 4
	}
	return withHint(fmt.Errorf("%v: a frame of %d octets does not fit its MTU of %d", e.info.Ref, e.spec.Size, e.info.MTU),
		"use --size %d or less, or ip link set %s mtu %d, on every port of the path", largest, e.info.Ref.Name, payload)
}

// destination finds the destination MAC: as given, by ARP or NDP, else one
// that nobody has.
func (e *txEnd) destination(ctx context.Context) error {
	t := e.t
	hop, onLink, err := e.nextHop()
	if err != nil {
		return err
	}
	if !onLink && !netdev.Benchmarking(e.spec.Dst) && !t.force {
		return withHint(fmt.Errorf("destination %v is neither a benchmarking address nor on the link of %v", e.spec.Dst, e.info.Ref),
			"use an address of 198.18.0.0/15 or 2001:2::/48; --force sends all the same")
	}
	if t.dstMAC != nil {
		return nil
	}
	if multicast := multicastMAC(e.spec.Dst); multicast != nil {
		e.spec.DstMAC = multicast
		return nil
	}
	query := neigh.Query{Src: e.spec.Src, Dst: hop}
	if t.vlan != nil {
		query.VLAN = &neigh.VLAN{ID: t.vlan.ID, PCP: t.vlan.PCP}
	}
	var mac net.HardwareAddr
	err = e.info.Ref.Do(func() (err error) {
		mac, err = neigh.Resolve(ctx, e.neighIface(), query)
		return err
	})
	switch {
	case err == nil:
		e.spec.DstMAC = mac
	case errors.Is(err, neigh.ErrNoAnswer):
		e.note("%v: nobody answers for %v: sending to the MAC %v, which a switch floods", e.info.Ref, hop, e.spec.DstMAC)
	default:
		return err
	}
	return nil
}

func (e *txEnd) nextHop() (hop netip.Addr, onLink bool, err error) {
	if e.t.gateway.IsValid() {
		return e.t.gateway, true, nil
	}
	hop, onLink, found, err := netdev.NextHop(e.info.Ref, e.spec.Dst)
	if err != nil || found {
		return hop, onLink, err
	}
	return e.spec.Dst, false, nil // no route: on a test bed the usual case
}

// multicastMAC is the group MAC of a multicast or broadcast address (RFC 1112,
// section 6.4; RFC 2464, section 7), nil for a unicast one.
func multicastMAC(a netip.Addr) net.HardwareAddr {
	b := a.AsSlice()
	switch {
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	case a.Is4() && a.IsMulticast():
		return net.HardwareAddr{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	case a.IsMulticast():
		return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
	}
	return nil
}

func (e *txEnd) neighIface() neigh.Iface {
	return neigh.Iface{Index: e.info.Index, Name: e.info.Ref.Name, MAC: e.spec.SrcMAC}
}

func (e *txEnd) note(format string, a ...any) { e.notes = append(e.notes, fmt.Sprintf(format, a...)) }

// effective puts what the frames hold into the result's settings.
func (e *txEnd) effective(config map[string]any) {
	config["size"] = int(e.spec.Size)
	config["src"], config["dst"] = e.spec.Src.String(), e.spec.Dst.String()
	config["src-mac"], config["dst-mac"] = e.spec.SrcMAC.String(), e.spec.DstMAC.String()
	config["duration"] = e.t.duration.String()
	config["ipv6"] = e.t.ipv6
}

// open starts the workers; nothing is sent yet.
func (e *txEnd) open() (err error) {
	e.gen, err = e.generator(e.spec, gen.Config{Count: e.t.count, Duration: e.t.duration, Sampling: e.sampling()})
	return err
}

// start begins to send.
func (e *txEnd) start() (err error) {
	e.before, err = readPort(e.port)
	e.gen.Start() // whatever the counters say: who opened it waits for it
	return err
}

// warmSpec is the frames of the warm-up: the same, but that nobody counts them.
func (e *txEnd) warmSpec() frames.Spec {
	spec := e.spec
	spec.Stamp, spec.RoundTrip = false, false
	return spec
}

// Settling of the port's counters: some drivers update theirs once in two seconds.
const (
	settleStep = 20 * time.Millisecond
	settleFor  = 2500 * time.Millisecond
	hurryFor   = 100 * time.Millisecond // where the run was ended early
)

// wait returns when all workers have ended, with the port's counters read after.
func (e *txEnd) wait(hurry bool) error {
	settle := settleFor
	if hurry {
		settle = hurryFor
	}
	e.results = e.gen.Wait()
	var sent uint64
	var errs []error
	for _, r := range e.results {
		sent += r.Sent
		if errors.Is(r.Err, gen.ErrStalled) {
			r.Err = e.stalled(r.Err)
		}
		errs = append(errs, r.Err)
	}
	var err error
	e.delta, err = settled(e.port, e.before, sent, settle)
	return errors.Join(append(errs, err)...)
}

// moving is the check, early in a run, that frames which the kernel took leave by
// the port: some ways lose all of them without a word. done says that the port has
// counted some. An error is that it has not for as long as any driver takes.
func (e *txEnd) moving(elapsed time.Duration) (done bool, err error) {
	sent := stats.Sum(e.gen.Stats()).Sent
	if elapsed < movingFirst || sent == 0 {
		return false, nil
	}
	now, err := e.port.Counters()
	if err != nil || now.TxPackets != e.before.TxPackets { // what reads the port later has the error
		return true, nil
	}
	if elapsed < movingLast {
		return false, nil
	}
	return true, withHint(fmt.Errorf("%v: the kernel took %d frames, and the port has not sent one", e.info.Ref, sent),
		"look at the port's counters, ip -s link show %s, at its queueing discipline, and try another --backend", e.info.Ref.Name)
}

// When a port must have counted a frame: at first, and at the latest. Some drivers
// update their counters once in two seconds.
const (
	movingFirst = 100 * time.Millisecond
	movingLast  = 3 * time.Second
)

// stalled adds to a worker's error, which knows the queue only, the interface and
// what it says of it.
func (e *txEnd) stalled(err error) error {
	if d, counterErr := since(e.port, e.before); counterErr == nil && d.TxDropped > 0 {
		return withHint(fmt.Errorf("%v: %w; the port dropped %d attempts", e.info.Ref, err, d.TxDropped),
			"look at the far end: is it up, and is its MTU large enough?")
	}
	return fmt.Errorf("%v: %w", e.info.Ref, err)
}

// closingRepeats is how often each stream's closing frame is sent.
const closingRepeats = 5

// close ends the workers. With closing, the receiver is told the counts.
func (e *txEnd) close(closing bool) error {
	var errs []error
	if e.gen != nil {
		repeats := 0
		if closing && e.spec.Stamp {
			repeats = closingRepeats
		}
		errs = append(errs, e.gen.Close(repeats))
	}
	if e.pass != nil {
		errs = append(errs, e.pass.Close())
		e.pass = nil
	}
	if e.unfinished != nil {
		errs = append(errs, e.unfinished())
		e.unfinished = nil
	}
	if e.port != nil {
		errs = append(errs, e.port.Close())
		e.port = nil
	}
	return errors.Join(errs...)
}

// span is the first and the last instant of sending, monotonic ns.
func (e *txEnd) span() (firstNs, lastNs int64) {
	for _, r := range e.results {
		if r.Offered == 0 {
			continue
		}
		if firstNs == 0 || r.FirstNs < firstNs {
			firstNs = r.FirstNs
		}
		lastNs = max(lastNs, r.LastNs)
	}
	return firstNs, lastNs
}

// report makes the sending side of the result. received is the number of
// different frames that arrived, which the port has surely sent.
func (e *txEnd) report(received uint64) (*report.TX, report.Loss) {
	tx := &report.TX{Iface: e.info.Ref.String(), Backend: e.backend, BackendReason: e.reason, DstMAC: e.spec.DstMAC.String()}
	var loss report.Loss
	first, last := e.span()
	seconds := float64(last-first) / 1e9
	var sent uint64
	gaps, lag, calls := stats.NewLatency(), stats.NewLatency(), uint64(0)
	for _, r := range e.results {
		if r.Gaps != nil {
			gaps.Merge(r.Gaps)
			lag.Merge(r.Lag)
		}
		q := report.Queue{Queue: r.Worker, Frames: r.Sent, PPS: report.MakeRates(r.Sent, 0, float64(r.LastNs-r.FirstNs)/1e9).PPS}
		if r.CPU >= 0 {
			q.CPU = &r.CPU
		}
		tx.Queues = append(tx.Queues, q)
		sent += r.Sent
		tx.Offered += r.Offered
		tx.Errors += r.Rejected
		tx.Missed += r.Missed
		calls += r.Batches
		tx.Busy += r.Busy
		tx.LateEvents += r.Late
		tx.LateMaxNs = max(tx.LateMaxNs, r.LateMaxNs)
	}
	tx.Gaps, tx.StampLag = spread(gaps), spread(lag)
	if calls > 0 {
		tx.FramesPerCall = float64(tx.Offered) / float64(calls)
	}
	if e.delta != nil {
		tx.Port = counters(e.delta)
		tx.Errors += tx.Port.TxErrors
		if tx.Port.TxFrames < sent {
			e.note("%v: the kernel took %d frames, the port counted %d as sent: the rest never left", e.info.Ref, sent, tx.Port.TxFrames)
			sent = tx.Port.TxFrames
		}
	}
	// What arrived was sent, also after the drain was given up or by a port whose
	// counters lag.
	sent = min(max(sent, received), tx.Offered)
	tx.Rates = report.MakeRates(sent, sent*uint64(e.spec.Size), seconds)
	tx.Unsent = tx.Offered - sent
	if e.delta != nil {
		loss.Counters = e.delta.txPlaces()
		held := take(tx.Unsent, "generator", loss.Counters)
		loss.TXNIC = take(tx.Unsent-held, "tx_nic", loss.Counters)
	}
	loss.Generator = tx.Unsent - loss.TXNIC
	if pps := e.load.Mean(e.t.duration); pps > 0 {
		tx.RequestedPPS = &pps
	}
	if span := e.load.Span(tx.Offered); span > 0 && seconds > 0 {
		r := span.Seconds()/seconds - 1
		tx.RateError = &r
	}
	if e.info.SpeedBps > 0 {
		p := tx.L1Bps / float64(e.info.SpeedBps) * 100
		tx.LineRatePercent = &p
	}
	return tx, loss
}
