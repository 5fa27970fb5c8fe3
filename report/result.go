package report

import (
	"encoding/json"
	"io"
	"time"
)

// Schema names the form of the document. Keys may be added, none is renamed.
const Schema = "pktgen/v1"

// Result is one run. What a command does not have (no receiver, no sender) is absent.
type Result struct {
	Schema    string         `json:"schema"`
	Command   string         `json:"command"`
	RunID     *uint16        `json:"run_id,omitempty"`
	Started   *time.Time     `json:"started,omitempty"`
	DurationS float64        `json:"duration_s"` // measured: from the first frame to the last
	Config    map[string]any `json:"config,omitempty"`
	Host      *Host          `json:"host,omitempty"`
	TX        *TX            `json:"tx,omitempty"`
	RX        *RX            `json:"rx,omitempty"`
	Loss      *Loss          `json:"loss,omitempty"`
	Reflect   *Reflect       `json:"reflect,omitempty"`
	Pairs     []Pair         `json:"pairs,omitempty"` // of more than one; the sums are above
	Verdict   string         `json:"verdict,omitempty"`
	Reason    string         `json:"verdict_reason,omitempty"`
	Warnings  []string       `json:"warnings"`
	Intervals []Interval     `json:"intervals"`
	Steady    *Steady        `json:"steady,omitempty"`
	CPUs      []CPU          `json:"cpus,omitempty"`   // of this host, while frames were sent
	Floor     *Floor         `json:"floor,omitempty"`  // what the tool itself adds: in no figure, and taken off none
	Repeat    *Repeat        `json:"repeat,omitempty"` // of several trials; the figures above are of all of them
	Trials    []*Result      `json:"trials,omitempty"`

	Interrupted bool   `json:"interrupted,omitempty"` // by a signal: what is here was measured until then
	Error       string `json:"error,omitempty"`
	Hint        string `json:"hint,omitempty"`
	ExitCode    int    `json:"exit_code"`
}

// Floor is the latency of the same load over a veth pair of this machine: what
// the tool and the kernel take without a device between.
type Floor struct {
	PPS     float64  `json:"pps"`
	Frames  uint64   `json:"frames"`
	Lost    uint64   `json:"lost"`
	Latency Latency  `json:"latency_ns"`
	Sampled *Latency `json:"latency_sampled_ns,omitempty"`
}

// Repeat is what repeated trials have in common, and do not.
type Repeat struct {
	Trials     int     `json:"trials"`
	Level      float64 `json:"level"` // of the confidence intervals
	PPS        Series  `json:"rx_pps"`
	LossRatio  Series  `json:"loss_ratio"`
	LatencyP50 *Series `json:"latency_p50_ns,omitempty"`
	LatencyP99 *Series `json:"latency_p99_ns,omitempty"`
}

// Series is one figure of each trial. Mean ± Half holds the mean of many more
// such trials with the level of confidence, if they are alike (Student's t).
type Series struct {
	Values   []float64 `json:"values"`
	Mean     float64   `json:"mean"`
	Half     float64   `json:"half_width"`
	Min      float64   `json:"min"`
	Max      float64   `json:"max"`
	Outliers []int     `json:"outliers"` // trials, from 0, far from the others (modified z-score above 3.5)
}

// Host is where and by what the result was made.
type Host struct {
	Hostname string   `json:"hostname"`
	Kernel   string   `json:"kernel"`
	Arch     string   `json:"arch"`
	CPUModel string   `json:"cpu_model,omitempty"`
	CPUs     int      `json:"cpus"`
	Clock    *Clock   `json:"clock,omitempty"`
	Version  string   `json:"pktgen_version"`
	Go       string   `json:"go_version"`
	Command  []string `json:"command_line"`
}

// Clock is what keeps this host's clock: adjtimex(2).
type Clock struct {
	Synchronised bool     `json:"synchronised"` // the kernel was told so, by NTP or PTP
	MaxErrorUs   int64    `json:"max_error_us"`
	EstErrorUs   int64    `json:"estimated_error_us"`
	FrequencyPPM float64  `json:"frequency_ppm"` // that it is slewed by
	Source       string   `json:"source,omitempty"`
	PTP          []string `json:"ptp,omitempty"` // hardware clocks: "ptp0 (name)"
}

