package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"pktgen/frames"
	"pktgen/internal/netdev"
	"pktgen/internal/pin"
	"pktgen/sink"
	"pktgen/units"
)

// traffic is what to send: every effective setting of the frames and the load.
type traffic struct {
	size             units.FrameSize // 0: the least that fits
	rate             units.Rate      // at first, where it ramps
	rampTo           units.Rate
	ramp             time.Duration
	burst            uint64
	on, off          time.Duration
	poisson          bool
	plan             []planStep
	seed             uint64
	count            uint64
	duration         time.Duration
	warmup           time.Duration
	launch           time.Duration // hand frames over so long before their times; 0: at them
	queues           int
	cpus             []int
	batch            int
	backend          string
	qdisc, refill    bool
	force            bool
	ipv6             bool
	src, dst         netip.Addr // zero: chosen by interface and family
	gateway          netip.Addr
	srcMAC, dstMAC   net.HardwareAddr
	srcPort, dstPort uint16
	flows            uint32
	vlan             *frames.VLAN
	ttl, tos         uint8
	zeroChecksum     bool
	stamp            bool
	roundTrip        bool // frames come back by a reflector
	back             bool // the way back of --both-ways: default addresses are changed over
}

// Bounds of what may be asked for.
const (
	maxQueues    = 256
	maxBatch     = 4096
	defaultSport = 1024
	defaultDport = 9 // discard, as the kernel's pktgen
)

func frameFlags() []cli.Flag {
	return env(
		&cli.StringFlag{Name: "size", Aliases: []string{"s"}, Usage: "frame `SIZE` in octets, destination MAC through FCS", DefaultText: "the least that fits: 64, IPv6 84"},
		&cli.StringFlag{Name: "rate", Aliases: []string{"r"}, Value: "max", Usage: "`RATE` of all queues together: max, 1500, 250kpps, 10%, 3Gbps (L2), 10GbpsL1"},
		&cli.Uint64Flag{Name: "burst", Usage: "send `N` frames back to back, then pause: at the same rate"},
		&cli.StringFlag{Name: "ramp", Usage: "instead of --rate, `FROM:TO:TIME`, such as 100kpps:1Mpps:10s; then it stays"},
		&cli.StringFlag{Name: "plan", Usage: "instead of --rate, one rate after the other, `RATE:TIME,RATE:TIME,...`, such as 10kpps:5s,0:1s,100kpps:5s"},
		&cli.StringFlag{Name: "on-off", Usage: "send for one time, then not for another, `ON:OFF`, such as 100ms:900ms"},
		&cli.BoolFlag{Name: "poisson", Usage: "random gaps, exponentially distributed, at --rate on average"},
		&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "`N` that random gaps follow from: the same gives the same"},
		&cli.Uint64Flag{Name: "count", Aliases: []string{"n"}, Usage: "end after `N` frames of all queues together; 0: no limit"},
		&cli.DurationFlag{Name: "warmup", Usage: "first send for a `TIME` what does not count: frames without a stamp"},
		&cli.StringFlag{Name: "src", Usage: "source IP `ADDRESS`", DefaultText: "the interface's, else 198.18.0.1 or 2001:2::1"},
		&cli.StringFlag{Name: "dst", Aliases: []string{"d"}, Usage: "destination IP `ADDRESS`", DefaultText: "198.18.0.2 or 2001:2::2"},
		&cli.StringFlag{Name: "src-mac", Usage: "source `MAC`", DefaultText: "the interface's"},
		&cli.StringFlag{Name: "dst-mac", Aliases: []string{"m"}, Usage: "destination `MAC`", DefaultText: "found by ARP or NDP"},
		&cli.UintFlag{Name: "sport", Value: defaultSport, Usage: "first source `PORT`"},
		&cli.UintFlag{Name: "dport", Aliases: []string{"p"}, Value: defaultDport, Usage: "destination `PORT`"},
		&cli.UintFlag{Name: "flows", Value: 1, Usage: "rotate through `N` source ports"},
		&cli.StringFlag{Name: "vlan", Usage: "802.1Q tag `ID[:PRIORITY]`, 0-4094 and 0-7"},
		&cli.BoolFlag{Name: "ipv6", Aliases: []string{"6"}, Usage: "IPv6"},
		&cli.StringFlag{Name: "gateway", Usage: "next hop IP `ADDRESS`", DefaultText: "by the interface's routes, else the destination itself"},
		&cli.UintFlag{Name: "ttl", Value: 64, Usage: "TTL or hop limit `N`"},
		&cli.UintFlag{Name: "tos", Usage: "TOS or traffic class octet `N`"},
		&cli.BoolFlag{Name: "udp-checksum-zero", Usage: "send UDP checksum 0 (none), IPv4 only"},
		&cli.BoolFlag{Name: "no-stamp", Usage: "send frames without the stamp: they are counted by nothing but the ports"},
		&cli.DurationFlag{Name: "launch-time", Usage: "hand frames over this `TIME` early, and have an etf or fq queueing discipline send them at their times"},
		&cli.BoolFlag{Name: "qdisc", Usage: "send through the queueing discipline instead of past it"},
		&cli.IntFlag{Name: "batch", DefaultText: "64, at full speed 256", Usage: "at most `N` frames a system call"},
		&cli.BoolFlag{Name: "refill", Usage: "copy the whole frame for each one sent, not only what changes"},
		&cli.BoolFlag{Name: "force", Usage: "send though the interface carries the default route or the only global address, or the destination is neither a benchmarking address nor on-link"},
		&cli.StringFlag{Name: "min-rate", Usage: "exit code 3 when less than this `RATE` was sent"},
	)
}

