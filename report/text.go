package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"pktgen/units"
)

// maxStreamLines is how many streams the text shows; the document has all.
const maxStreamLines = 16

// WriteText writes the result for people, in 80 columns. A result may lack any
// part, as one that was read from a file does. The error is that of w.
func WriteText(w io.Writer, r *Result) error {
	t := &text{}
	t.head(r)
	if len(r.Pairs) > 1 {
		for i, p := range r.Pairs {
			if i > 0 {
				t.line("")
			}
			t.line("%s", ends(p.TX, p.RX))
			t.path(p.TX, p.RX, p.Loss)
		}
		t.line("")
		t.line("sum of %d pairs", len(r.Pairs))
		t.rates(r.TX, r.RX, r.Loss)
		t.losses(r.RX, r.Loss)
	} else {
		t.path(r.TX, r.RX, r.Loss)
	}
	if r.TX == nil && r.RX == nil && r.Reflect == nil && len(r.Pairs) == 0 {
		t.line("nothing was measured")
	}
	t.floor(r.Floor)
	t.repeat(r.Repeat)
	t.reflect(r.Reflect)
	t.tail(r)
	_, err := io.WriteString(w, t.b.String())
	return err
}

// path writes all that is known of one path.
func (t *text) path(tx *TX, rx *RX, loss *Loss) {
	t.rates(tx, rx, loss)
	t.losses(rx, loss)
	t.times(rx)
	t.spacing(tx, rx)
	if tx != nil {
		t.queues("send", tx.Queues)
	}
	if rx != nil {
		t.queues("receive", rx.Queues)
	}
	t.streams(rx)
}

func ends(tx *TX, rx *RX) string {
	switch {
	case tx != nil && rx != nil:
		return tx.Iface + " -> " + rx.Iface
	case tx != nil:
		return tx.Iface
	case rx != nil:
		return rx.Iface
	}
	return "no interface"
}

// text collects lines, cut to 80 columns.
type text struct{ b strings.Builder }

const columns = 80

func (t *text) line(format string, a ...any) {
	s := strings.TrimRight(printable(fmt.Sprintf(format, a...)), " ")
	for _, l := range wrap(s) {
		t.b.WriteString(l)
		t.b.WriteByte('\n')
	}
}

// printable has a space for whatever would move the cursor: names and errors
// hold what others wrote.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// wrap breaks a line at spaces, the rest indented. It counts octets: no
// character has more columns than those.
func wrap(s string) (lines []string) {
	for len(s) > columns {
		cut := strings.LastIndexByte(s[:columns+1], ' ')
		if cut < columns/2 {
			for cut = columns; !utf8.RuneStart(s[cut]); {
				cut--
			}
		}
		if l := strings.TrimRight(s[:cut], " "); l != "" {
			lines = append(lines, l)
		}
		s = "    " + strings.TrimLeft(s[cut:], " ")
	}
	return append(lines, s)
}

// table aligns columns to the right, closer together where the numbers are too
// long for the page.
func (t *text) table(rows [][]string) {
	var b strings.Builder
	for padding := 2; padding > 0; padding-- {
		b.Reset()
		tw := tabwriter.NewWriter(&b, 0, 0, padding, ' ', tabwriter.AlignRight)
		for _, row := range rows {
			fmt.Fprintf(tw, "%s\t\n", strings.Join(row, "\t"))
		}
		_ = tw.Flush() // it writes to memory
		// All lines are of one length.
		if b.Len()/len(rows) <= columns+1 {
			break
		}
	}
	for l := range strings.Lines(b.String()) {
		t.line("%s", strings.TrimRight(l, "\n"))
	}
}

// reflect is an interface that sent frames back.
func (t *text) reflect(r *Reflect) {
	if r == nil {
		return
	}
	t.line("sent back   %s frames, %s octets; answers to STAMP %s", units.FormatCount(r.Frames), units.FormatCount(r.Bytes), units.FormatCount(r.STAMP))
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{r.Short, "too short for the times of a round trip"}, {r.Corrupt, "corrupt"}, {r.OtherFrames, "others"},
		{r.NoRoom, "the device took no more"}, {r.Unsent, "given to the kernel, and never left"}, {r.SocketDrops, "found this tool's ring full"},
	} {
		if c.n > 0 {
			t.line("not sent    %s   %s", units.FormatCount(c.n), c.what)
		}
	}
	if s := r.Residence; s != nil {
		t.line("residence   p50 %s   p99 %s   max %s", ns(float64(s.P50)), ns(float64(s.P99)), ns(float64(s.Max)))
	}
}

