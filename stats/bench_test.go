package stats

import "testing"

// Every seventh frame of stream=late is three late, every seventh of
// stream=lossy is missing, and stream=jumps loses three quarters of a window
// with each frame.
func BenchmarkSeqWindow(b *testing.B) {
	for _, c := range []struct {
		name string
		seq  func(i uint32) uint32
	}{
		{"in-order", func(i uint32) uint32 { return i }},
		{"late", func(i uint32) uint32 { return i - i%7/6*3 }},
		{"lossy", func(i uint32) uint32 { return i + i/6 }},
		{"duplicates", func(i uint32) uint32 { return i / 2 }},
		{"jumps", func(i uint32) uint32 { return i * (WindowSize / 4 * 3) }},
	} {
		b.Run("stream="+c.name, func(b *testing.B) {
			// The stream is a table that is gone through again and again, each time
			// further on: what is measured is Observe.
			const period = 7 * 1 << 10
			var table [period]uint32
			for i := range table {
				table[i] = c.seq(uint32(i))
			}
			b.ReportAllocs()
			var w SeqWindow
			i, base := 0, uint32(0)
			for b.Loop() {
				w.Observe(base + table[i])
				if i++; i == period {
					i, base = 0, base+c.seq(period)
				}
			}
		})
	}
}

func BenchmarkLatencyObserve(b *testing.B) {
	for _, c := range []struct {
		name string
		ns   func(i int64) int64
	}{
		{"near", func(i int64) int64 { return 50_000 + i&1023 }},
		{"spread", func(i int64) int64 { return int64(uint64(i) * 0x9e3779b97f4a7c15 >> 31) }},
	} {
		b.Run("values="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			l := NewLatency()
			i := int64(0)
			for b.Loop() {
				l.Observe(c.ns(i))
				i++
			}
		})
	}
}

func BenchmarkJitterObserve(b *testing.B) {
	b.ReportAllocs()
	var j Jitter
	i := int64(0)
	for b.Loop() {
		j.Observe(50_000 + i&1023)
		i++
	}
}

// A batch changes three or four of a vector's counters.
func BenchmarkPublish(b *testing.B) {
	b.Run("counts=tx", func(b *testing.B) {
		b.ReportAllocs()
		s, c := NewSet[TxCounts](1).Shard(0), new(TxCounts)
		for b.Loop() {
			c.Offered += 64
			c.Sent += 64
			c.Bytes += 64 * 64
			Publish(s, c)
		}
	})
	b.Run("counts=rx", func(b *testing.B) {
		b.ReportAllocs()
		s, c := NewSet[RxCounts](1).Shard(0), new(RxCounts)
		for b.Loop() {
			c.Frames += 64
			c.Bytes += 64 * 64
			c.Unique += 64
			Publish(s, c)
		}
	})
}
