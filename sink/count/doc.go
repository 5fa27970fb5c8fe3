// Package count is the sink in the driver: an XDP program (count.bpf.c) that counts
// the frames of each stream where the driver has just received them, and drops
// them, so that a core takes many times what a socket can. What is not ours goes
// on to the kernel.
//
// It does as the package sink does: the same sequence window, losses, duplicates,
// reordering, corruption and jitter. Latency is kept in buckets of 3 % instead of
// 0.1 %; delay variation (RFC 5481), gaps and round trips are not kept. The receive
// time is that at which the program runs.
package count

//go:generate ../../scripts/bpf2go.sh count count.bpf.c stream totals
