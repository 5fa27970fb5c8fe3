package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

func latency() Latency {
	return Latency{
		Min: ptr(int64(1500)), Mean: ptr(2500.5), P50: ptr(int64(2400)), P90: ptr(int64(3000)), P99: ptr(int64(25000)),
		P999: ptr(int64(58000)), P9999: ptr(int64(99000)), Max: ptr(int64(1_600_000)), Count: 1_000_000, Clock: "same-host",
	}
}

func fullTX() *TX {
	return &TX{
		Iface: "eth31", Backend: "packet", Rates: MakeRates(1_000_000, 64_000_000, 10),
		RequestedPPS: ptr(100_000.0), LineRatePercent: ptr(0.672), Offered: 1_000_000,
		Queues: []Queue{{Queue: 0, CPU: ptr(2), Frames: 1_000_000, PPS: 99_999.9}}, Port: &Counters{TxFrames: 1_000_000},
		DstMAC: "02:00:00:00:00:02",
	}
}

func fullRX() *RX {
	return &RX{
		Iface: "eth32", Backend: "packet", Rates: MakeRates(1_000_000, 64_000_000, 10),
		Latency: latency(), Jitter: Jitter{RFC3550: 300, Mean: 280, Max: 90_000, Count: 999_999}, SenderClosed: true,
		Streams: []Stream{{Name: "stream-0", RunID: 0xabc, Frames: 1_000_000, Bytes: 64_000_000, Sent: ptr(uint64(1_000_000)), Latency: latency()}},
		Queues:  []Queue{{Queue: 0, CPU: ptr(3), Frames: 1_000_000, PPS: 99_999.9}}, Port: &Counters{RxFrames: 1_000_000},
	}
}

func full() *Result {
	return &Result{
		Schema: Schema, Command: "run", RunID: ptr(uint16(0xabc)), Started: ptr(time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)), DurationS: 10,
		Config: map[string]any{"size": 64}, Host: &Host{Kernel: "6.18"}, TX: fullTX(), RX: fullRX(), Loss: &Loss{}, Verdict: "ok",
		Intervals: []Interval{{DurationS: 1, TX: &Rates{Frames: 1}, RX: &IntervalRX{}}},
	}
}