// timeFlags are common to all that runs for a while.
func timeFlags(defaultDuration time.Duration, defaultText string) []cli.Flag {
	return env(
		&cli.DurationFlag{Name: "duration", Value: defaultDuration, DefaultText: defaultText, Usage: "end after `TIME`, such as 10s or 2m"},
		&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "`TIME` between two intervals of the result, 100ms or more"},
		&cli.IntFlag{Name: "queues", Aliases: []string{"t"}, Value: 1, Usage: "`N` workers an interface, each with its own ring, thread and CPU"},
		&cli.StringFlag{Name: "cpus", Usage: "CPU `LIST` for the workers, such as 2-5,8; sending ones first", DefaultText: "chosen"},
	)
}

func outputFlags() []cli.Flag {
	return env(
		&cli.BoolFlag{Name: "json", Aliases: []string{"J"}, Usage: "print one JSON document"},
		&cli.BoolFlag{Name: "json-stream", Usage: "print one JSON object an interval, then the result, each a line"},
		&cli.StringFlag{Name: "out", Usage: "keep the result in `DIR`/result.json"},
	)
}

func backendFlag() []cli.Flag {
	return env(&cli.StringFlag{Name: "backend", Value: backendAuto, Usage: backendUsage("sending", sendBackends)})
}

// rxFlags are how to receive; other names of --rx-backend are for where nothing
// sends.
func rxFlags(backend ...string) []cli.Flag {
	return env(
		&cli.StringFlag{Name: "rx-backend", Aliases: backend, Value: backendAuto, Usage: backendUsage("receiving", receiveBackends)},
		&cli.StringFlag{Name: "rx-time", Value: "kernel", Usage: "whose receive `TIME`: kernel, or hardware, where the NIC notes it for every frame"},
		&cli.IntFlag{Name: "ring", DefaultText: "64, less beyond 8 queues", Usage: "receive ring of `N` MiB a queue: how long a pause it rides out"},
		&cli.BoolFlag{Name: "no-answer", Usage: "do not answer ARP and NDP for the test addresses"},
		&cli.BoolFlag{Name: "no-promisc", Usage: "take only frames to the interface's own MAC"},
		&cli.BoolFlag{Name: "no-verify", Usage: "do not check checksums: no frame is found corrupt"},
		&cli.IntFlag{Name: "max-streams", Value: sink.DefaultMaxStreams, Usage: "track at most `N` streams a queue (some 700 KB each)"},
		&cli.StringFlag{Name: "max-loss", Usage: "exit code 3 when more than this `RATIO` was lost: 0, 0.001, 0.1%"},
	)
}

// env gives each flag its environment twin.
func env(flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		name := "PKTGEN_" + strings.ToUpper(strings.ReplaceAll(f.Names()[0], "-", "_"))
		switch f := f.(type) {
		case *cli.StringFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.StringSliceFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.BoolFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.IntFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.UintFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.Uint64Flag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		case *cli.DurationFlag:
			f.EnvVars = append([]string{name}, f.EnvVars...)
		default:
			panic("flag " + name + " is of a kind without an environment twin")
		}
	}
	return flags
}

// noArguments refuses what stands behind the flags: cli stops reading flags
// there, so that some of them would go unread.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q: flags begin with --, and what follows it would not be read", c.Args().First())
	}
	return nil
}

