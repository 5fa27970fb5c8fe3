package sink

import (
	"cmp"

	"pktgen/frames"
	"pktgen/stats"
	"pktgen/units"
)

// key names a stream: kind of stamp, run and stream id.
type key uint64

func makeKey(s *frames.Stamp) key {
	if s.Kind == frames.KindKernelPktgen {
		return key(frames.KindKernelPktgen) << 32
	}
	return key(frames.KindTest)<<32 | key(s.RunID)<<16 | key(s.StreamID)
}

// Stream is what one worker knows of one stream. Owned by the worker until
// Wait has returned.
type Stream struct {
	key        key
	RunID, ID  uint16
	KernelGen  bool // frames of the Linux kernel's pktgen
	window     stats.SeqWindow
	Frames     uint64 // with our stamp, duplicates included
	Bytes      uint64 // of these, octets with FCS
	Duplicates uint64
	Reordered  uint64 // RFC 4737
	TooOld     uint64 // of Reordered: later than the window; a duplicate cannot be told
	Corrupt    uint64
	FirstNs    int64 // receive time of the first frame, ns since the Unix epoch
	LastNs     int64
	Closed     bool   // a closing frame has come
	Expected   uint64 // the count in it
	Latency    *stats.Latency
	Jitter     stats.Jitter
	Delay      *stats.DelayVariation // of frames that are no duplicates
	Samples    []stats.Sample        // when the sampled frames came, less their time in a reflector: the first of them
	RoundTrip  *RoundTrip            // of frames that a reflector sent back; nil: none came

	sampling stats.Sampling

	held      doubt // a frame whose number is far ahead and that no checksum vouches for
	holds     bool
	claimed   bool               // Expected is what one closing frame without a checksum says
	doubtful  [maxDoubtful]doubt // corrupt frames whose number is not confirmed yet
	doubtfuls int
}

// Order is that of a Result's streams: by kind, run and id.
func Order(a, b *Stream) int { return cmp.Compare(a.key, b.key) }

// Counted makes a Stream of what was counted elsewhere: first is the number seen
// first, next the highest one and 1. It is for a Result, and takes no more frames.
func Counted(s Stream, first, next uint64) *Stream {
	stamp := frames.Stamp{Kind: frames.KindTest, RunID: s.RunID, StreamID: s.ID}
	if s.KernelGen {
		stamp.Kind = frames.KindKernelPktgen
	}
	s.key = makeKey(&stamp)
	s.window = stats.SeenWindow(first, next)
	return &s
}

// doubt is a corrupt frame: its number may be among what is wrong.
type doubt struct {
	seq        uint32
	size       units.FrameSize
	receivedNs int64
}

// maxDoubtful bounds the corrupt frames in a row that can still be confirmed.
const maxDoubtful = 16

// doubt keeps a corrupt frame until the next right one shows whether its number
// was missing just then. One too many in a row is not believed.
func (s *Stream) doubt(seq uint32, size units.FrameSize, receivedNs int64) {
	if s.doubtfuls < maxDoubtful {
		s.doubtful[s.doubtfuls] = doubt{seq, size, receivedNs}
		s.doubtfuls++
	}
}

// settle counts the corrupt frames whose numbers are in the gap from..to-1, which
// the frames around them have left: they are those that were sent there. The
// others stay corrupt alone, and what was sent in their place is lost.
func (s *Stream) settle(from, to uint64, c *stats.RxCounts) {
	n := s.doubtfuls
	s.doubtfuls = 0
	for _, d := range s.doubtful[:n] {
		seq := from + uint64(d.seq-uint32(from))
		if seq >= to {
			continue
		}
		if v, _ := s.window.Observe(d.seq); v == stats.Duplicate || v == stats.TooOld {
			continue
		}
		s.Frames++
		s.Bytes += uint64(d.size)
		c.Frames++
		c.Bytes += uint64(d.size)
		c.Unique++
		if s.Frames == 1 {
			s.FirstNs = d.receivedNs
		}
		s.LastNs = max(s.LastNs, d.receivedNs)
	}
}

// farAhead is how many frames may be missing at once before a number that no
// checksum vouches for has to be confirmed by the next frame: one damaged number
// must not count as a million frames lost.
const farAhead = 1 << 20

// believe says whether a number far ahead is confirmed: the frame before, held
// back until now, was shortly before it. Else this one is held.
func (s *Stream) believe(seq uint32, size units.FrameSize, receivedNs int64, c *stats.RxCounts) bool {
	if s.holds && seq-s.held.seq-1 < stats.WindowSize {
		s.holds = false
		s.observe(s.held.size, s.held.receivedNs, &frames.Stamp{Seq: s.held.seq}, c)
		return true
	}
	s.disbelieve(c)
	s.held, s.holds = doubt{seq, size, receivedNs}, true
	return false
}

// disbelieve takes a frame that is held for damaged.
func (s *Stream) disbelieve(c *stats.RxCounts) {
	if s.holds {
		s.holds = false
		s.Corrupt++
		c.Corrupt++
	}
}

// claim says whether a closing frame that no checksum vouches for agrees with
// the one before.
func (s *Stream) claim(count uint64) bool {
	agrees := s.claimed && s.Expected == count
	s.claimed, s.Expected = true, count
	return agrees
}

// Unique is the number of different frames received.
func (s *Stream) Unique() uint64 { return s.Frames - s.Duplicates }

