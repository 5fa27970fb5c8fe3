package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func write(t testing.TB, r *Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteText(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// page holds a text to the page: 80 columns, nothing that moves the cursor, no
// line that ends in a space, no empty line at either end.
func page(t interface{ Errorf(string, ...any) }, s string) {
	if !strings.HasSuffix(s, "\n") || strings.HasPrefix(s, "\n") || strings.HasSuffix(s, "\n\n") {
		t.Errorf("empty lines, or none at the end: %q", s)
	}
	for l := range strings.Lines(s) {
		l = strings.TrimSuffix(l, "\n")
		if utf8.RuneCountInString(l) > 80 {
			t.Errorf("%d columns: %q", utf8.RuneCountInString(l), l)
		}
		if strings.HasSuffix(l, " ") {
			t.Errorf("ends in a space: %q", l)
		}
		if !utf8.ValidString(l) || strings.ContainsFunc(l, unicode.IsControl) {
			t.Errorf("not printable: %q", l)
		}
	}
}

var notFinite = regexp.MustCompile(`(?i)\b[+-]?(nan|inf)`)

// count makes counters from nothing to the largest.
func count() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Just[uint64](0), rapid.Just[uint64](math.MaxUint64), rapid.Uint64())
}

func number() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64}))
}

// maybe makes values that may be absent.
func maybe[T any](g *rapid.Generator[T]) *rapid.Generator[*T] {
	return rapid.Custom(func(t *rapid.T) *T {
		if !rapid.Bool().Draw(t, "there") {
			return nil
		}
		return ptr(g.Draw(t, "value"))
	})
}

func anyRates(t *rapid.T) Rates {
	return Rates{count().Draw(t, "frames"), count().Draw(t, "bytes"), number().Draw(t, "pps"), number().Draw(t, "l1"), number().Draw(t, "l2")}
}

func anyLatency(t *rapid.T) Latency {
	v, f := maybe(rapid.Int64()), maybe(number())
	return Latency{
		Min: v.Draw(t, "min"), Mean: f.Draw(t, "mean"), P50: v.Draw(t, "p50"), P90: v.Draw(t, "p90"), P99: v.Draw(t, "p99"),
		P999: v.Draw(t, "p999"), P9999: v.Draw(t, "p9999"), Max: v.Draw(t, "max"), Count: count().Draw(t, "count"),
		Clock: rapid.SampledFrom([]string{"", "none", "same-host", "synced", "round-trip"}).Draw(t, "clock"), Negative: count().Draw(t, "negative"),
	}
}

func anyQueues(t *rapid.T) (qs []Queue) {
	for i := range rapid.IntRange(0, 3).Draw(t, "queues") {
		qs = append(qs, Queue{i, maybe(rapid.Int()).Draw(t, "cpu"), count().Draw(t, "frames"), number().Draw(t, "pps"), count().Draw(t, "drops")})
	}
	return qs
}

func anyTX(t *rapid.T) *TX {
	if rapid.IntRange(0, 4).Draw(t, "no tx") == 0 {
		return nil
	}
	return &TX{
		Iface: "eth31", Rates: anyRates(t), RequestedPPS: maybe(number()).Draw(t, "requested"), LineRatePercent: maybe(number()).Draw(t, "line"),
		Unsent: count().Draw(t, "unsent"), Errors: count().Draw(t, "errors"), Queues: anyQueues(t),
	}
}