// Steady is whether the run went on as it began, by its intervals. Times are in s
// from its start.
type Steady struct {
	Known   bool      `json:"known"` // there were intervals enough to tell
	Drift   bool      `json:"drift"` // the last quarter is not as the first
	Change  float64   `json:"change"`
	ChangeS float64   `json:"change_at_s,omitempty"`
	Step    bool      `json:"step,omitempty"` // rather a step than a slope
	DipsS   []float64 `json:"dips_at_s,omitempty"`
	PeriodS float64   `json:"dip_period_s,omitempty"`
}

// Rates are of one direction over the measured time.
type Rates struct {
	Frames uint64  `json:"frames"`
	Bytes  uint64  `json:"bytes"` // frame sizes added up
	PPS    float64 `json:"pps"`
	L1Bps  float64 `json:"l1_bps"`
	L2Bps  float64 `json:"l2_bps"`
}

// MakeRates gives the rates of frames of octets in all over seconds; zero rates
// where there is no time to divide by. One frame alone has no rate: the time
// between the first and the last of n frames holds n-1 of them.
func MakeRates(frames, octets uint64, seconds float64) Rates {
	r := Rates{Frames: frames, Bytes: octets}
	if frames < 2 || seconds <= 0 {
		return r
	}
	share := float64(frames-1) / float64(frames)
	r.PPS = float64(frames) * share / seconds
	r.L2Bps = float64(octets) * share * 8 / seconds
	r.L1Bps = r.L2Bps + r.PPS*wireOverhead*8
	return r
}

// WindowRates divides by a window's own length: its frames are those of the
// window, not of a first and a last frame.
func WindowRates(frames, octets uint64, seconds float64) Rates {
	r := Rates{Frames: frames, Bytes: octets}
	if seconds <= 0 {
		return r
	}
	r.PPS = float64(frames) / seconds
	r.L2Bps = float64(octets) * 8 / seconds
	r.L1Bps = r.L2Bps + r.PPS*wireOverhead*8
	return r
}

// wireOverhead is preamble, SFD and inter-frame gap, octets a frame (IEEE 802.3).
const wireOverhead = 20

// Add sums the rates of directions that ran side by side.
func (r Rates) Add(o Rates) Rates {
	return Rates{r.Frames + o.Frames, r.Bytes + o.Bytes, r.PPS + o.PPS, r.L1Bps + o.L1Bps, r.L2Bps + o.L2Bps}
}

// Mean divides the rates, not the counts: those of n trials one after the other.
func (r Rates) Mean(n float64) Rates {
	return Rates{r.Frames, r.Bytes, r.PPS / n, r.L1Bps / n, r.L2Bps / n}
}

// TX is the sending side.
type TX struct {
	Iface         string `json:"iface"`
	Backend       string `json:"backend"`
	BackendReason string `json:"backend_reason"` // why this one
	Rates
	RequestedPPS    *float64  `json:"requested_pps"`          // null: as fast as it goes
	LineRatePercent *float64  `json:"line_rate_percent"`      // null: the link speed is not known
	Offered         uint64    `json:"offered"`                // frames given to the kernel
	Unsent          uint64    `json:"unsent"`                 // of these, not sent by the port
	Errors          uint64    `json:"errors"`                 // refused by the kernel for their form, or failed by the port
	Missed          uint64    `json:"missed"`                 // frames of a random pattern that were due and not offered in time
	RateError       *float64  `json:"rate_error"`             // sent rate over that of the schedule, less 1, from the first frame to the last; null: no schedule
	FramesPerCall   float64   `json:"frames_per_call"`        // given to the kernel at once, on average
	Busy            uint64    `json:"busy"`                   // times the device took no more for a while
	LateEvents      uint64    `json:"late_events"`            // times a paced sender was more than a millisecond late; it caught up
	LateMaxNs       int64     `json:"late_max_ns"`            // and by how much at most
	Gaps            *Spread   `json:"gap_ns,omitempty"`       // between consecutive frames as they left, of a sample; per stream
	StampLag        *Spread   `json:"stamp_lag_ns,omitempty"` // from a frame's stamp to its leaving the driver, of a sample
	Queues          []Queue   `json:"queues"`
	Port            *Counters `json:"port,omitempty"` // the interface's own counters over the run
	DstMAC          string    `json:"dst_mac,omitempty"`
}