func parseTraffic(c *cli.Context) (*traffic, error) {
	p := parser{c: c}
	t := &traffic{
		rate:         p.rate("rate"),
		size:         p.size(),
		count:        c.Uint64("count"),
		duration:     p.duration("duration", 0),
		warmup:       p.duration("warmup", 0),
		launch:       p.duration("launch-time", 0),
		queues:       p.queues(),
		cpus:         p.cpus(),
		backend:      p.backend("backend", sendBackends),
		batch:        int(p.number("batch", int64(c.Int("batch")), 0, maxBatch)),
		qdisc:        c.Bool("qdisc"),
		refill:       c.Bool("refill"),
		force:        c.Bool("force"),
		ipv6:         c.Bool("ipv6"),
		src:          p.addr("src"),
		dst:          p.addr("dst"),
		gateway:      p.addr("gateway"),
		srcMAC:       p.mac("src-mac"),
		dstMAC:       p.mac("dst-mac"),
		srcPort:      uint16(p.number("sport", int64(c.Uint("sport")), 0, 65535)),
		dstPort:      uint16(p.number("dport", int64(c.Uint("dport")), 0, 65535)),
		flows:        uint32(p.number("flows", int64(c.Uint("flows")), 1, 65536)),
		vlan:         p.vlan(),
		ttl:          uint8(p.number("ttl", int64(c.Uint("ttl")), 1, 255)),
		tos:          uint8(p.number("tos", int64(c.Uint("tos")), 0, 255)),
		zeroChecksum: c.Bool("udp-checksum-zero"),
		stamp:        !c.Bool("no-stamp"),
		burst:        c.Uint64("burst"),
		poisson:      c.Bool("poisson"),
		seed:         c.Uint64("seed"),
	}
	p.pattern(t)
	p.plan(t)
	if p.err != nil {
		return nil, p.err
	}
	return t, t.family()
}

// planStep is one rate of --plan, and for how long; a rate of 0 is silence.
type planStep struct {
	rate   units.Rate
	silent bool
	time   time.Duration
}

// plan reads --plan, which also says how long the run is.
func (p *parser) plan(t *traffic) {
	text := p.c.String("plan")
	if text == "" {
		return
	}
	for _, name := range []string{"rate", "ramp", "on-off", "burst", "poisson", "duration"} {
		if p.c.IsSet(name) {
			p.fail("plan", "it says the rates and their times; leave --%s out", name)
			return
		}
	}
	total := time.Duration(0)
	for _, part := range strings.Split(text, ",") {
		rate, duration, _ := strings.Cut(strings.TrimSpace(part), ":")
		s := planStep{silent: rate == "0"}
		var errs [2]error
		if !s.silent {
			s.rate, errs[0] = units.ParseRate(rate)
		}
		s.time, errs[1] = time.ParseDuration(duration)
		if errors.Join(errs[:]...) != nil || s.time <= 0 || (!s.silent && s.rate.IsMax()) {
			p.fail("plan", "want RATE:TIME,RATE:TIME, such as 10kpps:5s,0:1s,100kpps:5s")
			return
		}
		total += s.time
		t.plan = append(t.plan, s)
	}
	if !slices.ContainsFunc(t.plan, func(s planStep) bool { return !s.silent }) {
		p.fail("plan", "nothing but silence")
	}
	t.duration = total
}

// pattern reads how frames are spread over time.
func (p *parser) pattern(t *traffic) {
	if text := p.c.String("ramp"); text != "" {
		parts := strings.Split(text, ":")
		if len(parts) != 3 {
			p.fail("ramp", "want FROM:TO:TIME, such as 100kpps:1Mpps:10s")
			return
		}
		if p.c.IsSet("rate") {
			p.fail("ramp", "it says the rate; leave --rate out")
		}
		var errs [3]error
		t.rate, errs[0] = units.ParseRate(parts[0])
		t.rampTo, errs[1] = units.ParseRate(parts[1])
		t.ramp, errs[2] = time.ParseDuration(parts[2])
		if err := errors.Join(errs[:]...); err != nil {
			p.failed("ramp", err)
		} else if t.ramp <= 0 || t.rate.IsMax() || t.rampTo.IsMax() {
			p.fail("ramp", "want two rates that are not max, and a time above 0")
		}
	}
	if text := p.c.String("on-off"); text != "" {
		on, off, ok := strings.Cut(text, ":")
		var errs [2]error
		t.on, errs[0] = time.ParseDuration(on)
		t.off, errs[1] = time.ParseDuration(off)
		if !ok || errors.Join(errs[:]...) != nil || t.on <= 0 || t.off <= 0 {
			p.fail("on-off", "want two times above 0, such as 100ms:900ms")
		}
	}
	for name, set := range map[string]bool{"launch-time": t.launch > 0, "burst": t.burst > 1, "on-off": t.off > 0, "poisson": t.poisson} {
		if set && t.rate.IsMax() && p.c.String("plan") == "" && p.err == nil {
			p.err = usagef("--%s: it needs a --rate that is not max", name)
		}
	}
	if t.poisson && t.launch > 0 && p.err == nil {
		p.err = usagef("--launch-time: random gaps have no times beforehand")
	}
	if t.poisson && (t.burst > 1 || t.off > 0 || t.ramp > 0) && p.err == nil {
		p.err = usagef("--poisson: random gaps go with --rate alone")
	}
}

