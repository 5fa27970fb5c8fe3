package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"pktgen/frames"
	"pktgen/internal/clock"
	"pktgen/reflector"
	"pktgen/report"
	"pktgen/ring"
	"pktgen/ring/tpacket"
)

func reflectCommand() *cli.Command {
	return &cli.Command{
		Name:      "reflect",
		Usage:     "send test frames back, for round trips where the two clocks differ",
		UsageText: "pktgen reflect --iface INTERFACE [flags]",
		Description: `Sends every test frame back to where it came from: addresses and ports changed
over, and in it the times at which it was received and sent back, so that
"pktgen run --round-trip" on the other host tells the way from this host's own
delay. Answers ARP and NDP for the test addresses, as rx does. Answers STAMP
Session-Senders too (RFC 8762, unauthenticated). Runs until --duration or Ctrl-C.

Examples:
  pktgen reflect --iface eth32
  pktgen reflect -i eth32 --stamp-port 0 --duration 10m --json`,
		Flags: concat(ifaceFlag("PKTGEN_RX"), env(
			&cli.UintFlag{Name: "stamp-port", Value: frames.STAMPPort, Usage: "answer STAMP packets to this UDP `PORT`; 0: none"},
			&cli.BoolFlag{Name: "synchronised", Usage: "this host's clock is kept to UTC, by PTP or NTP: what STAMP answers say of it"},
			&cli.DurationFlag{Name: "clock-offset", Hidden: true, Usage: "for tests: a clock that is ahead of this host's by `TIME`"},
			&cli.StringFlag{Name: "clock-drift", Hidden: true, Usage: "for tests: a clock that gains so many `PPM`"},
			&cli.BoolFlag{Name: "no-answer", Usage: "do not answer ARP and NDP for the test addresses"},
			&cli.BoolFlag{Name: "no-promisc", Usage: "take only frames to the interface's own MAC"},
			&cli.BoolFlag{Name: "qdisc", Usage: "send through the queueing discipline instead of past it"},
		), timeFlags(0, "no limit"), outputFlags()),
		Action: reflectAction,
	}
}

func reflectAction(c *cli.Context) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	p := parser{c: c}
	ref := p.iface("iface")
	r := &reception{
		queues: p.queues(), cpus: p.cpus(), clock: clockNone,
		answer: !c.Bool("no-answer"), promisc: !c.Bool("no-promisc"),
	}
	port := uint16(p.number("stamp-port", int64(c.Uint("stamp-port")), 0, 65535))
	duration := p.duration("duration", 0)
	skew := p.skew()
	if p.err != nil {
		return p.err
	}
	out, err := newOutput(c)
	if err != nil {
		return err
	}
	s := newSession("reflect", out) // for its CPUs, its watch, and its end
	s.config = settings(c)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.addRX(ref, r); err != nil {
		return err
	}
	if err := planCPUs(s, r.cpus); err != nil {
		return err
	}
	e := s.rx[0]
	refl, err := openReflector(e, reflector.Config{
		Workers: r.queues, CPUs: e.cpus, Enter: ref.Enter,
		STAMPPort: port, Synchronised: c.Bool("synchronised"), Clock: skew,
	}, c.Bool("qdisc"))
	if err != nil {
		return err
	}
	s.result = &report.Result{Schema: report.Schema, Command: "reflect", Config: s.config, Host: hostInfo()}
	runErr := s.reflect(c.Context, refl, duration)
	out.end()
	return out.finish(s.result, runErr)
}

func openReflector(e *rxEnd, cfg reflector.Config, qdisc bool) (*reflector.Reflector, error) {
	var fanout *tpacket.Fanout
	if e.r.queues > 1 {
		fanout = &tpacket.Fanout{}
	}
	name, index := e.info.Ref.String(), e.info.Index
	cfg.OpenRX = func(worker int) (ring.RX, error) {
		return tpacket.OpenRX(tpacket.RXOptions{
			Interface: name, Index: index, Queue: worker, Promisc: e.r.promisc, Fanout: fanout, Blocks: e.r.ringBlocks(),
		})
	}
	cfg.OpenTX = func(worker int) (ring.TX, error) {
		return tpacket.OpenTX(tpacket.TXOptions{
			Interface: name, Index: index, Queue: worker, MaxFrame: e.info.MTU + ethernetHeader + 4, Qdisc: qdisc,
		})
	}
	return reflector.Open(cfg)
}

// reflect sends back until it is told to end, and fills the result.
func (s *session) reflect(ctx context.Context, refl *reflector.Reflector, duration time.Duration) error {
	e := s.rx[0]
	watch, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	err := s.watch(watch)
	if err == nil {
		e.before, err = readPort(e.port)
	}
	if err != nil {
		refl.Stop()
		return errors.Join(err, refl.Wait().Err)
	}
	before := clock.ReadScales()
	started := time.Now()
	refl.Start()
	fmt.Fprintf(s.out.stderr, "pktgen: reflecting on %v\n", e.info.Ref)
	var end <-chan time.Time
	if duration > 0 {
		end = time.After(duration)
	}
	select {
	case <-ctx.Done():
	case <-end:
	case err = <-s.lost:
	case <-refl.Failed(): // Wait has the error
	}
	refl.Stop()
	res := refl.Wait()
	if err == nil {
		err = res.Err
	}
	s.result.Started, s.result.DurationS = &started, time.Since(started).Seconds()
	var countErr error
	if e.delta, countErr = since(e.port, e.before); err == nil {
		err = countErr
	}
	if hostErr := s.host(before); err == nil {
		err = hostErr
	}
	s.fillReflect(res)
	var stop interrupted
	if err == nil && errors.As(context.Cause(ctx), &stop) {
		s.result.Interrupted = true
		return stop
	}
	return err
}

func (s *session) fillReflect(res *reflector.Result) {
	e := s.rx[0]
	out := &report.Reflect{
		Iface: e.info.Ref.String(), Frames: res.Returned, STAMP: res.STAMP, Bytes: res.Bytes, Short: res.Short, Corrupt: res.Corrupt,
		OtherFrames: res.Other, NoRoom: res.NoRoom, Unsent: res.Unsent, SocketDrops: res.Drops, Residence: spread(res.Residence),
	}
	if e.responder != nil {
		out.Answered = e.responder.Answered()
	}
	if e.delta != nil {
		out.Port = counters(e.delta)
	}
	s.result.Reflect = out
	s.result.Warnings = append(s.result.Warnings, e.notes...)
	if res.Short > 0 {
		s.result.Warnings = append(s.result.Warnings, fmt.Sprintf("%d test frames have no room for the times of a round trip, and were not sent back: the sender needs --round-trip", res.Short))
	}
}

// skew reads the clock that tests give a reflector, by the host's.
func (p *parser) skew() func(realNs int64) int64 {
	offset := int64(p.c.Duration("clock-offset"))
	ppm := 0.0
	if text := p.c.String("clock-drift"); text != "" {
		if _, err := fmt.Sscan(text, &ppm); err != nil {
			p.fail("clock-drift", "want a number of ppm")
		}
	}
	if offset == 0 && ppm == 0 {
		return nil
	}
	start := time.Now().UnixNano()
	return func(realNs int64) int64 {
		return realNs + offset + int64(float64(realNs-start)*ppm/1e6)
	}
}
