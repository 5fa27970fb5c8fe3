package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"pktgen/frames"
	"pktgen/gen"
	"pktgen/gen/live"
	"pktgen/internal/netdev"
	"pktgen/internal/xdp"
	"pktgen/ring"
	"pktgen/ring/gso"
	"pktgen/ring/tpacket"
	"pktgen/ring/xsk"
	"pktgen/sink"
	"pktgen/sink/count"
	"pktgen/stats"
)

// Backends: ways into the kernel and out of it.
const (
	backendAuto   = "auto"
	backendPacket = "packet" // AF_PACKET rings
	backendGSO    = "gso"    // many datagrams as one packet, which the kernel or the NIC cuts
	backendXDP    = "xdp"    // AF_XDP rings
	backendLive   = "live"   // XDP live frames
	backendCount  = "count"  // an XDP program that counts
)

var (
	sendBackends    = []string{backendAuto, backendPacket, backendGSO, backendXDP, backendLive}
	receiveBackends = []string{backendAuto, backendPacket, backendXDP, backendCount}
)

// sender is a set of sending workers: gen.Generator, live.Sender.
type sender interface {
	Start()
	Stop()
	Wait() []gen.Result
	Close(repeats int) error
	Stats() *stats.Set[stats.TxCounts]
}

// receiver is what counts on an interface: sink.Sink, count.Sink.
type receiver interface {
	Start()
	Stop()
	Cut() *stats.Latency
	Failed() <-chan struct{}
	Stats() *stats.Set[stats.RxCounts]
	Streams() (seen, closed int)
	Wait() *sink.Result
}

// packetEnough is the rate of a queue, frames/s, up to which a ring of packets is
// fast enough on any machine that is worth testing with. It leaves the CPU alone
// between two frames, and has them sent on time.
const packetEnough = 300_000

// candidates are the backends to try for a configuration, in this order, and why
// the first one is.
func (e *txEnd) candidates(cfg gen.Config) (names []string, why string) {
	if e.t.backend != backendAuto {
		return []string{e.t.backend}, "asked for"
	}
	if e.t.qdisc {
		return []string{backendPacket}, "the queueing discipline is asked for"
	}
	if e.launchClock != 0 {
		return []string{backendPacket}, "launch times are asked for"
	}
	pps := e.load.Mean(e.t.duration) / float64(e.t.queues)
	if !e.load.Unlimited() && pps <= packetEnough {
		return []string{backendPacket}, "at this rate it sends each frame at its time"
	}
	if names = []string{backendGSO, backendXDP, backendPacket}; e.notGSO() != "" {
		names = names[1:]
	}
	if err := live.Able(cfg); err != nil {
		return names, err.Error()
	}
	return append([]string{backendLive}, names...), "the fastest"
}

// notGSO says what of the frames or the load is not for gso; "" where all is.
func (e *txEnd) notGSO() string {
	switch t := e.t; {
	case t.flows > 1:
		return "the frames of a packet to be cut share their ports"
	case t.zeroChecksum:
		return "frames that are cut have a checksum"
	case t.refill:
		return "the headers are not written for each frame"
	case e.launchClock != 0:
		return "the frames of a packet leave together, and have no launch times"
	}
	return ""
}

// intends is the backend that will be tried first.
func (e *txEnd) intends() string {
	names, _ := e.candidates(e.generatorConfig(nil, gen.Config{}))
	return names[0]
}

// generatorConfig completes a configuration for the streams of templates.
func (e *txEnd) generatorConfig(templates []*frames.Template, cfg gen.Config) gen.Config {
	cfg.Workers, cfg.CPUs, cfg.Enter = e.t.queues, e.cpus, e.info.Ref.Enter
	cfg.Open = func(worker int) (ring.TX, error) {
		return tpacket.OpenTX(tpacket.TXOptions{
			Interface: e.info.Ref.String(), Index: e.info.Index, Queue: worker,
			MaxFrame: templates[worker].Len(), Qdisc: e.t.qdisc || e.launchClock != 0, Launch: e.launchClock,
		})
	}
	cfg.Template = func(worker int) *frames.Template { return templates[worker] }
	cfg.Pattern, cfg.Batch, cfg.Refill, cfg.Launch = e.load, e.t.batch, e.t.refill, e.launchConfig()
	return cfg
}