func (t *text) head(r *Result) {
	what := ends(r.TX, r.RX)
	if r.Reflect != nil {
		what = r.Reflect.Iface
	}
	if len(r.Pairs) > 1 {
		what = fmt.Sprintf("%d pairs", len(r.Pairs))
	}
	t.line("pktgen %s   %s", r.Command, what)
	load := ""
	if r.TX != nil && r.TX.Frames > 0 {
		load = fmt.Sprintf("%d octets, ", r.TX.Bytes/r.TX.Frames)
	}
	t.line("%s%s", load, ns(r.DurationS*1e9))
	t.backends(r.TX, r.RX)
	if r.Verdict != "" {
		v := "verdict: " + r.Verdict
		if r.Reason != "" {
			v += " (" + r.Reason + ")"
		}
		t.line("%s", v)
	}
	t.line("")
}

// backends says which way frames went into the kernel and out of it, and why.
func (t *text) backends(tx *TX, rx *RX) {
	var ways []string
	if tx != nil && tx.BackendReason != "" {
		ways = append(ways, fmt.Sprintf("sent by %s: %s", tx.Backend, tx.BackendReason))
	}
	if rx != nil && rx.BackendReason != "" {
		ways = append(ways, fmt.Sprintf("received by %s: %s", rx.Backend, rx.BackendReason))
	}
	if len(ways) > 0 {
		t.line("%s", strings.Join(ways, "; "))
	}
}

func (t *text) rates(tx *TX, rx *RX, loss *Loss) {
	if tx == nil && rx == nil {
		return
	}
	rows := [][]string{{"", "frames", "rate", "L2", "L1", "line rate"}}
	if tx != nil {
		share := "-"
		if tx.LineRatePercent != nil {
			share = units.FormatRatio(*tx.LineRatePercent / 100)
		}
		if tx.RequestedPPS != nil {
			rows = append(rows, []string{"requested", "", units.FormatPPS(*tx.RequestedPPS), "", "", ""})
		}
		rows = append(rows, row("sent", tx.Rates, share))
	}
	if rx != nil {
		rows = append(rows, row("received", rx.Rates, ""))
	}
	t.table(rows)
	if tx != nil && tx.Unsent > 0 {
		t.line("unsent      %s frames given to the kernel never left the port", units.FormatCount(tx.Unsent))
		if loss != nil {
			t.places(place{"this host", loss.Generator}, place{"errors of the port", loss.TXNIC})
		}
	}
	if tx != nil && tx.LateEvents > 0 {
		t.line("late        %s times by more than 1 ms, at most %s, and caught up", units.FormatCount(tx.LateEvents), ns(float64(tx.LateMaxNs)))
	}
	if tx != nil && tx.Errors > 0 {
		t.line("errors      %s frames refused by the kernel or failed by the port", units.FormatCount(tx.Errors))
	}
}

func row(label string, r Rates, share string) []string {
	return []string{label, units.FormatCount(r.Frames), units.FormatPPS(r.PPS), units.FormatBps(r.L2Bps), units.FormatBps(r.L1Bps), share}
}

func (t *text) losses(rx *RX, loss *Loss) {
	if rx == nil {
		return
	}
	t.line("")
	sure := ""
	if b := rx.LossBound; b != nil {
		sure = fmt.Sprintf("   (at most %s, %g %% sure)", units.FormatRatio(b.High), b.Level*100)
	}
	t.line("lost        %s   %s%s", units.FormatCount(rx.Lost), units.FormatRatio(rx.LossRatio), sure)
	if loss != nil {
		t.places(place{"path", loss.Path}, place{"receiving port", loss.RXNIC}, place{"this tool's ring", loss.Sink})
	}
	t.line("duplicates  %s   reordered %s   corrupt %s   other %s", units.FormatCount(rx.Duplicates),
		units.FormatCount(rx.Reordered), units.FormatCount(rx.Corrupt), units.FormatCount(rx.OtherFrames))
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{rx.TooOld, "of the reordered, too late to be told from duplicates"},
		{rx.StaleFrames, "frames of another run"},
		{rx.SocketDrops, "frames dropped by this tool's own ring, of any kind"},
		{rx.Overflow, "frames of streams beyond --max-streams"},
	} {
		if c.n > 0 {
			t.line("            %s %s", units.FormatCount(c.n), c.what)
		}
	}
}

