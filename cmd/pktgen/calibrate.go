package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"pktgen/lab"
	"pktgen/report"
)

// calibrationTime is how long the floor is measured.
const calibrationTime = 2 * time.Second

// calibrate measures the same load over a veth pair of this machine's own: what
// the tool and the kernel take with nothing in between.
func calibrate(ctx context.Context, s *session) (floor *report.Floor, err error) {
	e, r := s.tx[0], *s.rx[0].r
	l, err := lab.Wire(lab.Options{MTU: max(e.payload(), 68), Queues: max(e.t.queues, r.queues)})
	if err != nil {
		return nil, fmt.Errorf("--calibrate: %w", err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	t := *e.t
	t.count, t.duration, t.warmup, t.roundTrip = 0, calibrationTime, 0, false
	t.dstMAC, t.srcMAC, t.back = nil, nil, false
	t.src, t.dst = e.spec.Src, e.spec.Dst
	t.gateway = e.spec.Dst // on the wire it is next door, whatever its address
	r.clock = clockSameHost
	cs := newSession("calibrate", &output{stdout: io.Discard, stderr: io.Discard, interval: calibrationTime})
	cs.config = map[string]any{} // of no document
	defer func() { err = errors.Join(err, cs.close()) }()
	if err := cs.addRX(l.Pairs[0].RX, &r); err != nil {
		return nil, err
	}
	t.force = true // of the veth pair nobody lives
	if err := cs.addTX(ctx, l.Pairs[0].TX, &t); err != nil {
		return nil, err
	}
	cs.tx[0].load = e.load // a share of the link's speed is that of the link
	if err := planCPUs(cs, t.cpus); err != nil {
		return nil, err
	}
	if err := cs.trial(ctx); err != nil {
		return nil, fmt.Errorf("--calibrate: %w", err)
	}
	rx := cs.result.RX
	return &report.Floor{PPS: rx.PPS, Frames: rx.Frames, Lost: rx.Lost, Latency: rx.Latency, Sampled: rx.Sampled}, nil
}
