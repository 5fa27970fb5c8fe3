package stats

import "sync/atomic"

// TxCounts are one sending worker's totals, in frames unless said otherwise.
type TxCounts struct {
	Offered uint64 // given to the kernel
	Sent    uint64 // of these, taken by the driver
	Bytes   uint64 // frame sizes of Sent
	Errors  uint64 // refused by the kernel for their form
	Retries uint64 // times the device took no more for a while
}

// RxCounts are one receiving worker's totals, in frames unless said otherwise.
// Frames = Unique + Duplicates.
type RxCounts struct {
	Frames      uint64 // with our stamp
	Bytes       uint64 // frame sizes of Frames
	Unique      uint64 // different sequence numbers
	Duplicates  uint64
	Reordered   uint64 // RFC 4737
	Corrupt     uint64 // the stamp is there, the bytes are not those sent
	TooOld      uint64 // of Reordered, later than the window
	Stale       uint64 // of another run
	Closing     uint64
	Other       uint64 // not ours
	OtherBytes  uint64 // frame sizes of Other
	KernelDrops uint64 // the socket's ring had no room
}

// words lists a vector's fields, in one order for reading, writing and adding.
func (c *TxCounts) words() [maxWords]*uint64 {
	return [maxWords]*uint64{&c.Offered, &c.Sent, &c.Bytes, &c.Errors, &c.Retries}
}

func (c *RxCounts) words() [maxWords]*uint64 {
	return [maxWords]*uint64{
		&c.Frames, &c.Bytes, &c.Unique, &c.Duplicates, &c.Reordered, &c.Corrupt,
		&c.TooOld, &c.Stale, &c.Closing, &c.Other, &c.OtherBytes, &c.KernelDrops,
	}
}

// Counts is a vector of counters.
type Counts[T any] interface {
	*T
	words() [maxWords]*uint64
}

const maxWords = 12

// Shard is where one worker's counters are seen from outside: one owner writes,
// any goroutine reads. Its words share no cache line with another's (128
// octets: x86 fetches lines in pairs).
type Shard[T any] struct {
	_     [128]byte
	words [maxWords]atomic.Uint64
	_     [128]byte
}

// Set is one shard a worker.
type Set[T any] struct{ shards []Shard[T] }

// NewSet makes a set of zeroed shards.
func NewSet[T any](shards int) *Set[T] { return &Set[T]{shards: make([]Shard[T], shards)} }

// Shard is worker i's own.
func (s *Set[T]) Shard(i int) *Shard[T] { return &s.shards[i] }

// Publish makes c seen by readers. Owned by the queue goroutine, once a batch:
// only what has changed is stored, since on x86 an atomic store costs some 7 ns
// and an atomic load next to nothing. With three counters changed, measured in
// one run: 35 ns for RxCounts and 33 for TxCounts, against 83 and 43 with all
// of them stored.
func Publish[T any, P Counts[T]](s *Shard[T], c P) {
	for i, w := range c.words() {
		if w == nil {
			return
		}
		if s.words[i].Load() != *w {
			s.words[i].Store(*w)
		}
	}
}

// Sum adds up the shards. Each counter only grows from one Sum to the next (of
// one reader); the counters of one Sum may be a batch apart, so that what holds
// between them in the totals may be off by a batch here.
func Sum[T any, P Counts[T]](s *Set[T]) T {
	var total T
	for i := range s.shards {
		for j, w := range P(&total).words() {
			if w != nil {
				*w += s.shards[i].words[j].Load()
			}
		}
	}
	return total
}

// Add is a + b, counter by counter.
func Add[T any, P Counts[T]](a, b T) T {
	from := P(&b).words()
	for i, w := range P(&a).words() {
		if w != nil {
			*w += *from[i]
		}
	}
	return a
}

// Sub is what was counted after b, up to a.
func Sub[T any, P Counts[T]](a, b T) T {
	from := P(&b).words()
	for i, w := range P(&a).words() {
		if w != nil {
			*w -= *from[i]
		}
	}
	return a
}
