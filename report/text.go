package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"pktgen/units"
)

// maxStreamLines is how many streams the text shows; the document has all.
const maxStreamLines = 16

// WriteText writes the result for people, in 80 columns.
func WriteText(w io.Writer, r *Result) error {
	t := &text{}
	t.head(r)
	if len(r.Pairs) > 1 {
		for i, p := range r.Pairs {
			if i > 0 {
				t.line("")
			}
			t.line("%s -> %s", p.TX.Iface, p.RX.Iface)
			t.rates(p.TX, p.RX)
			t.losses(p.RX, p.Loss)
			t.times(p.RX)
		}
		t.line("")
		t.line("sum of %d pairs", len(r.Pairs))
	}
	t.rates(r.TX, r.RX)
	t.losses(r.RX, r.Loss)
	if len(r.Pairs) == 0 {
		t.times(r.RX)
		t.queues(r)
		t.streams(r.RX)
	}
	t.tail(r)
	_, err := io.WriteString(w, t.b.String())
	return err
}

// text collects lines, cut to 80 columns.
type text struct{ b strings.Builder }

const columns = 80

func (t *text) line(format string, a ...any) {
	s := strings.TrimRight(fmt.Sprintf(format, a...), " ")
	for _, l := range wrap(s) {
		t.b.WriteString(l)
		t.b.WriteByte('\n')
	}
}

// wrap breaks a line at spaces, the rest indented.
func wrap(s string) (lines []string) {
	for len(s) > columns {
		cut := strings.LastIndexByte(s[:columns+1], ' ')
		if cut < columns/2 {
			cut = columns
		}
		lines = append(lines, strings.TrimRight(s[:cut], " "))
		s = "    " + strings.TrimLeft(s[cut:], " ")
	}
	return append(lines, s)
}

// table aligns columns; the first is a label, the others stand to the right.
func (t *text) table(rows [][]string) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		fmt.Fprintf(tw, "%s\t\n", strings.Join(row, "\t"))
	}
	_ = tw.Flush() // it writes to memory
	for l := range strings.Lines(b.String()) {
		t.line("%s", strings.TrimRight(l, "\n"))
	}
}

func (t *text) head(r *Result) {
	what := "pktgen " + r.Command
	switch {
	case len(r.Pairs) > 1:
		what += fmt.Sprintf("   %d pairs", len(r.Pairs))
	case r.TX != nil && r.RX != nil:
		what += "   " + r.TX.Iface + " -> " + r.RX.Iface
	case r.TX != nil:
		what += "   " + r.TX.Iface
	case r.RX != nil:
		what += "   " + r.RX.Iface
	}
	t.line("%s", what)
	load := ""
	if r.TX != nil && r.TX.Frames > 0 {
		load = fmt.Sprintf("%d octets, ", r.TX.Bytes/r.TX.Frames)
	}
	t.line("%s%s", load, seconds(r.DurationS))
	if r.Verdict != "" {
		v := "verdict: " + r.Verdict
		if r.Reason != "" {
			v += " (" + r.Reason + ")"
		}
		t.line("%s", v)
	}
	t.line("")
}

func (t *text) rates(tx *TX, rx *RX) {
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
	}
	if tx != nil && tx.Errors > 0 {
		t.line("refused     %s frames by the kernel, for their form", units.FormatCount(tx.Errors))
	}
}

func row(label string, r Rates, share string) []string {
	return []string{label, units.FormatCount(r.Frames), units.FormatPPS(r.PPS), units.FormatBps(r.L2Bps), units.FormatBps(r.L1Bps), share}
}

