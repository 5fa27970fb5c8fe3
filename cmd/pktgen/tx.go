package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"pktgen/units"
)

func ifaceFlag(twin string) []cli.Flag {
	return env(&cli.StringFlag{Name: "iface", Aliases: []string{"i"}, EnvVars: []string{twin}, Usage: "`INTERFACE`, or NAMESPACE/INTERFACE"})
}

func txCommand() *cli.Command {
	return &cli.Command{
		Name:      "tx",
		Usage:     "send frames out of an interface",
		UsageText: "pktgen tx --iface INTERFACE [flags]",
		Description: `Sends UDP frames that carry a stamp (run, stream, sequence number, time sent),
until --duration, --count or Ctrl-C, and says how many the port really sent.

Examples:
  pktgen tx --iface eth31 --size 64                 full speed
  pktgen tx -i eth31 -s 1518 -r 10% --duration 60s  a tenth of line rate
  pktgen tx -i eth31 -t 2 --cpus 0-1 -n 1000000     two queues, a million frames
  pktgen tx -i eth31 -d 198.19.0.2 --gateway 198.18.0.254 -r 100kpps`,
		Flags:  concat(ifaceFlag("PKTGEN_TX"), frameFlags(), timeFlags(0, "no limit"), backendFlag(), outputFlags()),
		Action: txAction,
	}
}

func concat(lists ...[]cli.Flag) (all []cli.Flag) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func txAction(c *cli.Context) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	t, err := parseTraffic(c)
	if err != nil {
		return err
	}
	p := parser{c: c}
	ref := p.iface("iface")
	minPPS := p.minRate()
	if p.err != nil {
		return p.err
	}
	out, err := newOutput(c)
	if err != nil {
		return err
	}
	s := newSession("tx", out)
	s.config = settings(c)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.addTX(c.Context, ref, t); err != nil {
		return err
	}
	if s.limits.minPPS, err = minPPS(s.tx[0]); err != nil {
		return err
	}
	if err := planCPUs(s, t.cpus); err != nil {
		return err
	}
	return s.run(c.Context)
}

// minRate reads --min-rate: a function of the sending end, because a rate in
// bits or percent needs the frame size and the link.
func (p *parser) minRate() func(*txEnd) (float64, error) {
	if p.c.String("min-rate") == "" {
		return func(*txEnd) (float64, error) { return 0, nil }
	}
	r := p.rate("min-rate")
	if r.IsMax() {
		p.fail("min-rate", "want a rate such as 100kpps or 1Gbps")
	}
	return func(e *txEnd) (float64, error) {
		f, err := r.PPS(e.spec.Size, e.info.SpeedBps)
		if err != nil {
			return 0, err
		}
		return f.PerSecond(), nil
	}
}

// settings is every effective setting, by the names of the flags.
func settings(c *cli.Context) map[string]any {
	m := map[string]any{}
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		if name == "help" {
			continue
		}
		switch v := c.Value(name).(type) {
		case cli.StringSlice:
			m[name] = v.Value()
		case units.FrameSize:
			m[name] = int(v)
		case interface{ String() string }:
			m[name] = v.String()
		default:
			m[name] = v
		}
	}
	return m
}
