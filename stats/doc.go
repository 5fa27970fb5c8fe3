// Package stats is what a worker counts, and how others see it.
//
//	worker's own integers --Publish, once a batch--> padded atomic words of its shard
//	  --Set.Sum, one reader, each interval--> differences
//	workers joined --> exact totals
//
//	SeqWindow  order of one stream: RFC 4737 (reordering), RFC 5560 (duplicates)
//	Latency    a histogram with exact least, greatest and mean
//	Jitter     variation of the transit time: RFC 3550, RFC 3393
//
// Each of them has one owner, the queue goroutine, and allocates only when it is
// made; only Set and Shard are shared. All times are ns.
package stats
