package stats

import (
	"reflect"
	"sync"
	"testing"
)

// fields are the counters of a vector, found without its own list of them.
func fields[T any](c *T) []*uint64 {
	v := reflect.ValueOf(c).Elem()
	list := make([]*uint64, v.NumField())
	for i := range list {
		list[i] = v.Field(i).Addr().Interface().(*uint64)
	}
	return list
}

// filled has a different value in each counter.
func filled[T any](factor uint64) (c T) {
	for i, f := range fields(&c) {
		*f = factor * uint64(i+1)
	}
	return c
}

// No counter is forgotten or taken for another on the way from the worker to
// the reader, and one worker's are not another's.
func TestCounts(t *testing.T) {
	t.Run("tx", testCounts[TxCounts, *TxCounts])
	t.Run("rx", testCounts[RxCounts, *RxCounts])
}

func testCounts[T comparable, P Counts[T]](t *testing.T) {
	set := NewSet[T](3)
	var zero T
	if got := Sum[T, P](set); got != zero {
		t.Errorf("new: %+v", got)
	}
	one, ten := filled[T](1), filled[T](10)
	Publish[T, P](set.Shard(0), &one)
	Publish[T, P](set.Shard(2), &ten)
	if got := Sum[T, P](set); got != filled[T](11) {
		t.Errorf("sum of 1x and 10x: %+v", got)
	}
	again := filled[T](5)
	Publish[T, P](set.Shard(0), &again)
	if got := Sum[T, P](set); got != filled[T](15) {
		t.Errorf("5x in place of 1x: %+v", got)
	}
	if got := Add[T, P](one, ten); got != filled[T](11) {
		t.Errorf("1x + 10x: %+v", got)
	}
	if got := Sub[T, P](ten, one); got != filled[T](9) {
		t.Errorf("10x - 1x: %+v", got)
	}
	if one != filled[T](1) || ten != filled[T](10) {
		t.Error("Add or Sub changed what it was given")
	}
}

// The words of two workers are 128 octets apart at least: two cache lines.
func TestShardsShareNoCacheLine(t *testing.T) {
	shard := reflect.TypeFor[Shard[RxCounts]]()
	words, _ := shard.FieldByName("words")
	if gap := shard.Size() - words.Type.Size(); gap < 128 {
		t.Errorf("%d octets between the words of two shards", gap)
	}
	if after := shard.Size() - words.Offset - words.Type.Size(); words.Offset < 128 || after < 128 {
		t.Errorf("%d octets before the words and %d after, to what else is in memory", words.Offset, after)
	}
}

// A reader beside the writers sees each counter only grow, never beyond what
// was published, and in the end all of it.
func TestSumWhileWorkersPublish(t *testing.T) {
	const workers, batches = 2, 20_000
	set := NewSet[RxCounts](workers)
	end := filled[RxCounts](workers * batches)
	var writers sync.WaitGroup
	done := make(chan struct{})
	for i := range workers {
		writers.Go(func() {
			var c RxCounts
			for range batches {
				c = Add(c, filled[RxCounts](1))
				Publish(set.Shard(i), &c)
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	var last RxCounts
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		sum := Sum(set)
		was, now, most := fields(&last), fields(&sum), fields(&end)
		for i := range now {
			if *now[i] < *was[i] || *now[i] > *most[i] {
				t.Fatalf("counter %d went from %d to %d of %d", i, *was[i], *now[i], *most[i])
			}
		}
		last = sum
	}
	if last != end {
		t.Errorf("in the end %+v, want %+v", last, end)
	}
}

// What a worker does for each frame and each batch allocates nothing.
func TestAllocs(t *testing.T) {
	var w SeqWindow
	var j Jitter
	l := NewLatency()
	tx, rx := NewSet[TxCounts](1), NewSet[RxCounts](1)
	txCounts, rxCounts := new(TxCounts), new(RxCounts)
	i := int64(0)
	for name, f := range map[string]func(){
		"SeqWindow.Observe": func() { w.Observe(uint32(i * i)) },
		"SeqWindow.Ahead":   func() { w.Ahead(uint32(i * i)) },
		"Latency.Observe":   func() { l.Observe(i * 1e8) },
		"Jitter.Observe":    func() { j.Observe(i * i) },
		"Publish tx":        func() { txCounts.Sent++; Publish(tx.Shard(0), txCounts) },
		"Publish rx":        func() { rxCounts.Frames++; Publish(rx.Shard(0), rxCounts) },
	} {
		if n := testing.AllocsPerRun(1000, func() { i++; f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