// First is the lowest sequence number that was seen first.
func (s *Stream) First() uint64 { return s.window.First() }

// Sent is the number of frames of the stream as far as the sink knows: that of
// the closing frame, else up to the highest sequence number seen.
func (s *Stream) Sent() uint64 {
	switch {
	case s.Closed:
		return s.Expected
	case s.Frames == 0:
		return 0
	case s.KernelGen: // it says neither where it begins nor where it ends
		return s.window.Next() - s.window.First()
	}
	return s.window.Next()
}

// Lost is Sent less what was received.
func (s *Stream) Lost() uint64 {
	if sent, got := s.Sent(), s.Unique(); sent > got {
		return sent - got
	}
	return 0
}

// observe counts one frame, and says whether it is new: no duplicate.
func (s *Stream) observe(size units.FrameSize, receivedNs int64, stamp *frames.Stamp, c *stats.RxCounts) bool {
	s.Frames++
	s.Bytes += uint64(size)
	c.Frames++
	c.Bytes += uint64(size)
	if s.Frames == 1 {
		s.FirstNs = receivedNs
	}
	s.LastNs = receivedNs
	next := s.window.Next()
	verdict, _ := s.window.Observe(stamp.Seq)
	if s.doubtfuls > 0 && s.Frames > 1 {
		s.settle(next, s.window.Next(), c)
	}
	switch verdict {
	case stats.Duplicate:
		s.Duplicates++
		c.Duplicates++
		return false
	case stats.TooOld:
		s.TooOld++
		c.TooOld++
		fallthrough
	case stats.Reordered:
		s.Reordered++
		c.Reordered++
	}
	c.Unique++
	return true
}

// RoundTrip is what a reflector's times tell.
type RoundTrip struct {
	Residence *stats.Latency    // ns that frames spent in the reflector, by its clock
	Offset    stats.ClockOffset // of the reflector's clock against this host's
	Trips     []Trip            // of the sampled frames: the first of them
}

// Trip is the four times of a round trip, ns since the Unix epoch: sent and
// received back by this host's clock, received and returned by the reflector's.
type Trip struct{ Sent, Received, Returned, Back int64 }

func newRoundTrip(sampling stats.Sampling) *RoundTrip {
	r := &RoundTrip{Residence: stats.NewLatency()}
	if sampling.Any() {
		r.Trips = make([]Trip, 0, stats.MaxSamples)
	}
	return r
}

func (r *RoundTrip) observe(t Trip, sampled bool) {
	r.Residence.Observe(t.Returned - t.Received)
	r.Offset.Observe(t.Sent, t.Received, t.Returned, t.Back)
	if sampled && len(r.Trips) < cap(r.Trips) {
		r.Trips = append(r.Trips, t)
	}
}

// time records when the frame came, against its stamp, and returns how long it
// took: of a frame that was sent back, without its time in the reflector.
func (s *Stream) time(receivedNs int64, stamp *frames.Stamp, fresh bool) int64 {
	transit := receivedNs - stamp.TimeNs
	if stamp.Kind == frames.KindReturned {
		if s.RoundTrip == nil {
			s.RoundTrip = newRoundTrip(s.sampling)
		}
		s.RoundTrip.observe(Trip{stamp.TimeNs, stamp.ReceivedNs, stamp.ReturnedNs, receivedNs}, s.sampling.Has(uint64(stamp.Seq)))
		transit -= stamp.ReturnedNs - stamp.ReceivedNs
	}
	s.Latency.Observe(transit)
	s.Jitter.Observe(transit)
	if fresh {
		s.Delay.Observe(stamp.Seq, transit)
	}
	if s.sampling.Has(uint64(stamp.Seq)) && len(s.Samples) < cap(s.Samples) {
		s.Samples = append(s.Samples, stats.Sample{Seq: uint64(stamp.Seq), TimeNs: stamp.TimeNs + transit})
	}
	return transit
}

// table finds streams by key: open addressing, never more than half full. It
// allocates when a stream is first seen, never after.
type table struct {
	slots []*Stream
	list  []*Stream
	last  *Stream
	max   int
}

func newTable(max int) table {
	size := 1
	for size < 2*max {
		size *= 2
	}
	return table{slots: make([]*Stream, size), max: max}
}

// find returns the stream of k, nil when it is not there.
func (t *table) find(k key) *Stream {
	if t.last != nil && t.last.key == k {
		return t.last
	}
	for i := t.slot(k); ; i = (i + 1) % len(t.slots) {
		s := t.slots[i]
		if s == nil {
			return nil
		}
		if s.key == k {
			t.last = s
			return s
		}
	}
}

// add makes the stream of a key that is not there; nil when the table is full.
func (t *table) add(k key) *Stream {
	if len(t.list) == t.max {
		return nil
	}
	s := &Stream{
		key: k, RunID: uint16(k >> 16), ID: uint16(k),
		KernelGen: k>>32 == key(frames.KindKernelPktgen),
		Latency:   stats.NewLatency(),
		Delay:     stats.NewDelayVariation(),
	}
	i := t.slot(k)
	for t.slots[i] != nil {
		i = (i + 1) % len(t.slots)
	}
	t.slots[i] = s
	t.list = append(t.list, s)
	t.last = s
	return s
}

// slot is where the search for k begins (Fibonacci hashing).
func (t *table) slot(k key) int {
	return int(uint64(k) * 0x9e3779b97f4a7c15 >> 33 % uint64(len(t.slots)))
}