// Queue is one worker's share.
type Queue struct {
	Queue  int     `json:"queue"`
	CPU    *int    `json:"cpu"` // null: not pinned
	Frames uint64  `json:"frames"`
	PPS    float64 `json:"pps"`
	Drops  uint64  `json:"drops,omitempty"` // receiving: frames its ring had no room for
}

// Counters are what the kernel counted for an interface during the run, frames
// of others included.
type Counters struct {
	RxFrames   uint64 `json:"rx_frames"`
	RxDropped  uint64 `json:"rx_dropped"`
	RxErrors   uint64 `json:"rx_errors"`
	RxMissed   uint64 `json:"rx_missed"`
	TxFrames   uint64 `json:"tx_frames"`
	TxDropped  uint64 `json:"tx_dropped"`
	TxErrors   uint64 `json:"tx_errors"`
	QdiscDrops uint64 `json:"qdisc_drops"`
	PauseRx    uint64 `json:"pause_rx"` // IEEE 802.3 pause frames, where the driver counts them
	PauseTx    uint64 `json:"pause_tx"`
}

// RX is the receiving side.
type RX struct {
	Iface         string `json:"iface"`
	Backend       string `json:"backend"`
	BackendReason string `json:"backend_reason"` // why this one
	Rates
	Lost         uint64       `json:"lost"`
	LossRatio    float64      `json:"loss_ratio"` // of the frames sent
	LossBound    *Bound       `json:"loss_ratio_bound,omitempty"`
	Duplicates   uint64       `json:"duplicates"`
	Reordered    uint64       `json:"reordered"`
	TooOld       uint64       `json:"too_old"` // of reordered: later than the window, so that a duplicate could not be told
	Corrupt      uint64       `json:"corrupt"`
	OtherFrames  uint64       `json:"other_frames"`
	StaleFrames  uint64       `json:"stale_frames"`        // of an earlier run
	Overflow     uint64       `json:"overflow_frames"`     // of streams beyond the bound
	SocketDrops  uint64       `json:"socket_drops"`        // frames this tool's ring had no room for, of any kind
	Answered     uint64       `json:"neighbours_answered"` // ARP requests and neighbour solicitations
	Latency      Latency      `json:"latency_ns"`
	Sampled      *Latency     `json:"latency_sampled_ns,omitempty"` // from the driver's own time of sending, where it keeps one
	ClockOffset  *ClockOffset `json:"clock_offset,omitempty"`       // of the reflector's clock
	OneWay       *OneWay      `json:"one_way_ns,omitempty"`
	Residence    *Spread      `json:"residence_ns,omitempty"` // of frames that a reflector sent back: in it, by its clock; in no latency
	Jitter       Jitter       `json:"jitter_ns"`
	IPDV         *IPDV        `json:"ipdv_ns,omitempty"`
	PDV          *PDV         `json:"pdv_ns,omitempty"`
	Gaps         *Spread      `json:"gap_ns,omitempty"` // between consecutive arrivals of a stream
	Streams      []Stream     `json:"streams"`
	Queues       []Queue      `json:"queues"`
	Port         *Counters    `json:"port,omitempty"`
	SenderClosed bool         `json:"sender_closed"` // closing frames of every stream arrived, so that the lost tail is known
}

// Spread is how a time is distributed, ns.
type Spread struct {
	Count uint64  `json:"count"`
	Min   int64   `json:"min"`
	Mean  float64 `json:"mean"`
	P50   int64   `json:"p50"`
	P90   int64   `json:"p90"`
	P99   int64   `json:"p99"`
	P999  int64   `json:"p99_9"`
	P9999 int64   `json:"p99_99"`
	Max   int64   `json:"max"`
}

// ClockOffset is how far a reflector's clock is ahead of this host's, from round
// trips alone. |offset - true offset| <= Bound over the whole run, however the ways
// there and back differ.
type ClockOffset struct {
	Ns            int64   `json:"ns"` // in the middle of the run
	BoundNs       int64   `json:"bound_ns"`
	DriftPPM      float64 `json:"drift_ppm"`
	DriftBoundPPM float64 `json:"drift_bound_ppm"`
	Error         string  `json:"error,omitempty"` // then all else is 0: a clock was set during the run
}

