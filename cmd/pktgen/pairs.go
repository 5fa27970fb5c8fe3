package main

import "pktgen/report"

// sumPairs adds up pairs that ran side by side. Latencies stay with their pairs.
func sumPairs(pairs []report.Pair) (*report.TX, *report.RX, *report.Loss) {
	tx, rx, loss := &report.TX{Queues: []report.Queue{}}, &report.RX{
		Streams: []report.Stream{}, Queues: []report.Queue{}, Latency: report.Latency{Clock: clockNone}, SenderClosed: true,
	}, &report.Loss{}
	requested, paced := 0.0, true
	for _, p := range pairs {
		tx.Iface, tx.Backend, tx.BackendReason = join(tx.Iface, p.TX.Iface), p.TX.Backend, p.TX.BackendReason
		tx.Rates = tx.Rates.Add(p.TX.Rates)
		tx.Offered += p.TX.Offered
		tx.Unsent += p.TX.Unsent
		tx.Errors += p.TX.Errors
		tx.Missed += p.TX.Missed
		if r := p.TX.RateError; r != nil && (tx.RateError == nil || *r < *tx.RateError) {
			tx.RateError = r // the slowest
		}
		tx.Busy += p.TX.Busy
		tx.LateEvents += p.TX.LateEvents
		tx.LateMaxNs = max(tx.LateMaxNs, p.TX.LateMaxNs)
		if p.TX.RequestedPPS == nil {
			paced = false
		} else {
			requested += *p.TX.RequestedPPS
		}
		rx.Iface, rx.Backend, rx.BackendReason = join(rx.Iface, p.RX.Iface), p.RX.Backend, p.RX.BackendReason
		rx.Rates = rx.Rates.Add(p.RX.Rates)
		rx.Lost += p.RX.Lost
		rx.Duplicates += p.RX.Duplicates
		rx.Reordered += p.RX.Reordered
		rx.TooOld += p.RX.TooOld
		rx.Corrupt += p.RX.Corrupt
		rx.OtherFrames += p.RX.OtherFrames
		rx.StaleFrames += p.RX.StaleFrames
		rx.Overflow += p.RX.Overflow
		rx.SocketDrops += p.RX.SocketDrops
		rx.Answered += p.RX.Answered
		rx.SenderClosed = rx.SenderClosed && p.RX.SenderClosed
		*loss = loss.Add(*p.Loss)
	}
	if paced {
		tx.RequestedPPS = &requested
	}
	if tx.Frames > 0 {
		rx.LossRatio = float64(rx.Lost) / float64(tx.Frames)
	}
	return tx, rx, loss
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}