// results are the golden cases.
func results() map[string]*Result {
	lossy := full()
	lossy.TX.Unsent, lossy.TX.Offered, lossy.TX.Errors = 10, 1_000_010, 3
	lossy.TX.LateEvents, lossy.TX.LateMaxNs = 3, 5_200_000
	lossy.RX.Rates = MakeRates(998_800, 998_800*64, 10)
	lossy.RX.Lost, lossy.RX.LossRatio, lossy.RX.Duplicates, lossy.RX.Reordered, lossy.RX.Corrupt = 1_205, 0.001205, 5, 17, 2
	lossy.RX.OtherFrames, lossy.RX.StaleFrames, lossy.RX.SocketDrops, lossy.RX.Overflow = 12, 3, 1_000, 4
	lossy.Loss = &Loss{Generator: 10, Path: 101, RXNIC: 104, Sink: 1_000}
	lossy.Verdict, lossy.Reason = "sink-limited", "1000 frames found this tool's receive ring full"
	lossy.Warnings = []string{"eth31: nobody answers for 198.18.0.2: sending to the MAC 02:00:00:00:00:99, which a switch floods"}

	interrupted := full()
	interrupted.Interrupted, interrupted.ExitCode = true, 130

	tx := full()
	tx.Command, tx.RX = "tx", nil
	tx.TX.RequestedPPS, tx.TX.LineRatePercent = nil, nil
	tx.TX.Queues = append(tx.TX.Queues, Queue{Queue: 1, Frames: 500_000, PPS: 50_000})

	rx := full()
	rx.Command, rx.TX = "rx", nil
	rx.RX.Latency = Latency{Clock: "none"}
	for i := range 20 {
		s := rx.RX.Streams[0]
		s.Name, s.ID, s.Latency = "stream-"+string(rune('a'+i)), uint16(i), Latency{Clock: "none"}
		rx.RX.Streams = append(rx.RX.Streams, s)
	}

	pairs := full()
	pairs.Pairs = []Pair{{TX: fullTX(), RX: fullRX(), Loss: &Loss{}}, {TX: fullTX(), RX: fullRX(), Loss: &Loss{}}}
	pairs.TX.Rates = pairs.TX.Rates.Add(pairs.TX.Rates)
	pairs.RX.Rates = pairs.RX.Rates.Add(pairs.RX.Rates)

	void := full()
	void.Verdict, void.Reason, void.Error = "void", "eth31: the interface was set down: link lost", "eth31: the interface was set down: link lost"

	nothing := full()
	nothing.TX.Rates, nothing.RX = Rates{}, &RX{Iface: "eth32", Latency: Latency{Clock: "same-host"}}
	nothing.DurationS = 0

	limited := full()
	limited.TX.Backend, limited.TX.BackendReason = "live", "the fastest"
	limited.RX.Backend, limited.RX.BackendReason = "count", "generic (the driver refused: operation not supported), the sender is too fast for a socket"
	limited.TX.Unsent, limited.TX.Offered = 500_000, 1_500_000
	limited.RX.Latency.Negative, limited.RX.Reordered, limited.RX.TooOld = 9, 40, 2
	limited.RX.Queues = []Queue{{Queue: 0, CPU: ptr(3), Frames: 700_000, PPS: 70_000}, {Queue: 1, CPU: ptr(4), Frames: 300_000, PPS: 30_000, Drops: 12}}
	limited.Loss = &Loss{Generator: 499_000, TXNIC: 1_000}
	limited.Verdict, limited.Reason = "generator-limited", "500000 frames given to the kernel were not sent by the port"
	limited.Error, limited.ExitCode = "100000.0 frames/s is below --min-rate 150000.0", 3

	back := &Result{Schema: Schema, Command: "reflect", DurationS: 10, Reflect: &Reflect{
		Iface: "eth32", Frames: 1_000_005, STAMP: 12, Bytes: 80_001_300, Short: 3, OtherFrames: 2,
		Residence: &Spread{Count: 1_000_000, Min: 42_000, Mean: 2e6, P50: 2_100_000, P90: 3e6, P99: 4_100_000, P999: 5e6, P9999: 6e6, Max: 8_400_000},
	}}

	trip := full()
	trip.RX.Latency.Clock, trip.RX.Residence = "round-trip", back.Reflect.Residence
	trip.RX.Sampled = ptr(latency())
	trip.RX.PDV = &PDV{Count: 1_000_000, P50: 900, P90: 1500, P99: 23_500, P999: 56_500, Max: 1_598_500}
	trip.TX.Gaps = &Spread{Count: 4_000, Min: 900, Mean: 1e4, P50: 10_000, P90: 10_400, P99: 12_000, P999: 50_000, P9999: 90_000, Max: 101_000}
	trip.RX.Gaps = trip.TX.Gaps
	trip.RX.LossBound = &Bound{Level: 0.95, High: 2.9957e-6}
	trip.Floor = &Floor{Frames: 200_000, Latency: latency()}

	trials := full()
	series := Series{Values: []float64{100_000, 100_000, 34_000}, Mean: 78_000, Half: 94_669.4, Min: 34_000, Max: 100_000, Outliers: []int{2}}
	trials.Repeat = &Repeat{Trials: 3, Level: 0.95, PPS: series, LossRatio: Series{Values: []float64{0, 0, 0.1}, Mean: 0.0333, Half: 0.1434, Max: 0.1, Outliers: []int{}}}
	trials.Verdict, trials.Reason = "unsteady", "the received rate of trial 3 stands apart from the others"

	empty := &Result{Schema: Schema, Command: "run"}
	return map[string]*Result{"reflect": back, "trip": trip, "trials": trials, "limited": limited, "empty": empty, "run": full(), "lossy": lossy, "interrupted": interrupted, "tx": tx, "rx": rx, "pairs": pairs, "void": void, "nothing": nothing}
}

func TestGolden(t *testing.T) {
	for name, r := range results() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := WriteText(&got, r); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// narrow holds text to 80 columns, and to numbers that are numbers.
func narrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.Contains(line, "NaN") || strings.Contains(line, "Inf") {
			t.Errorf("not a number: %s", line)
		}
	}
}

