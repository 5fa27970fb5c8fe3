package stats

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowWindow is SeqWindow as the RFCs put it: it forgets nothing, and finds the
// 64-bit number by trying them.
type slowWindow struct {
	seen map[int64]bool
	next int64 // NextExp
}

func (w *slowWindow) extend(seq uint32) int64 {
	if len(w.seen) == 0 {
		return int64(seq)
	}
	best := int64(math.MaxInt64)
	for turn := w.next>>32 - 1; turn <= w.next>>32+1; turn++ {
		s := turn<<32 + int64(seq)
		if d := dist(s, w.next); d < dist(best, w.next) { // of two as near, the lower
			best = s
		}
	}
	return best
}

func dist(a, b int64) int64 { return max(a-b, b-a) }

func (w *slowWindow) observe(seq uint32) (Verdict, uint64) {
	s := w.extend(seq)
	again := w.seen[s]
	if w.seen == nil {
		w.seen = map[int64]bool{}
	}
	w.seen[s] = true
	switch behind := w.next - s; {
	case behind <= 0:
		w.next = s + 1
		return New, 0
	case behind > WindowSize:
		return TooOld, uint64(behind)
	case again:
		return Duplicate, uint64(behind)
	default:
		return Reordered, uint64(behind)
	}
}

// step is what comes next in a stream, relative to what has come.
type step struct {
	kind byte
	arg  uint32
}

const stepKinds = 9

// seqs are the sequence numbers of the step, given NextExp.
func (s step) seqs(next uint32) (seq uint32, count int) {
	switch s.kind % stepKinds {
	case 0: // in order
		return next, int(s.arg % 200)
	case 1: // some lost
		return next + s.arg%100, 1
	case 2: // late, or again
		return next - 1 - s.arg%70, 1
	case 3: // likewise, from anywhere in the window
		return next - 1 - s.arg%WindowSize, 1
	case 4: // about a window late
		return next - WindowSize - 4 + s.arg%8, 1
	case 5: // about a window lost
		return next + WindowSize - 4 + s.arg%8, 1
	case 6: // any number of words of the window lost
		return next + s.arg%(WindowSize+100), 1
	case 7: // about as far as a number can be extended
		return next + 1<<31 - 4 + s.arg%8, 1
	default: // anything
		return s.arg, 1
	}
}

// checkStream holds every answer for a stream against the slow twin.
func checkStream(t rapid.TB, first uint32, steps []step) {
	var w SeqWindow
	var slow slowWindow
	observe := func(seq uint32) {
		if want := max(0, slow.extend(seq)-slow.next); w.Ahead(seq) != uint64(want) {
			t.Fatalf("seq %d before NextExp %d: ahead %d, want %d", seq, slow.next, w.Ahead(seq), want)
		}
		wantV, wantD := slow.observe(seq)
		if v, d := w.Observe(seq); v != wantV || d != wantD || w.Next() != uint64(slow.next) {
			t.Fatalf("seq %d: verdict %d at %d, then NextExp %d; want %d at %d, then %d", seq, v, d, w.Next(), wantV, wantD, slow.next)
		}
	}
	observe(first)
	for _, s := range steps {
		for seq, n := s.seqs(uint32(slow.next)); n > 0; n-- {
			observe(seq)
			seq++
		}
	}
	if w.First() != uint64(first) {
		t.Fatalf("first %d, want %d", w.First(), first)
	}
}

func TestSeqWindowAgainstSlowTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(math.MaxUint32-300, math.MaxUint32), rapid.Uint32()).Draw(t, "first")
		checkStream(t, first, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{rapid.ByteRange(0, stepKinds-1).Draw(t, "kind"), rapid.Uint32().Draw(t, "arg")}
		}), 0, 200).Draw(t, "steps"))
	})
}

func FuzzSeqWindow(f *testing.F) {
	f.Add(uint32(0), []byte{0, 0, 0, 0, 100, 3, 0, 0, 0, 50, 5, 0, 0, 0, 4, 3, 0, 0, 0, 9})
	f.Add(uint32(math.MaxUint32-2), []byte{0, 0, 0, 0, 9, 2, 0, 0, 0, 4, 4, 0, 0, 0, 3})
	f.Add(uint32(5), []byte{8, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 3, 7, 0, 0, 0, 4})
	f.Fuzz(func(t *testing.T, first uint32, data []byte) {
		var steps []step
		for ; len(data) >= 5 && len(steps) < 1000; data = data[5:] {
			steps = append(steps, step{data[0], binary.BigEndian.Uint32(data[1:])})
		}
		checkStream(t, first, steps)
	})
}

