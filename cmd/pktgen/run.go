package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"pktgen/internal/netdev"
	"pktgen/report"
)

// runDuration is how long a run is where nothing else ends it.
const runDuration = 10 * time.Second

const maxTrials = 10_000

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "send and receive in one process: rate, loss and where, latency",
		UsageText: "pktgen run --tx INTERFACE --rx INTERFACE [flags]",
		Description: `Sends out of one interface and receives on another of this machine, both in this
process, so that loss is exact and latency is by one clock.

Several pairs: --tx A,B --rx C,D. An interface in a network namespace is
NAMESPACE/INTERFACE; "lab" fills both in.

Examples:
  pktgen run --tx eth31 --rx eth32
  pktgen run --tx eth31 --rx eth32 -s 1518 -r 50% --duration 60s --json
  pktgen run --tx eth31 --rx eth32 --both-ways -r 100kpps --max-loss 0
  pktgen run --tx eth31 --round-trip -r 10kpps   with pktgen reflect at the far end
  pktgen lab wire -- run --rate 100kpps`,
		Flags: concat(env(
			&cli.StringSliceFlag{Name: "tx", Usage: "sending `INTERFACE`, or NAMESPACE/INTERFACE; several with commas"},
			&cli.StringSliceFlag{Name: "rx", Usage: "receiving `INTERFACE`, likewise"},
			&cli.BoolFlag{Name: "both-ways", Usage: "send back too, at the same rate"},
			&cli.IntFlag{Name: "repeat", Value: 1, Usage: "make `N` trials: their spread, a confidence interval, those that stand apart"},
			&cli.DurationFlag{Name: "settle", Value: 5 * time.Second, Usage: "`TIME` between two trials"},
			&cli.BoolFlag{Name: "calibrate", Usage: "first measure the latency of the same load over a veth pair: the tool's own"},
			&cli.BoolFlag{Name: "round-trip", Usage: "the frames come back, by pktgen reflect; --rx is --tx unless given"},
		), frameFlags(), timeFlags(0, "10s, no limit with --count"), backendFlag(), rxFlags(), outputFlags()),
		Action: runAction,
	}
}

func runAction(c *cli.Context) (err error) {
	if err := noArguments(c); err != nil {
		return err
	}
	t, err := parseTraffic(c)
	if err != nil {
		return err
	}
	t.roundTrip = c.Bool("round-trip")
	if t.duration == 0 && t.count == 0 {
		t.duration = runDuration
	}
	p := parser{c: c}
	txs := p.ifaces("tx")
	rxs := txs
	// A test bed fills both ends in; of a round trip the far one is the reflector's.
	farEnd := strings.Join(c.StringSlice("rx"), ",") == os.Getenv("PKTGEN_RX")
	if !t.roundTrip || (c.IsSet("rx") && !farEnd) {
		rxs = p.ifaces("rx")
	}
	r := p.reception()
	r.clock = clockSameHost
	if t.roundTrip {
		r.clock = clockRoundTrip
	}
	maxLoss, minPPS := p.ratio("max-loss"), p.minRate()
	trials := int(p.number("repeat", int64(c.Int("repeat")), 1, maxTrials))
	settle := p.duration("settle", 0)
	if p.err != nil {
		return p.err
	}
	if !t.stamp {
		return withHint(usagef("--no-stamp: without the stamp the receiver knows none of the frames"), "pktgen tx sends such frames; the ports' counters tell of them")
	}
	if t.roundTrip && r.backend == backendCount {
		return usagef("--rx-backend count with --round-trip: it does not know frames that have come back")
	}
	if len(txs) != len(rxs) {
		return usagef("%d sending interfaces, but %d receiving ones: give as many of each", len(txs), len(rxs))
	}
	if c.Bool("both-ways") && t.roundTrip {
		return usagef("--both-ways with --round-trip: each of them uses the way back")
	}
	if c.Bool("both-ways") && t.gateway.IsValid() {
		return usagef("--both-ways with --gateway: the gateway is that of one side only")
	}
	if c.Bool("both-ways") {
		txs, rxs = append(txs[:len(txs):len(txs)], rxs...), append(rxs[:len(rxs):len(rxs)], txs...)
	}
	if err := distinct("tx", txs); err != nil {
		return err
	}
	if err := distinct("rx", rxs); err != nil {
		return err
	}
	out, err := newOutput(c)
	if err != nil {
		return err
	}
	var floor *report.Floor
	open := func() (_ *session, err error) {
		s := newSession("run", out)
		s.config, s.limits.maxLoss = settings(c), maxLoss
		defer func() {
			if err != nil {
				err = errors.Join(err, s.close())
			}
		}()
		if err := s.addPairs(c.Context, t, r, txs, rxs, c.Bool("both-ways")); err != nil {
			return nil, err
		}
		for _, e := range s.tx {
			pps, err := minPPS(e)
			if err != nil {
				return nil, err
			}
			s.limits.minPPS += pps
		}
		if err := planCPUs(s, t.cpus); err != nil {
			return nil, err
		}
		if c.Bool("calibrate") && floor == nil { // once, not for each trial
			if floor, err = calibrate(c.Context, s); err != nil {
				return nil, err
			}
		}
		s.floor = floor
		return s, nil
	}
	if trials > 1 {
		rp := repetition{trials: trials, settle: settle, open: open, out: out}
		return rp.run(c.Context)
	}
	s, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.run(c.Context)
}