// family settles IPv4 or IPv6, and holds the addresses to it.
func (t *traffic) family() error {
	for _, a := range []netip.Addr{t.src, t.dst, t.gateway} {
		if a.IsValid() && a.Is6() {
			t.ipv6 = true
		}
	}
	for name, a := range map[string]netip.Addr{"src": t.src, "dst": t.dst, "gateway": t.gateway} {
		if a.IsValid() && a.Is6() != t.ipv6 {
			return usagef("--%s %v: the other addresses, or --ipv6, ask for IPv6", name, a)
		}
	}
	if t.ipv6 && t.zeroChecksum {
		return usagef("--udp-checksum-zero: IPv6 knows no UDP checksum 0 (RFC 8200, section 8.1)")
	}
	return nil
}

// parser reads flags and keeps the first error, which names its flag.
type parser struct {
	c   *cli.Context
	err error
}

func (p *parser) fail(flag string, format string, a ...any) {
	if p.err == nil {
		p.err = usagef("--%s %s: %s", flag, p.c.String(flag), fmt.Sprintf(format, a...))
	}
}

func (p *parser) failed(flag string, err error) {
	if p.err == nil {
		p.err = usagef("--%s: %w", flag, err)
	}
}

func (p *parser) number(flag string, v, lo, hi int64) int64 {
	if (v < lo || v > hi) && p.err == nil {
		p.err = usagef("--%s %d: want %d to %d", flag, v, lo, hi)
	}
	return v
}

func (p *parser) duration(flag string, least time.Duration) time.Duration {
	d := p.c.Duration(flag)
	if d < least && p.err == nil {
		p.err = usagef("--%s %v: want %v or more", flag, d, least)
	}
	return d
}

func (p *parser) rate(flag string) units.Rate {
	r, err := units.ParseRate(p.c.String(flag))
	if err != nil {
		p.failed(flag, err)
	}
	return r
}

func (p *parser) size() units.FrameSize {
	if p.c.String("size") == "" {
		return 0
	}
	sizes, err := units.ParseSizes(p.c.String("size"))
	if err != nil {
		p.failed("size", err)
		return 0
	}
	if len(sizes) != 1 {
		p.fail("size", "one size here; a list is for a sweep")
		return 0
	}
	return sizes[0]
}

func (p *parser) queues() int {
	return int(p.number("queues", int64(p.c.Int("queues")), 1, maxQueues))
}

func (p *parser) cpus() []int {
	s := p.c.String("cpus")
	if s == "" {
		return nil
	}
	cpus, err := pin.ParseList(s)
	if err != nil {
		p.failed("cpus", err)
	}
	return cpus
}

func (p *parser) addr(flag string) netip.Addr {
	s := p.c.String(flag)
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		p.fail(flag, "not an IP address such as 198.18.0.2 or 2001:2::2")
	case a.IsMulticast() && flag != "dst":
		p.fail(flag, "a multicast address is a destination only")
	case a.IsUnspecified():
		p.fail(flag, "the unspecified address cannot be sent to or from")
	}
	return a.Unmap()
}

func (p *parser) mac(flag string) net.HardwareAddr {
	s := p.c.String(flag)
	if s == "" {
		return nil
	}
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != 6 {
		p.fail(flag, "not a MAC address such as 02:00:00:00:00:02")
		return nil
	}
	if slices.Equal(m, make(net.HardwareAddr, 6)) {
		p.fail(flag, "no port has the MAC 0")
	}
	if flag == "src-mac" && m[0]&1 != 0 {
		p.fail(flag, "a source MAC is not a multicast one")
	}
	return m
}

func (p *parser) vlan() *frames.VLAN {
	s := p.c.String("vlan")
	if s == "" {
		return nil
	}
	id, prio, hasPrio := strings.Cut(s, ":")
	n, err := strconv.ParseUint(id, 10, 16)
	if err != nil || n > 4094 {
		p.fail("vlan", "want ID or ID:PRIORITY, 0-4094 and 0-7")
		return nil
	}
	v := &frames.VLAN{ID: uint16(n)}
	if hasPrio {
		pcp, err := strconv.ParseUint(prio, 10, 8)
		if err != nil || pcp > 7 {
			p.fail("vlan", "want ID or ID:PRIORITY, 0-4094 and 0-7")
			return nil
		}
		v.PCP = uint8(pcp)
	}
	return v
}

func (p *parser) ref(flag, s string) netdev.Ref {
	r, err := netdev.ParseRef(s)
	if err != nil {
		p.failed(flag, err)
	}
	return r
}

// ratio reads 0.001 or 0.1%; -1 where the flag is not given.
func (p *parser) ratio(flag string) float64 {
	s := p.c.String(flag)
	if s == "" {
		return -1
	}
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		p.fail(flag, "want a ratio from 0 to 1, or a percentage")
	}
	return v
}