// Named streams: what each frame is, with its distance.
func TestSeqWindow(t *testing.T) {
	const size = WindowSize
	type frame struct {
		seq      uint32
		verdict  Verdict
		distance uint64
	}
	for _, c := range []struct {
		name string
		in   []frame
		next uint64
	}{
		{"in order", []frame{{0, New, 0}, {1, New, 0}, {2, New, 0}}, 3},
		{"one late by four", []frame{{1, New, 0}, {2, New, 0}, {3, New, 0}, {5, New, 0}, {6, New, 0}, {7, New, 0}, {8, New, 0}, {4, Reordered, 5}, {9, New, 0}}, 10},
		{"two overtaken by one", []frame{{1, New, 0}, {4, New, 0}, {2, Reordered, 3}, {3, Reordered, 2}, {5, New, 0}}, 6},
		// RFC 4737, section 3.3: of a frame that comes twice the first copy alone has an order.
		{"late, twice", []frame{{1, New, 0}, {3, New, 0}, {2, Reordered, 2}, {2, Duplicate, 2}, {3, Duplicate, 1}}, 4},
		{"before the first", []frame{{10, New, 0}, {9, Reordered, 2}, {0, Reordered, 11}, {9, Duplicate, 2}, {10, Duplicate, 1}}, 11},
		{"oldest in the window", []frame{{0, New, 0}, {size - 1, New, 0}, {0, Duplicate, size}, {size, New, 0}, {0, TooOld, size + 1}, {1, Reordered, size}}, size + 1},
		{"a window lost", []frame{{0, New, 0}, {size + 1, New, 0}, {0, TooOld, size + 2}, {2, Reordered, size}, {size, Reordered, 2}}, size + 2},
		{"a window lost but one", []frame{{0, New, 0}, {1, New, 0}, {size, New, 0}, {1, Duplicate, size}, {2, Reordered, size - 1}}, size + 1},
		{"wrap", []frame{{math.MaxUint32 - 1, New, 0}, {0, New, 0}, {math.MaxUint32, Reordered, 2}, {math.MaxUint32, Duplicate, 2}, {math.MaxUint32 - 1, Duplicate, 3}, {0, Duplicate, 1}, {1, New, 0}}, 1<<32 + 2},
		{"late over the wrap, none seen before it", []frame{{3, New, 0}, {math.MaxUint32, Reordered, 5}, {math.MaxUint32, Duplicate, 5}, {4, New, 0}}, 5},
		{"as far ahead as can be", []frame{{0, New, 0}, {1 << 31, New, 0}, {0, New, 0}}, 1<<32 + 1},
		{"further", []frame{{0, New, 0}, {1<<31 + 1, TooOld, 1 << 31}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w SeqWindow
			for i, f := range c.in {
				if v, d := w.Observe(f.seq); v != f.verdict || d != f.distance {
					t.Errorf("frame %d, seq %d: verdict %d at %d, want %d at %d", i, f.seq, v, d, f.verdict, f.distance)
				}
			}
			if w.Next() != c.next {
				t.Errorf("NextExp %d, want %d", w.Next(), c.next)
			}
		})
	}
}

// A gap in a long stream leaves its own frames missing and no others, wherever
// it lies in the bitmap: nothing of a window back is taken for them.
func TestSeqWindowGap(t *testing.T) {
	var w SeqWindow
	for _, gap := range []uint64{1, 2, 63, 64, 65, 127, 128, 129, 1000, WindowSize - 2, WindowSize - 1} {
		for offset := range uint64(wordBits) {
			for end := w.Next() + WindowSize; w.Next() < end || w.Next()%wordBits != offset; {
				w.Observe(uint32(w.Next()))
			}
			from := w.Next()
			w.Observe(uint32(from + gap))
			for s := w.Next() - WindowSize; s < w.Next(); s++ {
				want := Duplicate
				if s >= from && s < from+gap {
					want = Reordered
				}
				if v, _ := w.Observe(uint32(s)); v != want {
					t.Fatalf("gap of %d at bit %d: frame %d of it has verdict %d, want %d", gap, offset, int64(s-from), v, want)
				}
			}
		}
	}
}

// What the result rests on: for a stream that was sent once from 0, with frames
// lost, late by less than the window, and again, each frame that arrived counts
// once, and what is missing up to NextExp was lost.
func TestSeqWindowAccounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.IntRange(1, 3000).Draw(t, "sent")
		type arrival struct{ seq, at int }
		var wire []arrival
		copies := map[int]int{}
		highest := -1
		for seq := range sent {
			n := rapid.SampledFrom([]int{0, 1, 1, 1, 1, 1, 1, 2, 3}).Draw(t, "copies")
			for range n {
				wire = append(wire, arrival{seq, seq + rapid.IntRange(0, 50).Draw(t, "delay")})
			}
			if n > 0 {
				copies[seq], highest = n, seq
			}
		}
		slices.SortStableFunc(wire, func(a, b arrival) int { return a.at - b.at })
		var w SeqWindow
		var n [4]int
		for _, a := range wire {
			v, _ := w.Observe(uint32(a.seq))
			n[v]++
		}
		if n[TooOld] != 0 || n[New]+n[Reordered] != len(copies) || n[Duplicate] != len(wire)-len(copies) || w.Next() != uint64(highest+1) {
			t.Fatalf("%d different of %d arrived, up to %d; counted %v (new, reordered, duplicate, too old), NextExp %d", len(copies), len(wire), highest, n, w.Next())
		}
	})
}
