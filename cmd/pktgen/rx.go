package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"pktgen/units"
)

func rxCommand() *cli.Command {
	return &cli.Command{
		Name:      "rx",
		Usage:     "receive, count, check and time frames",
		UsageText: "pktgen rx --iface INTERFACE [flags]",
		Description: `Counts frames by their stamps: loss, duplicates, reordering, corruption, each
stream on its own. Answers ARP and NDP for the benchmarking addresses
(198.18.0.0/15, 2001:2::/48). Runs until --duration, --count, --once or Ctrl-C.

Latency is shown only when the two ends' clocks are said to agree (--clock):
same-host where the sender runs on this machine, synced where PTP keeps them.

Examples:
  pktgen rx --iface eth32
  pktgen rx -i eth32 --once --json      end with the first sender, one document
  pktgen rx -i eth32 --once --clock same-host --max-loss 0`,
		Flags: concat(ifaceFlag("PKTGEN_RX"), env(
			&cli.Uint64Flag{Name: "count", Aliases: []string{"n"}, Usage: "end soon after `N` frames have arrived; all that arrive until then count; 0: no limit"},
			&cli.BoolFlag{Name: "once", Usage: "end when every sender seen has ended"},
			&cli.StringFlag{Name: "clock", Value: clockNone, Usage: "what the two ends' `CLOCKS` are: same-host, synced, none"},
			&cli.StringFlag{Name: "min-rate", Usage: "exit code 3 when less than this `RATE` (frames/s) was received"},
		), timeFlags(0, "no limit"), rxFlags("backend"), outputFlags()),
		Action: rxAction,
	}
}

func rxAction(c *cli.Context) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	p := parser{c: c}
	ref := p.iface("iface")
	r := p.reception()
	r.clock = p.choice("clock", clockNone, clockSameHost, clockSynced)
	until := until{duration: p.duration("duration", 0), count: c.Uint64("count"), once: c.Bool("once")}
	maxLoss := p.ratio("max-loss")
	minPPS := 0.0
	if c.String("min-rate") != "" {
		f, err := p.rate("min-rate").PPS(units.MinFrameSize, 0)
		if err != nil || f.Num == 0 {
			p.fail("min-rate", "want frames a second, such as 100kpps")
		}
		minPPS = f.PerSecond()
	}
	if p.err != nil {
		return p.err
	}
	out, err := newOutput(c)
	if err != nil {
		return err
	}
	s := newSession("rx", out)
	s.config, s.until, s.limits = settings(c), until, limits{maxLoss: maxLoss, minPPS: minPPS}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.addRX(ref, r); err != nil {
		return err
	}
	if err := planCPUs(s, r.cpus); err != nil {
		return err
	}
	return s.run(c.Context)
}

func (p *parser) reception() *reception {
	return &reception{
		backend: p.backend("rx-backend", receiveBackends),
		queues:  p.queues(), cpus: p.cpus(), clock: clockNone,
		hardware: p.choice("rx-time", "kernel", "hardware") == "hardware",
		ring:     int(p.number("ring", int64(p.c.Int("ring")), 0, maxRing)) << 20,
		answer:   !p.c.Bool("no-answer"), promisc: !p.c.Bool("no-promisc"), verify: !p.c.Bool("no-verify"),
		maxStreams: int(p.number("max-streams", int64(p.c.Int("max-streams")), 1, 1<<16)),
	}
}