// place is where frames stayed.
type place struct {
	name string
	n    uint64
}

// places writes those where any stayed.
func (t *text) places(all ...place) {
	var some []string
	for _, p := range all {
		if p.n > 0 {
			some = append(some, p.name+" "+units.FormatCount(p.n))
		}
	}
	if len(some) > 0 {
		t.line("            %s", strings.Join(some, ", "))
	}
}

func (t *text) times(rx *RX) {
	if rx == nil || rx.Frames == 0 {
		return
	}
	l := rx.Latency
	switch {
	case l.Clock == "none" || l.Clock == "":
		t.line("latency     not shown: the two ends' clocks are not known to agree")
	case l.Count == 0:
		t.line("latency     no frame gave one   (clock: %s)", l.Clock)
	default:
		t.line("latency     min %s   mean %s   p50 %s   p90 %s", figure(l.Min), figure(l.Mean), figure(l.P50), figure(l.P90))
		t.line("            p99 %s   p99.9 %s   max %s   (clock: %s)", figure(l.P99), figure(l.P999), figure(l.Max), l.Clock)
	}
	if l.Negative > 0 {
		t.line("            %s frames are in no latency: their clock was set meanwhile", units.FormatCount(l.Negative))
	}
	if s := rx.Sampled; s != nil && s.Count > 0 {
		t.line("  by kernel p50 %s   p99 %s   max %s   (of %s frames)", figure(s.P50), figure(s.P99), figure(s.Max), units.FormatCount(s.Count))
	}
	if s := rx.Residence; s != nil {
		t.line("  reflector p50 %s   p99 %s   max %s   (not in the latency)", ns(float64(s.P50)), ns(float64(s.P99)), ns(float64(s.Max)))
	}
	if p := rx.PDV; p != nil {
		t.line("  variation p50 %s   p99 %s   p99.9 %s   max %s   (PDV)", ns(float64(p.P50)), ns(float64(p.P99)), ns(float64(p.P999)), ns(float64(p.Max)))
	}
	t.clocks(rx)
	if rx.Jitter.Count > 0 {
		t.line("jitter      %s (RFC 3550)   mean %s   max %s", ns(rx.Jitter.RFC3550), ns(rx.Jitter.Mean), ns(float64(rx.Jitter.Max)))
	}
}

// clocks is what round trips say of the far clock, and each way.
func (t *text) clocks(rx *RX) {
	o := rx.ClockOffset
	switch {
	case o == nil:
		return
	case o.Error != "":
		t.line("far clock   not known: %s", o.Error)
		return
	}
	t.line("far clock   ahead by %v +- %s, gains %.3g +- %.2g ppm", time.Duration(o.Ns), ns(float64(o.BoundNs)), o.DriftPPM, o.DriftBoundPPM)
	if w := rx.OneWay; w != nil && w.There != nil && w.Back != nil {
		t.line("  there     p50 %s   p99 %s   max %s   (right to %s)", ns(float64(w.There.P50)), ns(float64(w.There.P99)), ns(float64(w.There.Max)), ns(float64(w.Bound)))
		t.line("  back      p50 %s   p99 %s   max %s", ns(float64(w.Back.P50)), ns(float64(w.Back.P99)), ns(float64(w.Back.Max)))
	}
}

// spacing is how evenly frames left and came.
func (t *text) spacing(tx *TX, rx *RX) {
	line := func(label string, s *Spread) {
		if s != nil {
			t.line("%-11s p50 %s   p99 %s   p99.9 %s   max %s", label, ns(float64(s.P50)), ns(float64(s.P99)), ns(float64(s.P999)), ns(float64(s.Max)))
		}
	}
	if tx != nil && tx.Gaps != nil {
		line("gaps sent", tx.Gaps)
	}
	if rx != nil {
		line("  arrived", rx.Gaps)
	}
}

// floor is what the tool itself takes.
func (t *text) floor(f *Floor) {
	if f == nil || f.Latency.Count == 0 {
		return
	}
	t.line("floor       p50 %s   p99 %s   max %s   (a veth pair, not taken off)", figure(f.Latency.P50), figure(f.Latency.P99), figure(f.Latency.Max))
}