// TestEighty: no line is longer than 80 columns, whatever the numbers.
func TestEighty(t *testing.T) {
	huge := results()["lossy"]
	const n = math.MaxUint64
	huge.TX.Iface = "/proc/1234567/root/run/netns/a-long-namespace-name/interface-name0"
	huge.TX.Rates = Rates{n, n, math.MaxFloat64, math.Inf(1), math.NaN()}
	huge.RX.Rates = Rates{n, n, 1e18, 1e18, 1e18}
	huge.TX.LineRatePercent = ptr(math.Inf(1))
	huge.RX.Lost, huge.RX.Duplicates, huge.RX.Reordered, huge.RX.Corrupt, huge.RX.OtherFrames = n, n, n, n, n
	huge.Loss = &Loss{n, n, n, n, n, nil}
	wide := &Spread{n, math.MaxInt64, math.MaxFloat64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	huge.TX.Gaps, huge.RX.Gaps, huge.RX.Residence = wide, wide, wide
	huge.RX.PDV = &PDV{n, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	huge.RX.LossBound = &Bound{0.95, 0, math.NaN()}
	huge.Reflect = &Reflect{Frames: n, Bytes: n, STAMP: n, Short: n, Residence: wide}
	huge.RX.Latency.Max, huge.RX.Latency.Mean = ptr(int64(math.MaxInt64)), ptr(math.Inf(1))
	huge.DurationS = 1e12
	huge.TX.Queues = []Queue{{Frames: n, PPS: 1e18}, {Frames: n, PPS: math.NaN()}}
	huge.Warnings = []string{strings.Repeat("x", 300)}
	for name, r := range map[string]*Result{"huge": huge, "run": full(), "rx": results()["rx"], "pairs": results()["pairs"]} {
		var b bytes.Buffer
		if err := WriteText(&b, r); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { narrow(t, b.String()) })
	}
	for _, iv := range []Interval{
		{TX: &Rates{n, n, 1e18, 1e18, 1e18}, RX: &IntervalRX{Rates: Rates{n, n, 1e18, 1e18, 1e18}, Duplicates: n, Reordered: n, Corrupt: n, SocketDrops: n}},
		{RX: &IntervalRX{}}, {TX: &Rates{}}, {},
	} {
		if s := LiveLine(&iv, math.MaxInt64); len(s) > columns-1 || strings.ContainsAny(s, "\n\r") {
			t.Errorf("live line of %d columns: %q", len(s), s)
		}
	}
}

// TestContract: every key that scripts rely on is there, null where the contract
// says that it may be.
func TestContract(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, full()); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(`schema command run_id started duration_s config host verdict warnings intervals exit_code
		tx.iface tx.backend tx.requested_pps tx.frames tx.bytes tx.pps tx.l1_bps tx.l2_bps tx.line_rate_percent tx.unsent tx.errors tx.queues
		rx.iface rx.backend rx.frames rx.bytes rx.pps rx.l1_bps rx.l2_bps rx.lost rx.loss_ratio rx.duplicates rx.reordered rx.corrupt rx.other_frames
		rx.latency_ns.min rx.latency_ns.mean rx.latency_ns.p50 rx.latency_ns.p90 rx.latency_ns.p99 rx.latency_ns.p99_9 rx.latency_ns.max
		rx.latency_ns.count rx.latency_ns.clock rx.jitter_ns rx.streams loss.generator loss.tx_nic loss.path loss.rx_nic loss.sink`) {
		var at any = doc
		for key := range strings.SplitSeq(path, ".") {
			m, ok := at.(map[string]any)
			if !ok {
				t.Fatalf("%s: nothing to look in", path)
			}
			if at, ok = m[key]; !ok {
				t.Errorf("%s is missing", path)
				break
			}
		}
	}
	queue := doc["tx"].(map[string]any)["queues"].([]any)[0].(map[string]any)
	stream := doc["rx"].(map[string]any)["streams"].([]any)[0].(map[string]any)
	for _, key := range []string{"queue", "cpu", "frames", "pps"} {
		if _, ok := queue[key]; !ok {
			t.Errorf("a queue has no %s", key)
		}
	}
	for _, key := range []string{"id", "name", "frames", "bytes", "lost", "loss_ratio", "duplicates", "reordered", "corrupt", "latency_ns"} {
		if _, ok := stream[key]; !ok {
			t.Errorf("a stream has no %s", key)
		}
	}
	if doc["started"] != "2026-12-01T12:00:00Z" || doc["schema"] != "pktgen/v1" {
		t.Errorf("started %v, schema %v", doc["started"], doc["schema"])
	}
	b.Reset()
	if err := WriteJSON(&b, &Result{TX: &TX{}, RX: &RX{Latency: Latency{Clock: "none"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"requested_pps": null`, `"line_rate_percent": null`, `"p50": null`, `"clock": "none"`, `"warnings": []`, `"intervals": []`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}

// TestLine: a line of --json-stream is one line, and says what it is.
func TestLine(t *testing.T) {
	var b bytes.Buffer
	if err := WriteLine(&b, "result", &Result{}); err != nil || !strings.Contains(b.String(), `"warnings":[]`) || !strings.Contains(b.String(), `"intervals":[]`) {
		t.Errorf("%v: lists that are null: %s", err, b.String())
	}
	b.Reset()
	if err := WriteLine(&b, "result", full()); err != nil {
		t.Fatal(err)
	}
	var line struct {
		Type   string
		Result Result
	}
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line.Type != "result" || line.Result.TX.Frames != 1_000_000 {
		t.Errorf("%v: %s", err, b.String())
	}
	if strings.Count(b.String(), "\n") != 1 {
		t.Error("more than one line")
	}
}

// TestMakeRates against RFC 2544, appendix B: 64 octets at 10 Mbit/s are 14,880 frames/s.
func TestMakeRates(t *testing.T) {
	r := MakeRates(14881, 14881*64, 1)
	if r.PPS != 14880 || r.L2Bps != 14880*64*8 || r.L1Bps != 14880*84*8 {
		t.Errorf("%+v", r)
	}
	for _, r := range []Rates{MakeRates(0, 0, 1), MakeRates(1, 64, 1), MakeRates(10, 640, 0), MakeRates(10, 640, -1)} {
		if r.PPS != 0 || r.L1Bps != 0 || r.L2Bps != 0 {
			t.Errorf("a rate without time: %+v", r)
		}
	}
}
