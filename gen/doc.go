// Package gen is the paced send loop of a queue, and the set of them.
//
//	Open: every worker locks its thread, pins its CPU, opens and prefills its ring
//	Start: all begin at one instant
//	  clock -> Pacer.Due -> Reserve -> Template.Apply in the slot -> Commit -> Kick
//	Wait: all have stopped and drained; exact counts
//	Close: closing frames, rings closed
//
// A worker owns its thread, CPU, ring, template and counters; between workers,
// and between a worker and the rest of the process, stand only the stop flag
// and the counters published once a batch. Times are monotonic ns
// (internal/clock), but for the stamps, which are ns since the Unix epoch.
package gen
