package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pktgen/report"
	"pktgen/stats"
)

// repetition is several trials of one load.
type repetition struct {
	trials int
	settle time.Duration // between two of them (RFC 2544, section 23: 5 seconds)
	open   func() (*session, error)
	out    *output
}

// confidence is the level of every confidence interval that is printed.
const confidence = 0.95

// run makes the trials one after the other, each with sessions of its own, and
// prints all of them as one result. A trial that fails is the last.
func (rp *repetition) run(ctx context.Context) error {
	var sessions []*session
	var err error
	for i := 0; i < rp.trials && err == nil; i++ {
		if i > 0 {
			select {
			case <-time.After(rp.settle):
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
		}
		var s *session
		if s, err = rp.open(); err != nil {
			break
		}
		err = s.trial(ctx)
		err = errors.Join(err, s.close())
		if s.result.Started != nil {
			sessions = append(sessions, s)
			rp.out.trial(len(sessions), rp.trials, s.result)
		}
		if errors.As(err, new(limitError)) { // of one trial: the limits are those of all
			err = nil
		}
	}
	rp.out.end()
	if len(sessions) == 0 {
		return err
	}
	r, limit := pool(sessions, rp.trials)
	var stop interrupted
	if err == nil && errors.As(context.Cause(ctx), &stop) {
		err = stop
	}
	r.Interrupted = errors.As(err, &stop)
	if err == nil {
		err = limit
	}
	return rp.out.finish(r, err)
}

// pool is the result of several trials: counts added up, rates their means. The
// second is the limit that was missed.
func pool(sessions []*session, asked int) (*report.Result, error) {
	first := sessions[0].result
	r := &report.Result{
		Schema: report.Schema, Command: first.Command, RunID: first.RunID, Started: first.Started,
		Config: first.Config, Host: first.Host, Floor: first.Floor,
	}
	sum := &session{command: first.Command, result: r, limits: sessions[0].limits}
	var pairs []report.Pair
	for i, s := range sessions {
		t := s.result
		t.Config, t.Host, t.Floor = nil, nil, nil // they are those of all
		r.Trials = append(r.Trials, t)
		r.DurationS += t.DurationS
		pairs = append(pairs, report.Pair{TX: t.TX, RX: t.RX, Loss: t.Loss})
		for _, w := range t.Warnings {
			r.Warnings = append(r.Warnings, fmt.Sprintf("trial %d: %s", i+1, w))
		}
		sum.tx, sum.rx = append(sum.tx, s.tx...), append(sum.rx, s.rx...)
	}
	r.TX, r.RX, r.Loss = sumPairs(pairs)
	r.TX.Iface, r.RX.Iface = first.TX.Iface, first.RX.Iface
	n := float64(len(sessions))
	r.TX.Rates, r.RX.Rates = r.TX.Rates.Mean(n), r.RX.Rates.Mean(n)
	if r.TX.RequestedPPS != nil {
		*r.TX.RequestedPPS /= n
	}
	sum.sumTimes(r.RX)
	sum.bound(r.RX, r.TX)
	r.Repeat = series(sessions)
	sum.judge()
	if v := r.Repeat; r.Verdict == verdictOK && len(v.PPS.Outliers) > 0 {
		r.Verdict = verdictUnsteady
		r.Reason = fmt.Sprintf("the received rate of trial %d stands apart from the others", v.PPS.Outliers[0]+1)
	}
	if len(sessions) < asked {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d trials of %d", len(sessions), asked))
	}
	return r, sum.missed()
}

func series(sessions []*session) *report.Repeat {
	var pps, loss, p50, p99 []float64
	for _, s := range sessions {
		rx := s.result.RX
		pps = append(pps, rx.PPS)
		loss = append(loss, rx.LossRatio)
		if rx.Latency.P50 != nil {
			p50, p99 = append(p50, float64(*rx.Latency.P50)), append(p99, float64(*rx.Latency.P99))
		}
	}
	r := &report.Repeat{Trials: len(sessions), Level: confidence, PPS: oneSeries(pps), LossRatio: oneSeries(loss)}
	if len(p50) == len(sessions) {
		a, b := oneSeries(p50), oneSeries(p99)
		r.LatencyP50, r.LatencyP99 = &a, &b
	}
	return r
}

func oneSeries(values []float64) report.Series {
	s := report.Series{Values: values, Min: values[0], Max: values[0], Outliers: stats.Outliers(values)}
	for _, v := range values {
		s.Min, s.Max = min(s.Min, v), max(s.Max, v)
	}
	if len(values) > 1 {
		s.Mean, s.Half = stats.MeanInterval(values, confidence)
	} else {
		s.Mean = values[0]
	}
	if s.Outliers == nil {
		s.Outliers = []int{}
	}
	return s
}