// generator opens the workers for frames of a spec, their streams numbered from
// its own, by the fastest backend that can. What cfg leaves open is as for the run.
func (e *txEnd) generator(spec frames.Spec, cfg gen.Config) (sender, error) {
	names, why := e.candidates(e.generatorConfig(nil, cfg))
	for i, name := range names {
		s, err := e.sender(name, spec, cfg)
		if err == nil {
			e.backend, e.reason = name, e.how(why)
			return s, nil
		}
		if i == len(names)-1 || !unable(err) {
			return nil, e.explain(err)
		}
		why = err.Error()
	}
	panic("no backend to try")
}

// unable says that an error is of a backend that cannot be had here, or not for this.
func unable(err error) bool {
	return errors.Is(err, live.ErrUnable) || errors.Is(err, gso.ErrUnable) || errors.Is(err, xsk.ErrUnable)
}

// sender opens the workers of a backend.
func (e *txEnd) sender(name string, spec frames.Spec, cfg gen.Config) (sender, error) {
	e.mode = ""
	if name == backendGSO {
		if why := e.notGSO(); why != "" {
			return nil, usageError{fmt.Errorf("--backend gso: %s", why)}
		}
		spec.UDPChecksum = frames.ChecksumPartial
	}
	templates := make([]*frames.Template, e.t.queues)
	for i := range templates {
		t, err := spec.Compile()
		if err != nil {
			return nil, err
		}
		templates[i] = t
		spec.StreamID++
	}
	cfg = e.generatorConfig(templates, cfg)
	switch name {
	case backendPacket:
		return opened(gen.Open(cfg))
	case backendGSO:
		return e.gso(spec, cfg)
	case backendXDP:
		return e.xdp(cfg)
	}
	return e.live(cfg)
}

// gso has the kernel cut packets of many datagrams.
func (e *txEnd) gso(spec frames.Spec, cfg gen.Config) (sender, error) {
	if e.unfinished == nil {
		restore, err := netdev.FinishFrames(e.info)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", gso.ErrUnable, err)
		}
		e.unfinished = restore
	}
	layout := gso.Layout{Frame: cfg.Template(0).Len(), IPv6: spec.Dst.Is6()}
	layout.IP, layout.UDP = spec.Layout()
	cfg.Open = func(worker int) (ring.TX, error) {
		return gso.Open(gso.Options{
			Interface: e.info.Ref.String(), Index: e.info.Index, Queue: worker, Layout: layout, Segments: e.t.batch,
		})
	}
	return opened(gen.Open(cfg))
}

// xdp sends by AF_XDP rings, each of its own queue of the port.
func (e *txEnd) xdp(cfg gen.Config) (sender, error) {
	if n := max(e.info.TxQueues, e.info.RxQueues); e.t.queues > n {
		return nil, withHint(fmt.Errorf("%v: %w: it has %d queues, and each of %d workers needs its own", e.info.Ref, xsk.ErrUnable, n, e.t.queues),
			"use --queues %d, or make more of them with ethtool -L", n)
	}
	size := cfg.Template(0).Len()
	cfg.Open = func(worker int) (ring.TX, error) {
		tx, err := xsk.OpenTX(xsk.TXOptions{Interface: e.info.Ref.String(), Index: e.info.Index, Queue: worker, MaxFrame: size})
		if err != nil {
			return nil, err
		}
		if worker == 0 {
			e.mode = mode(tx.Mode())
		}
		return tx, nil
	}
	return opened(gen.Open(cfg))
}

// how is why a backend sends, with its mode where it has one.
func (e *txEnd) how(why string) string {
	if e.mode == "" {
		return why
	}
	return e.mode + ", " + why
}

// live sends from inside the kernel.
func (e *txEnd) live(cfg gen.Config) (sender, error) {
	port := live.Port{Name: e.info.Ref.String(), Index: e.info.Index}
	s, err := opened(live.Open(cfg, port))
	if !errors.Is(err, live.ErrRefused) || e.pass != nil {
		return s, err
	}
	// Some drivers make their queues for redirected frames with the first program.
	pass, passErr := passOn(e.info)
	if passErr != nil {
		return nil, err
	}
	if s, err = opened(live.Open(cfg, port)); err != nil {
		return nil, errors.Join(err, pass.Close())
	}
	e.pass = pass
	return s, nil
}