// OneWay is how long frames took there and back, each: right to Bound ns, because
// the clocks are known to that only. Of a sample.
type OneWay struct {
	Bound int64   `json:"bound"`
	There *Spread `json:"there"`
	Back  *Spread `json:"back"`
}

// Bound holds a ratio with a level of confidence (Clopper and Pearson): where
// nothing was lost, up to about 3 / frames at 0.95.
type Bound struct {
	Level float64 `json:"level"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Latency is one-way, from the stamp to the receive time. With clock "none" the
// two ends' clocks are not known to agree, and no latency is given.
type Latency struct {
	Min   *int64   `json:"min"`
	Mean  *float64 `json:"mean"`
	P50   *int64   `json:"p50"`
	P90   *int64   `json:"p90"`
	P99   *int64   `json:"p99"`
	P999  *int64   `json:"p99_9"`
	P9999 *int64   `json:"p99_99"`
	Max   *int64   `json:"max"`
	Count uint64   `json:"count"`
	Clock string   `json:"clock"` // same-host, synced, round-trip, none
	// Send and Receive say what noted the times: "stamp" (this tool, as it made the
	// frame), "kernel" (the driver handed it over; it came to the kernel).
	Send    string `json:"send_time,omitempty"`
	Receive string `json:"receive_time,omitempty"`
	// Negative counts the frames whose receive time lay before their stamp: the
	// clock was set meanwhile. They are in no other figure.
	Negative uint64 `json:"negative,omitempty"`
}

// Jitter is the variation of the latency between consecutive frames of a
// stream, which two clocks that do not agree leave right.
type Jitter struct {
	RFC3550 float64 `json:"rfc3550"` // §6.4.1, of the stream with the most
	Mean    float64 `json:"mean"`    // mean of |IPDV|, RFC 3393
	Max     int64   `json:"max"`
	Count   uint64  `json:"count"`
}

// IPDV is the difference of the latencies of a frame and the one before it (RFC
// 3393; RFC 5481, section 4.1), of those that came in sequence.
type IPDV struct {
	Count   uint64  `json:"count"`
	Min     int64   `json:"min"` // with sign
	Max     int64   `json:"max"`
	MeanAbs float64 `json:"mean_abs"`
	P50     int64   `json:"p50_abs"` // percentiles of the absolute values
	P90     int64   `json:"p90_abs"`
	P99     int64   `json:"p99_abs"`
	P999    int64   `json:"p99_9_abs"`
}

// PDV is a frame's latency less the least one (RFC 5481, section 4.2).
type PDV struct {
	Count uint64 `json:"count"`
	P50   int64  `json:"p50"`
	P90   int64  `json:"p90"`
	P99   int64  `json:"p99"`
	P999  int64  `json:"p99_9"`
	Max   int64  `json:"max"`
}

// Stream is one tracked sequence of frames. Lost here is by sequence number,
// and so includes what the sender's own port dropped (tx.unsent).
type Stream struct {
	ID         uint16  `json:"id"`
	Name       string  `json:"name"`
	RunID      uint16  `json:"run_id"`
	Frames     uint64  `json:"frames"`
	Bytes      uint64  `json:"bytes"`
	Lost       uint64  `json:"lost"`
	LossRatio  float64 `json:"loss_ratio"`
	Duplicates uint64  `json:"duplicates"`
	Reordered  uint64  `json:"reordered"`
	TooOld     uint64  `json:"too_old"`
	Corrupt    uint64  `json:"corrupt"`
	FirstSeq   uint64  `json:"first_seq"`
	Sent       *uint64 `json:"sent"` // as its closing frame says; null: none came
	Latency    Latency `json:"latency_ns"`
	Jitter     Jitter  `json:"jitter_ns"`
	IPDV       *IPDV   `json:"ipdv_ns,omitempty"`
	PDV        *PDV    `json:"pdv_ns,omitempty"`
}

// Loss says where the frames went. Generator and TXNIC are before the wire:
// those frames were never sent (tx.unsent); Path, RXNIC and Sink add up to rx.lost.
type Loss struct {
	Generator uint64 `json:"generator"` // this host's qdisc, or left in the ring
	TXNIC     uint64 `json:"tx_nic"`    // the sending port's own errors
	Path      uint64 `json:"path"`      // what no local counter explains
	RXNIC     uint64 `json:"rx_nic"`    // the receiving port's drops and errors
	Sink      uint64 `json:"sink"`      // this tool's receive ring was full

	// Counters are those that counted anything during the run, others' frames
	// included: what the places were told from.
	Counters []LossCounter `json:"counters,omitempty"`
}

// LossCounter is a counter of this host that tells of frames that stayed.
type LossCounter struct {
	Place   string `json:"place"`
	Counter string `json:"counter"` // as the kernel or ip -s link calls it
	Frames  uint64 `json:"frames"`
}

// CPU is what a CPU of this host did during the run: shares of the time.
type CPU struct {
	CPU            int     `json:"cpu"`
	User           float64 `json:"user"`
	System         float64 `json:"system"`
	IRQ            float64 `json:"irq"`
	SoftIRQ        float64 `json:"softirq"` // most of the kernel's network work
	Steal          float64 `json:"steal"`   // the hypervisor gave it to others
	Idle           float64 `json:"idle"`
	SoftnetDropped uint32  `json:"softnet_dropped"` // frames for which its backlog had no room
	TimeSqueeze    uint32  `json:"time_squeeze"`    // times that work was left when net.core.netdev_budget was used up
}

// Add sums the places of several pairs.
func (l Loss) Add(o Loss) Loss {
	return Loss{l.Generator + o.Generator, l.TXNIC + o.TXNIC, l.Path + o.Path, l.RXNIC + o.RXNIC, l.Sink + o.Sink, append(l.Counters[:len(l.Counters):len(l.Counters)], o.Counters...)}
}

// Reflect is an interface that sends frames back.
type Reflect struct {
	Iface       string    `json:"iface"`
	Frames      uint64    `json:"frames"`        // test and closing frames sent back
	STAMP       uint64    `json:"stamp_answers"` // STAMP packets answered (RFC 8762)
	Bytes       uint64    `json:"bytes"`         // frame sizes of both
	Short       uint64    `json:"short_frames"`  // without room for the times: not sent back
	Corrupt     uint64    `json:"corrupt"`       // not sent back
	OtherFrames uint64    `json:"other_frames"`  // not ours, or come back already
	NoRoom      uint64    `json:"no_room"`       // not sent back: the device took no more
	Unsent      uint64    `json:"unsent"`        // given to the kernel, and not sent
	SocketDrops uint64    `json:"socket_drops"`  // frames this tool's ring had no room for
	Answered    uint64    `json:"neighbours_answered"`
	Residence   *Spread   `json:"residence_ns,omitempty"` // from receive time to the time sent back
	Port        *Counters `json:"port,omitempty"`
}

// Pair is one direction between two interfaces.
type Pair struct {
	TX   *TX   `json:"tx"`
	RX   *RX   `json:"rx"`
	Loss *Loss `json:"loss"`
}

// Interval is what happened between two readings of the counters; all
// intervals of a run add up to its totals.
type Interval struct {
	StartS    float64     `json:"start_s"` // since the start of the run
	DurationS float64     `json:"duration_s"`
	TX        *Rates      `json:"tx,omitempty"`
	RX        *IntervalRX `json:"rx,omitempty"`
}

// IntervalRX is the receiving side of an interval.
type IntervalRX struct {
	Rates
	Duplicates  uint64   `json:"duplicates"`
	Reordered   uint64   `json:"reordered"`
	Corrupt     uint64   `json:"corrupt"`
	OtherFrames uint64   `json:"other_frames"`
	SocketDrops uint64   `json:"socket_drops"`
	Latency     *Latency `json:"latency_ns,omitempty"`
}

// MarshalJSON writes empty lists where there are none.
func (r *Result) MarshalJSON() ([]byte, error) {
	type plain Result
	p := plain(*r)
	if p.Warnings == nil {
		p.Warnings = []string{}
	}
	if p.Intervals == nil {
		p.Intervals = []Interval{}
	}
	return json.Marshal(p)
}

// WriteJSON writes the document, one JSON object, indented.
func WriteJSON(w io.Writer, r *Result) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// WriteLine writes any of the types here as one line of JSON, tagged with what
// it is ("interval", "result"), for --json-stream.
func WriteLine(w io.Writer, kind string, v any) error {
	b, err := json.Marshal(map[string]any{"type": kind, kind: v})
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
