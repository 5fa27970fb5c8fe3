package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"pktgen/gen"
	"pktgen/internal/clock"
	"pktgen/internal/netdev"
	"pktgen/report"
	"pktgen/sink"
	"pktgen/stats"
)

// session is the sending and receiving interfaces of one run, from their
// opening to the result. A pair is tx[i] and rx[i]; either list may be empty.
type session struct {
	command string
	runID   uint16
	tx      []*txEnd
	rx      []*rxEnd
	limits  limits
	out     *output
	config  map[string]any
	until   until

	result    *report.Result
	startNs   int64
	txSeen    stats.TxCounts // what the intervals so far add up to
	rxSeen    stats.RxCounts
	seenNs    int64
	stoppedNs int64      // when the run was over: what came later is under way
	lost      chan error // a link that went away
	floor     *report.Floor
}

// until says when a session without a sender of its own ends.
type until struct {
	duration time.Duration
	count    uint64
	once     bool // when every stream seen has been closed by its sender
}

// limits are what the user states; missed ones are exit code 3.
type limits struct {
	maxLoss float64 // ratio; negative: none
	minPPS  float64 // 0: none
}

func newSession(command string, out *output) *session {
	return &session{
		command: command, runID: uint16(rand.UintN(1 << 16)), out: out,
		limits: limits{maxLoss: -1}, lost: make(chan error, 16),
	}
}

// close gives everything back; it may be called at any point.
func (s *session) close() error {
	var errs []error
	for _, e := range s.tx {
		errs = append(errs, e.close(false))
	}
	for _, e := range s.rx {
		errs = append(errs, e.close())
	}
	return errors.Join(errs...)
}

// run measures, prints the result, and returns the error of the run.
func (s *session) run(ctx context.Context) error {
	err := s.trial(ctx)
	if s.result.Started == nil {
		return err // nothing has been measured
	}
	s.out.end()
	return s.out.finish(s.result, err)
}

// trial measures, and fills the result; the error is what voids it, ended it
// early, or was missed. Without result.Started nothing was measured.
func (s *session) trial(ctx context.Context) error {
	s.result = &report.Result{Schema: report.Schema, Command: s.command, Config: s.config, Host: hostInfo(), Floor: s.floor}
	workers := 0
	for _, e := range s.tx {
		workers += e.t.queues
	}
	for _, e := range s.rx {
		workers += e.r.queues
	}
	// Each worker may spin on its own thread; the rest of the process must go on.
	runtime.GOMAXPROCS(workers + 2)

	if err := s.open(); err != nil {
		return err
	}
	watch, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	if err := s.watch(watch); err != nil {
		return err
	}
	if err := s.learn(); err != nil {
		return err
	}
	if err := s.warmUp(ctx); err != nil {
		return err
	}

	before := clock.ReadScales()
	err := s.measure(ctx)
	if hostErr := s.host(before); err == nil {
		err = hostErr
	}
	limit := s.fill(ctx)
	if err == nil {
		err = limit
	}
	return err
}

// learn has the switches on the way learn where the receivers are, and the hosts
// which MAC they have (RFC 2544, section 23). What comes back of it is over before
// the receivers count.
func (s *session) learn() error {
	for i, e := range s.tx {
		if i >= len(s.rx) || s.rx[i].mac == nil || e.t.roundTrip || e.spec.DstMAC[0]&1 != 0 {
			continue
		}
		if err := s.rx[i].announce(e.spec.Dst, e.spec.DstMAC, e.spec.VLAN); err != nil {
			return err
		}
	}
	return nil
}

// warmUp sends for a while what nobody counts: frames without a stamp, before the
// receivers begin.
func (s *session) warmUp(ctx context.Context) error {
	if len(s.tx) == 0 || s.tx[0].t.warmup == 0 {
		return nil
	}
	var gens []sender
	defer func() {
		for _, g := range gens {
			_ = g.Close(0) // of frames that do not count
		}
	}()
	for _, e := range s.tx {
		g, err := e.generator(e.warmSpec(), gen.Config{Duration: e.t.warmup})
		if err != nil {
			return err
		}
		gens = append(gens, g)
		if e.before, err = readPort(e.port); err != nil {
			return err
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, g := range gens {
			g.Start()
		}
		for i, g := range gens {
			sent := uint64(0)
			for _, r := range g.Wait() {
				sent += r.Sent
			}
			// Its frames are not for the counters of the run.
			_, _ = settled(s.tx[i].port, s.tx[i].before, sent, settleFor) // an error comes again
		}
		time.Sleep(warmSettle)
	}()
	var err error
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-s.lost:
	}
	for _, g := range gens {
		g.Stop()
	}
	<-done
	return err
}