// addPairs takes the interfaces: the receiving ones first, which answer the
// senders' questions for addresses.
func (s *session) addPairs(ctx context.Context, t *traffic, r *reception, txs, rxs []netdev.Ref, bothWays bool) error {
	for _, ref := range rxs {
		if err := s.addRX(ref, r); err != nil {
			return err
		}
	}
	for i, ref := range txs {
		d := direction(t, i >= len(txs)/2 && bothWays)
		if t.roundTrip && t.srcMAC == nil && rxs[i] == ref {
			// What comes back is not for the host's own IP stack.
			own := *t
			own.srcMAC = s.rx[i].mac
			d = &own
		}
		if err := s.addTX(ctx, ref, d); err != nil {
			return err
		}
	}
	return nil
}

// direction is the traffic of one direction: that of the way back has its
// addresses changed over.
func direction(t *traffic, back bool) *traffic {
	if !back {
		return t
	}
	b := *t
	b.src, b.dst = t.dst, t.src
	b.srcMAC, b.dstMAC = nil, t.srcMAC
	b.back = true
	return &b
}

func distinct(flag string, refs []netdev.Ref) error {
	seen := map[netdev.Ref]bool{}
	for _, r := range refs {
		if seen[r] {
			return usagef("--%s: %v stands twice", flag, r)
		}
		seen[r] = true
	}
	return nil
}

// iface reads a flag that names one interface.
func (p *parser) iface(flag string) netdev.Ref {
	s := p.c.String(flag)
	if s == "" && p.err == nil {
		p.err = withHint(usagef("--%s: which interface?", flag), "--%s eth31; ip link shows them", flag)
	}
	return p.ref(flag, s)
}

// ifaces reads a flag that names one interface or several.
func (p *parser) ifaces(flag string) (refs []netdev.Ref) {
	names := p.c.StringSlice(flag)
	if len(names) == 0 && p.err == nil {
		p.err = withHint(usagef("--%s: which interface?", flag), "--tx eth31 --rx eth32; ip link shows them; pktgen lab wire -- run ... makes two")
	}
	for _, n := range names {
		refs = append(refs, p.ref(flag, n))
	}
	return refs
}

func (p *parser) choice(flag string, choices ...string) string {
	s := p.c.String(flag)
	for _, ch := range choices {
		if s == ch {
			return s
		}
	}
	p.fail(flag, "want %s", fmt.Sprint(choices))
	return s
}