func anyRX(t *rapid.T) *RX {
	if rapid.IntRange(0, 4).Draw(t, "no rx") == 0 {
		return nil
	}
	rx := &RX{
		Iface: "eth32", Rates: anyRates(t), Lost: count().Draw(t, "lost"), LossRatio: number().Draw(t, "ratio"),
		Duplicates: count().Draw(t, "dup"), Reordered: count().Draw(t, "reordered"), TooOld: count().Draw(t, "old"), Corrupt: count().Draw(t, "corrupt"),
		OtherFrames: count().Draw(t, "other"), StaleFrames: count().Draw(t, "stale"), Overflow: count().Draw(t, "overflow"),
		SocketDrops: count().Draw(t, "drops"), Latency: anyLatency(t), Queues: anyQueues(t),
		Jitter: Jitter{number().Draw(t, "rfc3550"), number().Draw(t, "mean"), rapid.Int64().Draw(t, "max"), count().Draw(t, "count")},
	}
	for i := range rapid.SampledFrom([]int{0, 1, 2, 16, 17}).Draw(t, "streams") {
		rx.Streams = append(rx.Streams, Stream{ID: uint16(i), Name: fmt.Sprintf("stream-%d", i), Frames: count().Draw(t, "frames"),
			Lost: count().Draw(t, "lost"), Duplicates: count().Draw(t, "dup"), Reordered: count().Draw(t, "reordered"), Latency: anyLatency(t)})
	}
	return rx
}

func anyLoss(t *rapid.T) *Loss {
	return maybe(rapid.Custom(func(t *rapid.T) Loss {
		return Loss{count().Draw(t, "generator"), count().Draw(t, "tx nic"), count().Draw(t, "path"), count().Draw(t, "rx nic"), count().Draw(t, "sink"), nil}
	})).Draw(t, "loss")
}

// Whatever was counted, the text keeps to the page, shows no number that is
// none, and hides no counter that is not 0.
func TestTextOfAnyNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &Result{
			Command: "run", DurationS: number().Draw(t, "duration"), TX: anyTX(t), RX: anyRX(t), Loss: anyLoss(t),
			Verdict: "ok", Warnings: []string{"one", "two"}, Interrupted: rapid.Bool().Draw(t, "interrupted"),
		}
		for range rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "pairs") {
			r.Pairs = append(r.Pairs, Pair{anyTX(t), anyRX(t), anyLoss(t)})
		}
		var b bytes.Buffer
		if err := WriteText(&b, r); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		page(t, got)
		if notFinite.MatchString(got) {
			t.Errorf("shows what is no number:\n%s", got)
		}
		if !strings.Contains(got, "verdict: ok\n") || strings.Contains(got, "interrupted") != r.Interrupted ||
			strings.Count(got, "warning: ") != len(r.Warnings) {
			t.Errorf("verdict, interruption or warnings:\n%s", got)
		}
		// Without the separators, every counter stands there as strconv has it.
		digits := strings.ReplaceAll(got, ",", "")
		shown := func(name string, n uint64) {
			if n != 0 && !regexp.MustCompile(`\b`+strconv.FormatUint(n, 10)+`\b`).MatchString(digits) {
				t.Errorf("%s %d is not shown:\n%s", name, n, got)
			}
		}
		ends := append([]Pair{{r.TX, r.RX, r.Loss}}, r.Pairs...)
		for _, p := range ends {
			if p.TX != nil {
				shown("sent", p.TX.Frames)
				shown("unsent", p.TX.Unsent)
				shown("refused", p.TX.Errors)
			}
			if rx := p.RX; rx != nil {
				for name, n := range map[string]uint64{"received": rx.Frames, "lost": rx.Lost, "duplicates": rx.Duplicates, "reordered": rx.Reordered,
					"too old": rx.TooOld, "corrupt": rx.Corrupt, "other": rx.OtherFrames, "stale": rx.StaleFrames, "overflow": rx.Overflow, "drops": rx.SocketDrops} {
					shown(name, n)
				}
			}
			if p.RX != nil && p.Loss != nil {
				shown("path", p.Loss.Path)
				shown("rx nic", p.Loss.RXNIC)
				shown("sink", p.Loss.Sink)
			}
		}
	})
}