// repeat is what several trials have in common.
func (t *text) repeat(r *Repeat) {
	if r == nil {
		return
	}
	t.line("")
	rows := [][]string{{fmt.Sprintf("%d trials", r.Trials), "mean", fmt.Sprintf("+- (%g %%)", r.Level*100), "least", "most"}}
	add := func(label string, s *Series, text func(float64) string) {
		if s != nil {
			rows = append(rows, []string{label, text(s.Mean), text(s.Half), text(s.Min), text(s.Max)})
		}
	}
	add("received", &r.PPS, units.FormatPPS)
	add("loss", &r.LossRatio, units.FormatRatio)
	add("latency p50", r.LatencyP50, ns)
	add("latency p99", r.LatencyP99, ns)
	t.table(rows)
	for _, i := range r.PPS.Outliers {
		if i < len(r.PPS.Values) {
			t.line("trial %d stands apart: received %s", i+1, units.FormatPPS(r.PPS.Values[i]))
		}
	}
}

func (t *text) queues(side string, queues []Queue) {
	if len(queues) < 2 {
		return
	}
	rows := [][]string{{side + " queue", "CPU", "frames", "rate", "dropped"}}
	var drops uint64
	for _, q := range queues {
		cpu := "-"
		if q.CPU != nil {
			cpu = fmt.Sprint(*q.CPU)
		}
		rows = append(rows, []string{fmt.Sprint(q.Queue), cpu, units.FormatCount(q.Frames), units.FormatPPS(q.PPS), units.FormatCount(q.Drops)})
		drops |= q.Drops
	}
	if drops == 0 {
		for i := range rows {
			rows[i] = rows[i][:4]
		}
	}
	t.line("")
	t.table(rows)
}

func (t *text) streams(rx *RX) {
	if rx == nil || len(rx.Streams) < 2 {
		return
	}
	t.line("")
	rows := [][]string{{"stream", "run", "frames", "lost", "duplicates", "reordered", "p99"}}
	for _, s := range rx.Streams[:min(len(rx.Streams), maxStreamLines)] {
		rows = append(rows, []string{printable(s.Name), fmt.Sprintf("%04x", s.RunID), units.FormatCount(s.Frames), units.FormatCount(s.Lost),
			units.FormatCount(s.Duplicates), units.FormatCount(s.Reordered), figure(s.Latency.P99)})
	}
	t.table(rows)
	if n := len(rx.Streams) - maxStreamLines; n > 0 {
		t.line("... and %d more", n)
	}
}

func (t *text) tail(r *Result) {
	failed := r.Error != "" && r.Error != r.Reason // the verdict has said it
	if len(r.Warnings) > 0 || r.Interrupted || failed {
		t.line("")
	}
	if failed {
		t.line("error: %s", r.Error)
	}
	if r.Interrupted {
		t.line("interrupted: this is what was measured until then")
	}
	for _, w := range r.Warnings {
		t.line("warning: %s", w)
	}
}

// figure writes a time in ns, "-" where there is none.
func figure[T int64 | float64](v *T) string {
	if v == nil {
		return "-"
	}
	return ns(float64(*v))
}

// ns writes a time in ns, "-" for what no clock gives.
func ns(v float64) string {
	if !(math.Abs(v) < math.MaxInt64) {
		return "-"
	}
	return units.FormatDuration(time.Duration(v))
}

// LiveLine is an interval as one line of at most 79 columns, for a terminal.
// elapsed is the time since the start of the run. What does not fit is left out
// whole: a number cut short would be another number.
func LiveLine(iv *Interval, elapsed time.Duration) string {
	s := fmt.Sprintf("%6.1f s", elapsed.Seconds())
	add := func(format string, a ...any) {
		if field := "   " + fmt.Sprintf(format, a...); len(s)+len(field) < columns {
			s += field
		}
	}
	if iv.TX != nil {
		add("sent %s", units.FormatPPS(iv.TX.PPS))
		if iv.RX == nil {
			add("%s L1", units.FormatBps(iv.TX.L1Bps))
		}
	}
	if iv.RX != nil {
		add("received %s", units.FormatPPS(iv.RX.PPS))
		if iv.TX == nil {
			add("%s L1", units.FormatBps(iv.RX.L1Bps))
		}
		for _, c := range []place{{"dropped", iv.RX.SocketDrops}, {"corrupt", iv.RX.Corrupt}, {"dup", iv.RX.Duplicates}, {"reordered", iv.RX.Reordered}} {
			if c.n > 0 {
				add("%s %s", c.name, units.FormatCount(c.n))
			}
		}
	}
	return s
}
