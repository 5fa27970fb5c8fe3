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
	TooOld                   // further behind than WindowSize: late or a duplicate, which cannot be told
)

// SeqWindow follows the sequence numbers of one stream. It extends them from 32
// to 64 bits: of all numbers that end in the 32 bits it takes the one nearest to
// NextExp, so that a stream may lose up to 2^31-1 frames in a row. The first
// number is taken as it is. The zero value is ready. Owned by the queue
// goroutine.
type SeqWindow struct {
	next   uint64              // NextExp of RFC 4737: the highest number seen, plus 1; 0 before the first
	first  uint64              // the first number seen
	bitmap [windowWords]uint64 // bit seq mod WindowSize: seq was seen, for next-WindowSize <= seq < next
}

// SeenWindow is a window that tells First and Next of a stream that another has
// followed. It takes no more numbers.
func SeenWindow(first, next uint64) SeqWindow { return SeqWindow{first: first, next: next} }

// Observe takes the next frame's sequence number. distance is how far behind
// NextExp it stands, 0 for New.
func (w *SeqWindow) Observe(seq uint32) (v Verdict, distance uint64) {
	ahead := w.ahead(seq)
	if ahead < 0 {
		return w.behind(uint64(-ahead))
	}
	if w.next == 0 {
		w.first = uint64(seq)
	}
	if ahead > 0 {
		w.skip(uint64(ahead))
	}
	word, bit := place(w.next)
	w.bitmap[word] |= bit
	w.next++
	return New, 0
}

// behind judges the number that stands distance behind NextExp. Where that is
// before 0 (the receiver came in after a wrap) the arithmetic wraps, and holds.
func (w *SeqWindow) behind(distance uint64) (Verdict, uint64) {
	if distance > WindowSize {
		return TooOld, distance
	}
	word, bit := place(w.next - distance)
	if w.bitmap[word]&bit != 0 {
		return Duplicate, distance
	}
	w.bitmap[word] |= bit
	return Reordered, distance
}

// ahead is the distance from NextExp to the number that seq stands for.
func (w *SeqWindow) ahead(seq uint32) int64 {
	if w.next == 0 {
		return int64(seq)
	}
	return int64(int32(seq - uint32(w.next)))
}

// skip moves the window on by n numbers, which are missing so far: it forgets
// those a window back, whose places they take.
func (w *SeqWindow) skip(n uint64) {
	from := w.next
	w.next += n
	if n >= WindowSize {
		w.bitmap = [windowWords]uint64{}
		return
	}
	for n > 0 {
		word, lowest := place(from)
		m := min(n, wordBits-from%wordBits) // so many in this word
		w.bitmap[word] &^= lowest<<m - lowest
		from += m
		n -= m
	}
}

// place is where in the bitmap s is.
func place(s uint64) (word int, bit uint64) {
	return int(s & windowMask / wordBits), 1 << (s % wordBits)
}

// Next is NextExp: the highest number seen, plus 1; 0 before the first frame.
func (w *SeqWindow) Next() uint64 { return w.next }

// First is the number of the frame that was seen first.
func (w *SeqWindow) First() uint64 { return w.first }

// Ahead is how far beyond Next seq stands: the numbers that would be missing if
// it came now. 0 where it is not ahead. A receiver asks before it believes a
// frame that may be damaged.
func (w *SeqWindow) Ahead(seq uint32) uint64 { return uint64(max(0, w.ahead(seq))) }
