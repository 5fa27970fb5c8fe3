package stats

// WindowSize is how many sequence numbers a SeqWindow remembers: those before
// NextExp. At 1 M frames/s a frame may come 65 ms late and still be told from a
// duplicate.
const WindowSize = 1 << 16

const (
	windowMask  = WindowSize - 1
	wordBits    = 64
	windowWords = WindowSize / wordBits
)

// Verdict says how a frame stands in its stream.
type Verdict uint8

const (
	New       Verdict = iota // the next, or one further ahead: those between are missing so far
	Reordered                // first copy of one that was missing: s < NextExp (RFC 4737, section 3.3)
	Duplicate                // seen before (RFC 5560)
	TooOld                   // further back than the window: late or a duplicate, which cannot be told
)

// SeqWindow follows the sequence numbers of one stream, extended from 32 to 64
// bits. The zero value is ready. Owned by the queue goroutine.
type SeqWindow struct {
	next   uint64 // NextExp of RFC 4737: the highest number seen, plus 1
	first  uint64 // the first number seen
	any    bool
	bitmap [windowWords]uint64 // bit seq mod WindowSize: seq was seen, for next-WindowSize <= seq < next
}

// Observe takes the next frame's sequence number. distance is how far behind
// NextExp it stands (RFC 4737's late offset in frames), 0 for New.
func (w *SeqWindow) Observe(seq uint32) (v Verdict, distance uint64) {
	s := w.extend(seq)
	if s >= w.next {
		w.advance(s)
		return New, 0
	}
	distance = w.next - s
	if distance > WindowSize {
		return TooOld, distance
	}
	word, bit := s&windowMask/wordBits, uint64(1)<<(s%wordBits)
	if w.bitmap[word]&bit != 0 {
		return Duplicate, distance
	}
	w.bitmap[word] |= bit
	return Reordered, distance
}

// extend gives the 64-bit number nearest to what is expected next.
func (w *SeqWindow) extend(seq uint32) uint64 {
	if !w.any {
		w.any = true
		w.first, w.next = uint64(seq), uint64(seq)
		return uint64(seq)
	}
	s := w.next + uint64(int64(int32(seq-uint32(w.next))))
	if int64(s) < 0 { // before 0: in the first 2^31 frames nothing can stand behind
		s += 1 << 32
	}
	return s
}

// advance moves the window so that s is its newest, seen.
func (w *SeqWindow) advance(s uint64) {
	switch ahead := s - w.next; {
	case ahead == 0:
	case ahead >= WindowSize:
		w.bitmap = [windowWords]uint64{}
	default:
		w.clear(w.next, s)
	}
	word, bit := s&windowMask/wordBits, uint64(1)<<(s%wordBits)
	w.bitmap[word] |= bit
	w.next = s + 1
}

// clear forgets the numbers from..to-1, whose places held those a window back.
func (w *SeqWindow) clear(from, to uint64) {
	for s := from; s < to; {
		word := s & windowMask / wordBits
		if s%wordBits == 0 && to-s >= wordBits {
			w.bitmap[word] = 0
			s += wordBits
			continue
		}
		w.bitmap[word] &^= 1 << (s % wordBits)
		s++
	}
}

// Next is NextExp: the highest number seen, plus 1.
func (w *SeqWindow) Next() uint64 { return w.next }

// First is the number of the frame that was seen first.
func (w *SeqWindow) First() uint64 { return w.first }

// Ahead is how many numbers would be skipped if seq came now; 0 where it is not
// ahead, or nothing has been seen yet.
func (w *SeqWindow) Ahead(seq uint32) uint64 {
	if !w.any {
		return 0
	}
	d := int32(seq - uint32(w.next))
	if d <= 0 {
		return 0
	}
	return uint64(d)
}