// warmSettle is how long frames of the warm-up may be under way.
const warmSettle = 200 * time.Millisecond

// own are the streams that receiver i is to count; nil: all.
func (s *session) own(i int) *sink.Own {
	if len(s.tx) == 0 {
		return nil
	}
	e := s.tx[i]
	return &sink.Own{RunID: s.runID, First: e.spec.StreamID, Count: uint16(e.t.queues), Sampling: e.sampling()}
}

func (s *session) open() error {
	for i, e := range s.rx {
		own := s.own(i)
		fast := i < len(s.tx) && s.tx[i].intends() == backendLive
		if err := e.open(own, fast); err != nil {
			return err
		}
	}
	for i, e := range s.tx {
		if err := e.open(); err != nil {
			return err
		}
		if i < len(s.rx) && e.backend != backendLive {
			if err := s.rx[i].slower(s.own(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// host says what happened to the host since the run began that voids it, and
// notes what spoils a part of it.
func (s *session) host(before clock.Scales) error {
	now := clock.ReadScales()
	if step := now.Stepped(before); step != 0 {
		s.result.Warnings = append(s.result.Warnings, fmt.Sprintf("this host's clock was set by %v during the run: the latency of frames under way then is wrong", step))
	}
	if slept := now.Slept(before); slept > sleptLeast {
		return fmt.Errorf("this host was suspended for %v during the run", slept.Round(time.Millisecond))
	}
	return nil
}

// sleptLeast is more than the time between the readings of two clocks.
const sleptLeast = 100 * time.Millisecond

// watch reports the loss of any link within a moment of it.
func (s *session) watch(ctx context.Context) error {
	watch := func(p *netdev.Port, leastMTU int) error {
		return p.Watch(ctx, func(st netdev.State) {
			err := st.Lost()
			if err == nil && st.MTU < leastMTU {
				err = fmt.Errorf("%v: the MTU was lowered to %d, and frames of %d octets of payload no longer pass: %w", st.Ref, st.MTU, leastMTU, netdev.ErrLost)
			}
			if err != nil {
				select {
				case s.lost <- err:
				default:
				}
			}
		})
	}
	for _, e := range s.tx {
		if err := watch(e.port, e.payload()); err != nil {
			return err
		}
	}
	for i, e := range s.rx {
		leastMTU := 0
		if i < len(s.tx) {
			leastMTU = s.tx[i].payload()
		}
		if err := watch(e.port, leastMTU); err != nil {
			return err
		}
	}
	return nil
}

// drainWait is how long a run waits for frames under way after the last one
// was sent (RFC 2544, section 23: 2 seconds).
const drainWait = 2 * time.Second

const (
	hurryDrain = 200 * time.Millisecond // where the run was ended early
	// drainQuiet: so long after the last frame and the closing ones no more are
	// waited for.
	drainQuiet = 250 * time.Millisecond
)

// measure runs the data plane; the error is what ended it early: the first,
// of which the others are mostly echoes.
func (s *session) measure(ctx context.Context) error {
	var err error
	note := func(e error) {
		if err == nil {
			err = e
		}
	}
	for _, e := range s.rx {
		note(e.start())
	}
	s.out.begin(s)
	started := time.Now()
	s.result.Started = &started
	load := readCPUs()
	s.startNs = clock.Mono()
	s.seenNs = s.startNs
	for _, e := range s.tx {
		note(e.start())
	}
	ended := make(chan struct{})
	go func() {
		for _, e := range s.tx {
			e.gen.Wait()
		}
		if len(s.tx) > 0 {
			close(ended)
		}
	}()
	note(s.follow(ctx, ended))
	s.stoppedNs = clock.Mono()
	s.result.CPUs = cpus(readCPUs().Sub(load))
	hurry := func() bool { return err != nil || ctx.Err() != nil }
	for _, e := range s.tx {
		e.gen.Stop()
	}
	for _, e := range s.tx {
		note(e.wait(hurry()))
	}
	for _, e := range s.tx {
		note(e.close(err == nil))
	}
	s.drain(hurry())
	for _, e := range s.rx {
		note(e.wait())
	}
	select {
	case lost := <-s.lost: // while frames were under way
		note(lost)
	default:
	}
	return err
}

// follow takes an interval's counters each interval, until the run ends.
func (s *session) follow(ctx context.Context, ended <-chan struct{}) error {
	tick := time.NewTicker(s.out.interval)
	defer tick.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var end <-chan time.Time
	if len(s.tx) == 0 && s.until.duration > 0 {
		end = time.After(s.until.duration)
	}
	still := slices.Clone(s.tx) // whose port has not yet counted a frame
	failed, done := make(chan struct{}, len(s.rx)), make(chan struct{})
	defer close(done)
	for _, e := range s.rx {
		go func() {
			select {
			case <-e.sink.Failed():
				failed <- struct{}{}
			case <-done:
			}
		}()
	}
	for {
		select {
		case <-ended:
			return nil
		case <-end:
			return nil
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return err
		case <-failed:
			return nil // wait has the error
		case <-tick.C:
			latency := s.cut()
			s.interval(clock.Mono(), s.txSum(), s.rxSum(), latency)
			if errors.Is(s.out.err, syscall.EPIPE) { // nobody reads what --json-stream says
				return s.out.err
			}
		case <-poll.C:
			var err error
			still = slices.DeleteFunc(still, func(e *txEnd) bool {
				done, e1 := e.moving(time.Duration(clock.Mono() - s.startNs))
				err = errors.Join(err, e1)
				return done
			})
			if err != nil {
				return err
			}
			if len(s.tx) == 0 && s.complete() {
				return nil
			}
		}
	}
}

// complete says that a session without a sender has received what it was to.
func (s *session) complete() bool {
	if s.until.count > 0 && s.rxSum().Frames >= s.until.count {
		return true
	}
	seen, closed := s.streams()
	return s.until.once && seen > 0 && seen == closed
}

func (s *session) streams() (seen, closed int) {
	for _, e := range s.rx {
		n, c := e.sink.Streams()
		seen, closed = seen+n, closed+c
	}
	return seen, closed
}

// drain waits for the frames that are still under way: until all have come, or
// the senders' last words have and then nothing more for a while, which frames of
// other flows may take another path than.
func (s *session) drain(hurry bool) {
	if len(s.tx) == 0 || len(s.rx) == 0 {
		return
	}
	wait := drainWait
	if hurry {
		wait = hurryDrain
	}
	want, sent := 0, uint64(0)
	for _, e := range s.tx {
		want += e.t.queues
		for _, r := range e.results {
			sent += r.Offered
		}
	}
	start := time.Now()
	last, lastAt := s.rxSum(), start
	for time.Since(start) < wait {
		now := s.rxSum()
		if now != last {
			last, lastAt = now, time.Now()
		}
		if _, closed := s.streams(); closed >= want && (now.Unique >= sent || time.Since(lastAt) > drainQuiet) {
			break
		}
		clock.Sleep(int64(5 * time.Millisecond))
	}
}

func (s *session) txSum() (c stats.TxCounts) {
	for _, e := range s.tx {
		c = stats.Add(c, stats.Sum(e.gen.Stats()))
	}
	return c
}

func (s *session) rxSum() (c stats.RxCounts) {
	for _, e := range s.rx {
		c = stats.Add(c, stats.Sum(e.sink.Stats()))
	}
	return c
}

// cut is the latency observed since the last cut.
func (s *session) cut() *stats.Latency {
	total := stats.NewLatency()
	for _, e := range s.rx {
		total.Merge(e.sink.Cut())
	}
	return total
}

// interval adds the interval that ends now, given all that was counted by now and
// the latency within it.
func (s *session) interval(nowNs int64, tx stats.TxCounts, rx stats.RxCounts, latency *stats.Latency) {
	iv := report.Interval{StartS: float64(s.seenNs-s.startNs) / 1e9, DurationS: float64(nowNs-s.seenNs) / 1e9}
	if len(s.tx) > 0 {
		d := stats.Sub(tx, s.txSeen)
		r := report.WindowRates(d.Sent, d.Bytes, iv.DurationS)
		iv.TX = &r
	}
	if len(s.rx) > 0 {
		d := stats.Sub(rx, s.rxSeen)
		iv.RX = &report.IntervalRX{
			Rates:      report.WindowRates(d.Frames, d.Bytes, iv.DurationS),
			Duplicates: d.Duplicates, Reordered: d.Reordered, Corrupt: d.Corrupt, OtherFrames: d.Other,
			SocketDrops: d.KernelDrops,
		}
		if l := s.rx[0].latency(latency); l.Count > 0 {
			iv.RX.Latency = &l
		}
	}
	s.txSeen, s.rxSeen, s.seenNs = tx, rx, nowNs
	s.result.Intervals = append(s.result.Intervals, iv)
	s.out.step(&iv, time.Duration(nowNs-s.startNs))
}

// fill makes the result of what the ends have; the error is a limit missed, or
// the signal that ended the run.
func (s *session) fill(ctx context.Context) error {
	r := s.result
	r.RunID = &s.runID
	for i := range max(len(s.tx), len(s.rx)) {
		s.fillPair(i)
	}
	s.lastInterval()
	s.steadiness()
	s.sums()
	var stop interrupted
	r.Interrupted = errors.As(context.Cause(ctx), &stop)
	s.judge()
	if r.Interrupted {
		return stop
	}
	return s.missed()
}

// fillPair reports pair i: the counts, and where lost frames went.
func (s *session) fillPair(i int) {
	r := s.result
	var p report.Pair
	var loss report.Loss
	if i < len(s.rx) {
		p.RX = s.rx[i].report()
	}
	if i < len(s.tx) {
		var received uint64
		if p.RX != nil {
			received = p.RX.Frames - p.RX.Duplicates
		}
		p.TX, loss = s.tx[i].report(received)
		if p.RX != nil {
			p.RX.Sampled = s.sampled(i)
		}
		r.Warnings = append(r.Warnings, s.tx[i].notes...)
	}
	if p.RX != nil {
		s.account(s.rx[i], p.RX, p.TX, &loss)
		r.Warnings = append(r.Warnings, s.rx[i].notes...)
	}
	p.Loss = &loss
	r.Pairs = append(r.Pairs, p)
}

// sampled is the latency of pair i by the kernel's times at both ends: of those
// sampled frames of which both are known.
func (s *session) sampled(i int) *report.Latency {
	tx, rx := s.tx[i], s.rx[i]
	total := stats.NewLatency()
	for _, st := range rx.result.Streams {
		n := int(st.ID) - int(tx.spec.StreamID)
		if st.RunID != s.runID || n < 0 || n >= len(tx.results) {
			continue
		}
		sent := map[uint64]int64{}
		for _, d := range tx.results[n].Samples {
			sent[d.Seq] = d.TimeNs
		}
		for _, a := range st.Samples {
			if at, ok := sent[a.Seq]; ok {
				total.Observe(a.TimeNs - at)
				delete(sent, a.Seq) // a duplicate is no other frame
			}
		}
	}
	if total.Count() == 0 {
		return nil
	}
	l := rx.latency(total)
	l.Send = "kernel"
	return &l
}

// account settles what was lost: of what the sender counted as sent where it
// is here, else of what its closing frames and sequence numbers say.
func (s *session) account(e *rxEnd, rx *report.RX, tx *report.TX, loss *report.Loss) {
	unique := rx.Frames - rx.Duplicates
	sent := unique
	if tx != nil {
		sent = tx.Frames
	} else {
		sent = 0
		for _, st := range rx.Streams {
			sent += st.Frames - st.Duplicates + st.Lost
		}
	}
	if unique > sent {
		s.result.Warnings = append(s.result.Warnings, fmt.Sprintf("%s: %d more frames than were sent: duplicates later than the window cannot be told", rx.Iface, unique-sent))
		rx.Duplicates += unique - sent
		unique = sent
	}
	rx.Lost = sent - unique
	if sent > 0 {
		rx.LossRatio = float64(rx.Lost) / float64(sent)
	}
	s.bound(rx, tx)
	places := named(
		report.LossCounter{Place: "sink", Counter: "socket drops", Frames: rx.SocketDrops},
		report.LossCounter{Place: "sink", Counter: "streams beyond the bound", Frames: rx.Overflow},
	)
	if d := e.delta; d != nil {
		places = append(places, d.rxPlaces()...)
	}
	loss.Counters = append(loss.Counters, places...)
	left := rx.Lost
	loss.Sink = take(left, "sink", places)
	left -= loss.Sink
	damaged := take(left, "path", places) // by its FCS, wherever else the counters put the rest
	loss.RXNIC = take(left-damaged, "rx_nic", places)
	loss.Path = left - loss.RXNIC
	for _, st := range rx.Streams {
		if st.FirstSeq > 0 && tx == nil && st.Name != kernelStream {
			s.result.Warnings = append(s.result.Warnings, fmt.Sprintf("%s %s: the first frame seen has number %d: those before it count as lost, also if they were sent before this receiver began", rx.Iface, st.Name, st.FirstSeq))
		}
	}
	if tx == nil && len(rx.Streams) > 0 && !rx.SenderClosed {
		s.result.Warnings = append(s.result.Warnings, rx.Iface+": no closing frame from every sender: frames lost at the end of a stream are not known")
	}
}

// steadiness judges whether the run went on as it began. A load that is to vary
// says nothing of it.
func (s *session) steadiness() {
	for _, e := range s.tx {
		if l := e.load; l.Ramp > 0 || l.Off > 0 || l.Poisson || len(l.Steps) > 0 {
			return
		}
	}
	var rates, starts []float64
	full := s.out.interval.Seconds()
	for _, iv := range s.result.Intervals {
		if iv.DurationS < full/2 {
			continue // the last, cut short
		}
		switch {
		case iv.RX != nil:
			rates = append(rates, iv.RX.PPS)
		case iv.TX != nil:
			rates = append(rates, iv.TX.PPS)
		}
		starts = append(starts, iv.StartS)
	}
	st := stats.Steady(rates, steadyTolerance)
	out := &report.Steady{Known: st.Known, Drift: st.Drift, Change: st.Change, Step: st.Step}
	if st.Drift {
		out.ChangeS = starts[st.ChangeAt]
	}
	for _, i := range st.Dips {
		out.DipsS = append(out.DipsS, starts[i])
	}
	out.PeriodS = st.Period * full
	s.result.Steady = out
	if n := len(st.Dips); n > 0 {
		periodic := ""
		if st.Period > 0 {
			periodic = fmt.Sprintf(", one each %.3g s", out.PeriodS)
		}
		s.result.Warnings = append(s.result.Warnings, fmt.Sprintf("the rate dipped by more than %.0f %% in %d of %d intervals%s: the first at %.1f s", steadyTolerance*100, n, len(rates), periodic, out.DipsS[0]))
	}
}

// steadyTolerance is how far the rate of an interval may be off the others'.
const steadyTolerance = 0.05

// bound says how well the loss ratio is known.
func (s *session) bound(rx *report.RX, tx *report.TX) {
	sent := rx.Frames - rx.Duplicates + rx.Lost
	if tx != nil {
		sent = tx.Frames
	}
	rx.LossBound = nil
	if sent > 0 {
		low, high := stats.LossBound(rx.Lost, sent, confidence)
		rx.LossBound = &report.Bound{Level: confidence, Low: low, High: high}
	}
}

// lastInterval closes the last interval with the exact totals.
func (s *session) lastInterval() {
	var tx stats.TxCounts
	var rx stats.RxCounts
	rest := stats.NewLatency()
	for i, p := range s.result.Pairs {
		if p.TX != nil {
			tx.Sent += p.TX.Frames
			tx.Bytes += p.TX.Bytes
		}
		if p.RX != nil {
			c := s.rx[i].result.Counts
			c.Duplicates = p.RX.Duplicates // account may have found more
			rx = stats.Add(rx, c)
			rest.Merge(s.rx[i].result.Rest)
		}
	}
	// A port that sent less than the kernel took is found out at the end only:
	// the last intervals bear it.
	for i := len(s.result.Intervals) - 1; i >= 0 && s.txSeen.Sent > tx.Sent; i-- {
		iv := s.result.Intervals[i].TX
		n := min(iv.Frames, s.txSeen.Sent-tx.Sent)
		octets := uint64(0)
		if iv.Frames > 0 {
			octets = iv.Bytes / iv.Frames * n
		}
		*iv = report.WindowRates(iv.Frames-n, iv.Bytes-octets, s.result.Intervals[i].DurationS)
		s.txSeen.Sent -= n
		s.txSeen.Bytes -= octets
	}
	if tx.Sent != s.txSeen.Sent || rx != s.rxSeen || rest.Count() > 0 {
		s.interval(max(s.endNs(), s.seenNs), tx, rx, rest)
	}
}

// sums puts a single pair, or the sum of several, at the top of the document.
func (s *session) sums() {
	r := s.result
	one := r.Pairs[0]
	if len(r.Pairs) == 1 {
		r.TX, r.RX = one.TX, one.RX
		if one.RX != nil {
			r.Loss = one.Loss
		}
		if one.TX != nil {
			r.Loss = one.Loss
		}
		r.Pairs = nil
	} else {
		r.TX, r.RX, r.Loss = sumPairs(r.Pairs)
		s.sumTimes(r.RX)
		s.bound(r.RX, r.TX)
	}
	r.DurationS = s.seconds()
}

// sumTimes gives the sum of several pairs their latency and jitter together.
func (s *session) sumTimes(rx *report.RX) {
	total, jitter, delay := stats.NewLatency(), stats.JitterSummary{}, stats.NewDelayVariation()
	for _, e := range s.rx {
		total.Merge(e.total)
		delay.Merge(e.delay)
		jitter = addJitter(jitter, e.jitter)
	}
	rx.Latency, rx.Jitter = s.rx[0].latency(total), jitterReport(jitter)
	rx.IPDV, rx.PDV = variation(delay)
}

// endNs is when the run ended: when the last frame was sent, or reception stopped.
func (s *session) endNs() int64 {
	var end int64
	for _, e := range s.tx {
		_, last := e.span()
		end = max(end, last)
	}
	if len(s.tx) == 0 {
		end = s.stoppedNs
	}
	return end
}

// seconds is the measured duration: from the first frame to the last.
func (s *session) seconds() float64 {
	var first, last int64
	for _, e := range s.tx {
		f, l := e.span()
		if f != 0 && (first == 0 || f < first) {
			first = f
		}
		last = max(last, l)
	}
	if len(s.tx) == 0 {
		for _, e := range s.rx {
			if first == 0 || (e.result.FirstNs != 0 && e.result.FirstNs < first) {
				first = e.result.FirstNs
			}
			last = max(last, e.result.LastNs)
		}
	}
	return max(0, float64(last-first)/1e9)
}

// Verdicts.
const (
	verdictOK        = "ok"
	verdictGenerator = "generator-limited"
	verdictSink      = "sink-limited"
	verdictNIC       = "nic-limited"
	verdictHost      = "host-limited"
	verdictPath      = "path-loss"
	verdictNothing   = "nothing-received"
	verdictLate      = "late-start"
	verdictVoid      = "void"
	verdictUnsteady  = "unsteady"
	verdictDrift     = "drift"
)

// rateTolerance is how far below the requested rate the sent one may be.
const rateTolerance = 0.005

// tolerance is rateTolerance, with four standard deviations of what n frames at
// random times differ by.
func (s *session) tolerance(n uint64) float64 {
	t := rateTolerance
	for _, e := range s.tx {
		if e.load.Poisson {
			t += 4 / math.Sqrt(float64(n))
			break
		}
	}
	return t
}

// judge says what the run was limited by; the tool's own limits come first, so
// that the device under test is never blamed for them.
func (s *session) judge() {
	r := s.result
	say := func(verdict, format string, a ...any) {
		if r.Verdict == "" {
			r.Verdict, r.Reason = verdict, fmt.Sprintf(format, a...)
		}
	}
	tx, rx, loss := r.TX, r.RX, r.Loss
	var asked uint64
	for _, e := range s.tx {
		asked += e.asked()
	}
	// What of the host was at its end, wherever that showed.
	host := hostLimit(r.CPUs)
	because := ""
	if host != "" {
		because = ": " + host
	} else if loss != nil {
		because = counterNames(loss.Counters, "generator")
	}
	if tx != nil && !r.Interrupted && float64(tx.Offered) < float64(asked)*(1-rateTolerance) {
		say(verdictGenerator, "%d frames were asked for, %d sent in time%s", asked, tx.Offered, because)
	}
	if tx != nil && float64(tx.Missed) > float64(tx.Offered)*rateTolerance {
		say(verdictGenerator, "%d frames were due in time and not sent%s", tx.Missed, because)
	}
	if tx != nil && tx.RateError != nil && *tx.RateError < -rateTolerance {
		say(verdictGenerator, "frames were sent at %.2f %% less than the rate asked for%s", -*tx.RateError*100, because)
	}
	if tx != nil && tx.RequestedPPS != nil && tx.RateError == nil && tx.Frames > 1 && tx.PPS < *tx.RequestedPPS*(1-s.tolerance(tx.Frames)) {
		say(verdictGenerator, "%.0f frames/s were asked for, %.0f sent", *tx.RequestedPPS, tx.PPS)
	}
	if tx != nil && tx.Frames == 0 {
		say(verdictVoid, "no frame was sent")
	}
	if tx != nil && tx.Unsent > 0 {
		say(verdictGenerator, "%d frames given to the kernel were not sent by the port%s%s", tx.Unsent, counterNames(loss.Counters, "generator"), counterNames(loss.Counters, "tx_nic"))
	}
	if rx != nil {
		if loss.Sink > 0 && rx.SocketDrops > 0 {
			say(verdictSink, "%d frames found this tool's receive ring full%s", rx.SocketDrops, because)
		}
		if loss.Sink > 0 {
			say(verdictSink, "%d frames were of streams beyond --max-streams", rx.Overflow)
		}
		if host != "" && loss.RXNIC+loss.Path > 0 {
			say(verdictHost, "%d frames were lost while %s", loss.RXNIC+loss.Path, host)
		}
		if loss.RXNIC > 0 {
			say(verdictNIC, "%d frames were dropped by the receiving port%s", loss.RXNIC, counterNames(loss.Counters, "rx_nic"))
		}
		if rx.Frames == 0 {
			say(verdictNothing, "no frame with a stamp arrived; a port that takes frames to its own MAC only, such as a virtual function, needs --no-promisc")
		}
		if before := missedBefore(rx); tx == nil && rx.Lost > 0 && rx.Lost <= before {
			say(verdictLate, "%d frames had been sent before the first that was seen: this receiver began late, or they were lost", before)
		}
		if loss.Path > 0 {
			say(verdictPath, "%d frames were lost that no counter of this host explains", loss.Path)
		}
	}
	if st := r.Steady; st != nil && st.Drift {
		say(verdictDrift, "the rate changed by %+.1f %% from the first quarter of the run to the last, about %.1f s after its start", st.Change*100, st.ChangeS)
	}
	say(verdictOK, "")
}

// counterNames are those that counted at a place: " (rx_missed_errors 12)".
func counterNames(all []report.LossCounter, place string) string {
	var names []string
	for _, c := range all {
		if c.Place == place {
			names = append(names, fmt.Sprintf("%s %d", c.Counter, c.Frames))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// missedBefore is the number of frames that senders had sent before the first
// one of theirs that was seen.
func missedBefore(rx *report.RX) (n uint64) {
	for _, st := range rx.Streams {
		if st.Name != kernelStream {
			n += st.FirstSeq
		}
	}
	return n
}

// missed holds the result to the limits that the user stated.
func (s *session) missed() error {
	r := s.result
	if r.RX != nil && s.limits.maxLoss >= 0 && r.RX.Frames == 0 {
		return limitError{errors.New("nothing was received, so that --max-loss is missed")}
	}
	if r.RX != nil && s.limits.maxLoss >= 0 && r.RX.LossRatio > s.limits.maxLoss {
		return limitError{fmt.Errorf("loss ratio %.3g is above --max-loss %.3g", r.RX.LossRatio, s.limits.maxLoss)}
	}
	var rates report.Rates
	switch {
	case r.RX != nil:
		rates = r.RX.Rates
	case r.TX != nil:
		rates = r.TX.Rates
	}
	pps := rates.PPS
	// One frame has no rate. The tolerance is that of the verdict: a rate is
	// measured between the frames' times, which are never quite those asked for.
	if s.limits.minPPS > 0 && rates.Frames != 1 && pps < s.limits.minPPS*(1-s.tolerance(rates.Frames)) {
		return limitError{fmt.Errorf("%.1f frames/s is below --min-rate %.1f", pps, s.limits.minPPS)}
	}
	return nil
}

const kernelStream = "kernel-pktgen"

func (s *session) addTX(ctx context.Context, ref netdev.Ref, t *traffic) error {
	// Each pair's streams have ids of their own.
	first := 0
	for _, e := range s.tx {
		first += e.t.queues
	}
	e, err := newTXEnd(ctx, ref, t, s.runID, uint16(first))
	if err != nil {
		return err
	}
	s.tx = append(s.tx, e)
	if first == 0 { // what was chosen where nothing was asked for
		e.effective(s.config)
	}
	return nil
}

func (s *session) addRX(ref netdev.Ref, r *reception) error {
	e, err := newRXEnd(ref, r, uint64(s.runID)+uint64(len(s.rx))+1)
	if err != nil {
		return err
	}
	s.rx = append(s.rx, e)
	return nil
}