// opened keeps a nil pointer from becoming a sender.
func opened[S sender](s S, err error) (sender, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// explain says what to do where the backend that was asked for cannot send.
func (e *txEnd) explain(err error) error {
	switch {
	case errors.Is(err, live.ErrLoad):
		return usageError{withHint(err, "--backend packet sends every load; --backend auto takes what can")}
	case errors.Is(err, live.ErrRefused) && e.info.Kind == "veth":
		return withHint(err, "a veth takes them while its peer has an XDP program or GRO: receive there with --rx-backend count, or ethtool -K PEER gro on")
	case unable(err) && !errors.As(err, new(hinted)):
		return withHint(err, "--backend packet sends on every interface; --backend auto takes what there is")
	}
	return err
}

// passOn puts a program on a port that lets every frame pass.
func passOn(info netdev.Info) (*passing, error) {
	prog, err := xdp.Pass()
	if err != nil {
		return nil, err
	}
	p := &passing{prog: prog}
	err = info.Ref.Do(func() (err error) {
		p.attached, err = xdp.Attach(info.Ref.String(), info.Index, prog)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, prog.Close())
	}
	return p, nil
}

// passing is a program that lets every frame pass, on a port.
type passing struct {
	prog     *ebpf.Program
	attached *xdp.Attached
}

func (p *passing) Close() error { return errors.Join(p.attached.Close(), p.prog.Close()) }

// open opens what counts, by the backend asked for; fast says that the sender on
// the other end is too fast for a socket.
func (e *rxEnd) open(own *sink.Own, fast bool) error {
	name, why := e.r.backend, "asked for"
	if name == backendAuto {
		name, why = backendPacket, "it looks at every octet"
		if fast && e.r.clock != clockRoundTrip && !e.r.hardware {
			name, why = backendCount, "the sender is too fast for a socket"
		}
	}
	if name == backendCount {
		s, err := count.Open(count.Config{
			Name: e.info.Ref.String(), Index: e.info.Index, MTU: e.info.MTU, Enter: e.info.Ref.Enter,
			Own: own, MaxStreams: e.r.maxStreams, NoVerify: !e.r.verify,
		})
		if err == nil {
			e.sink, e.backend, e.reason = s, name, mode(s.Mode())+", "+why
			return nil
		}
		if e.r.backend == backendCount || !errors.Is(err, count.ErrUnable) {
			return err
		}
		why = err.Error()
	}
	if name == backendXDP {
		s, err := e.xdpSink(own)
		if err == nil {
			e.sink, e.backend, e.reason = s, name, mode(e.xsk.Mode())+", "+why
		}
		return err
	}
	if fast && e.info.Kind == "veth" {
		// A veth takes live frames while its peer has a program. Without one they
		// are sent another way, which says why.
		e.pass, _ = passOn(e.info)
	}
	s, err := e.socketSink(own)
	if err != nil {
		return err
	}
	e.sink, e.backend, e.reason = s, backendPacket, why
	return nil
}

// slower says that the sender is not the fast one that open was told of: a socket
// is enough.
func (e *rxEnd) slower(own *sink.Own) error {
	if e.pass != nil {
		err := e.pass.Close()
		e.pass = nil
		return err
	}
	if e.backend != backendCount || e.r.backend == backendCount {
		return nil
	}
	e.sink.Stop()
	if err := e.sink.Wait().Err; err != nil {
		return err
	}
	e.sink = nil
	return e.open(own, false)
}

// xdpSink counts what AF_XDP rings receive: one worker reads those of all queues, for
// a NIC may spread a stream over them.
func (e *rxEnd) xdpSink(own *sink.Own) (*sink.Sink, error) {
	cfg := sink.Config{
		Workers: 1, CPUs: e.cpus, Enter: e.info.Ref.Enter, Own: own, MaxStreams: e.r.maxStreams, NoVerify: !e.r.verify,
		Open: func(int) (ring.RX, error) {
			all, err := xsk.OpenAll(xsk.RXOptions{
				Interface: e.info.Ref.String(), Index: e.info.Index, MaxFrame: min(e.info.MTU+ethernetHeader+2*4, xsk.MaxReceived),
			}, max(e.info.RxQueues, 1))
			e.xsk = all
			return all, err
		},
	}
	if most := xsk.MaxReceived - ethernetHeader - 4; e.info.MTU > most {
		return nil, withHint(fmt.Errorf("%v: %w: its MTU is %d", e.info.Ref, xsk.ErrUnable, e.info.MTU),
			"AF_XDP takes frames of an MTU of up to %d; --rx-backend packet takes all", most)
	}
	s, err := sink.Open(cfg)
	if unable(err) && !errors.Is(err, xdp.ErrTaken) {
		err = withHint(err, "--rx-backend packet receives on every interface")
	}
	return s, err
}

func mode(where, why string) string {
	if why == "" {
		return where
	}
	return fmt.Sprintf("%s (%s)", where, why)
}

// backend reads a flag that names a backend.
func (p *parser) backend(flag string, names []string) string { return p.choice(flag, names...) }

func backendUsage(what string, names []string) string {
	return what + " `BACKEND`: " + strings.Join(names, ", ")
}
