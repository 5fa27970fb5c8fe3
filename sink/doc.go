// Package sink is the receive loop of a queue, and the set of them.
//
//	Open: every worker locks its thread, pins its CPU, opens its ring
//	Start: what arrived before is thrown away; counting begins
//	  RX.Next -> Block.Next -> frames.ParseStamp -> Stream -> Release
//	Stop, Wait: what has arrived by then is counted; exact totals
//
// A stream's frames all come to one worker (the backend spreads by stream id),
// so its sequence window, latencies and counters need no lock. The reader sees
// counters published once a block, and the streams themselves when the workers
// have ended.
//
// What is counted as what:
//
//	our stamp                  frames, and by sequence number unique, duplicates, reordered
//	  wrong bytes (checksums)  corrupt; in frames too if the frames around it leave a gap for its number
//	  of another run or pair   stale
//	closing frame              closing
//	the kernel pktgen's header frames, a stream of its own
//	anything else              other
//
// Memory is bounded by MaxStreams, whatever comes in: frames of streams beyond
// that are counted as overflow.
package sink