func (t *text) losses(rx *RX, loss *Loss) {
	if rx == nil {
		return
	}
	where := ""
	if loss != nil {
		var places []string
		for _, p := range []struct {
			name string
			n    uint64
		}{{"path", loss.Path}, {"receiving port", loss.RXNIC}, {"this tool's ring", loss.Sink}} {
			if p.n > 0 {
				places = append(places, p.name+" "+units.FormatCount(p.n))
			}
		}
		if len(places) > 0 {
			where = strings.Join(places, ", ")
		}
	}
	t.line("")
	t.line("lost        %s   %s", units.FormatCount(rx.Lost), units.FormatRatio(rx.LossRatio))
	if where != "" {
		t.line("            %s", where)
	}
	t.line("duplicates  %s   reordered %s   corrupt %s   other %s", units.FormatCount(rx.Duplicates),
		units.FormatCount(rx.Reordered), units.FormatCount(rx.Corrupt), units.FormatCount(rx.OtherFrames))
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{rx.StaleFrames, "frames of another run"},
		{rx.SocketDrops, "frames dropped by this tool's own ring, of any kind"},
		{rx.Overflow, "frames of streams beyond --max-streams"},
	} {
		if c.n > 0 {
			t.line("            %s %s", units.FormatCount(c.n), c.what)
		}
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
	case l.Count > 0:
		t.line("latency     min %s   mean %s   p50 %s   p90 %s", ns(float64(*l.Min)), ns(*l.Mean), ns(float64(*l.P50)), ns(float64(*l.P90)))
		t.line("            p99 %s   p99.9 %s   max %s   (clock: %s)", ns(float64(*l.P99)), ns(float64(*l.P999)), ns(float64(*l.Max)), l.Clock)
	}
	if rx.Jitter.Count > 0 {
		t.line("jitter      %s (RFC 3550)   mean %s   max %s", ns(rx.Jitter.RFC3550), ns(rx.Jitter.Mean), ns(float64(rx.Jitter.Max)))
	}
}

func (t *text) queues(r *Result) {
	for _, side := range []struct {
		name   string
		queues []Queue
	}{{"send", txQueues(r.TX)}, {"receive", rxQueues(r.RX)}} {
		if len(side.queues) < 2 {
			continue
		}
		t.line("")
		rows := [][]string{{side.name + " queue", "CPU", "frames", "rate"}}
		for _, q := range side.queues {
			cpu := "-"
			if q.CPU != nil {
				cpu = fmt.Sprint(*q.CPU)
			}
			rows = append(rows, []string{fmt.Sprint(q.Queue), cpu, units.FormatCount(q.Frames), units.FormatPPS(q.PPS)})
		}
		t.table(rows)
	}
}

func txQueues(tx *TX) []Queue {
	if tx == nil {
		return nil
	}
	return tx.Queues
}

func rxQueues(rx *RX) []Queue {
	if rx == nil {
		return nil
	}
	return rx.Queues
}

func (t *text) streams(rx *RX) {
	if rx == nil || len(rx.Streams) < 2 {
		return
	}
	t.line("")
	rows := [][]string{{"stream", "run", "frames", "lost", "duplicates", "reordered", "p99"}}
	for _, s := range rx.Streams[:min(len(rx.Streams), maxStreamLines)] {
		p99 := "-"
		if s.Latency.P99 != nil {
			p99 = ns(float64(*s.Latency.P99))
		}
		rows = append(rows, []string{s.Name, fmt.Sprintf("%04x", s.RunID), units.FormatCount(s.Frames), units.FormatCount(s.Lost),
			units.FormatCount(s.Duplicates), units.FormatCount(s.Reordered), p99})
	}
	t.table(rows)
	if n := len(rx.Streams) - maxStreamLines; n > 0 {
		t.line("... and %d more", n)
	}
}

func (t *text) tail(r *Result) {
	if len(r.Warnings) > 0 || r.Interrupted {
		t.line("")
	}
	if r.Interrupted {
		t.line("interrupted: this is what was measured until then")
	}
	for _, w := range r.Warnings {
		t.line("warning: %s", w)
	}
}

func ns(v float64) string { return units.FormatDuration(time.Duration(v)) }

func seconds(s float64) string { return units.FormatDuration(time.Duration(s * 1e9)) }

// LiveLine is an interval as one line of at most 79 columns, for a terminal.
func LiveLine(iv *Interval, elapsed time.Duration) string {
	s := fmt.Sprintf("%6.1f s", elapsed.Seconds())
	if iv.TX != nil {
		s += "   sent " + units.FormatPPS(iv.TX.PPS)
		if iv.RX == nil {
			s += "   " + units.FormatBps(iv.TX.L1Bps) + " L1"
		}
	}
	if iv.RX != nil {
		s += "   received " + units.FormatPPS(iv.RX.PPS)
		if iv.TX == nil {
			s += "   " + units.FormatBps(iv.RX.L1Bps) + " L1"
		}
		for _, c := range []struct {
			n    uint64
			what string
		}{{iv.RX.SocketDrops, "dropped"}, {iv.RX.Duplicates, "dup"}, {iv.RX.Reordered, "reordered"}, {iv.RX.Corrupt, "corrupt"}} {
			if c.n > 0 {
				s += "   " + c.what + " " + units.FormatCount(c.n)
			}
		}
	}
	return s[:min(len(s), columns-1)]
}