// A result read back from a file may hold anything.
func FuzzWriteText(f *testing.F) {
	for _, r := range results() {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"command":"a\u001b[2J\nb","error":"x\ty","warnings":["\u0085",""],"pairs":[{},{"tx":null,"rx":{"frames":1}}]}`))
	f.Add([]byte(`{"rx":{"frames":1,"latency_ns":{"count":1,"clock":"synced"},"streams":[{"name":"a\tb"},{"name":"` + strings.Repeat("ä", 90) + `"}]}}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		var r Result
		if json.Unmarshal(document, &r) != nil {
			return
		}
		page(t, write(t, &r))
	})
}

// The largest counts that a month at 400 Gbit/s gives leave a table its rows.
func TestTableOfLargeCounts(t *testing.T) {
	r := full()
	const n, seconds = 1_542_857_142_857_142, 30 * 24 * 3600
	r.TX.Rates, r.RX.Rates, r.DurationS = MakeRates(n, n*64, seconds), MakeRates(n, n*64, seconds), seconds
	r.TX.LineRatePercent = ptr(100.0)
	got := write(t, r)
	page(t, got)
	for label, share := range map[string]string{"sent": " +100 %", "received": ""} {
		if !regexp.MustCompile(`(?m)^ +` + label + ` +1,542,857,142,857,142 +595.2 Mpps +304.8 Gbit/s +400 Gbit/s` + share + `$`).MatchString(got) {
			t.Errorf("no whole row %q:\n%s", label, got)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteErrors(t *testing.T) {
	r := results()["run"]
	for name, err := range map[string]error{
		"text": WriteText(brokenWriter{}, r), "JSON": WriteJSON(brokenWriter{}, r), "line": WriteLine(brokenWriter{}, "result", r),
	} {
		if err != os.ErrClosed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLiveLine(t *testing.T) {
	tx := MakeRates(500_000, 500_000*64, 1)
	rx := IntervalRX{Rates: MakeRates(499_000, 499_000*64, 1)}
	bad := rx
	bad.SocketDrops, bad.Corrupt, bad.Duplicates, bad.Reordered = 1_000, 2, 0, 4
	for _, c := range []struct {
		name string
		iv   Interval
		want string
	}{
		{"tx", Interval{TX: &tx}, "   1.5 s   sent 500 kpps   336 Mbit/s L1"},
		{"rx", Interval{RX: &rx}, "   1.5 s   received 499 kpps   335.3 Mbit/s L1"},
		{"run", Interval{TX: &tx, RX: &rx}, "   1.5 s   sent 500 kpps   received 499 kpps"},
		{"bad", Interval{TX: &tx, RX: &bad}, "   1.5 s   sent 500 kpps   received 499 kpps   dropped 1,000   corrupt 2"},
		{"none", Interval{}, "   1.5 s"},
	} {
		if got := LiveLine(&c.iv, 1500*time.Millisecond); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A line of the live view is one line, and a number in it is whole.
func TestLiveLineOfAnyNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		iv := Interval{RX: &IntervalRX{Rates: anyRates(t), Duplicates: count().Draw(t, "dup"), Reordered: count().Draw(t, "reordered"),
			Corrupt: count().Draw(t, "corrupt"), SocketDrops: count().Draw(t, "drops")}}
		if rapid.Bool().Draw(t, "sends") {
			iv.TX = ptr(anyRates(t))
		}
		got := LiveLine(&iv, time.Duration(rapid.Int64().Draw(t, "elapsed")))
		if len(got) > 79 || strings.ContainsFunc(got, unicode.IsControl) || notFinite.MatchString(got) {
			t.Errorf("%d: %q", len(got), got)
		}
		for what, n := range map[string]uint64{"dropped": iv.RX.SocketDrops, "corrupt": iv.RX.Corrupt, "dup": iv.RX.Duplicates, "reordered": iv.RX.Reordered} {
			m := regexp.MustCompile(`\b` + what + ` ([0-9,]+)`).FindStringSubmatch(got)
			if m != nil && strings.ReplaceAll(m[1], ",", "") != strconv.FormatUint(n, 10) {
				t.Errorf("%s %d: %q", what, n, got)
			}
		}
	})
}
