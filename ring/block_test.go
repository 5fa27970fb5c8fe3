package ring_test

import (
	"slices"
	"testing"

	"pktgen/ring"
)

// chain is a block whose octet at each offset is that of the next frame; a frame
// is its own offset. Offset 0 leads nowhere.
type chain struct{}

func (chain) Frame(block []byte, off int, f *ring.Frame) (next int, ok bool) {
	if off <= 0 || off >= len(block) {
		return 0, false
	}
	f.WireLen = off
	return int(block[off]), true
}

func TestBlock(t *testing.T) {
	for _, c := range []struct {
		name         string
		block        []byte
		first, count int
		want         []int
		malformed    bool
	}{
		{"all frames", []byte{0, 3, 0, 2}, 1, 3, []int{1, 3, 2}, false},
		{"no frame", []byte{0, 1}, 1, 0, nil, false},
		{"fewer than the block has", []byte{0, 2, 3, 1}, 1, 2, []int{1, 2}, false},
		{"the last one leads nowhere", []byte{0, 9}, 1, 1, []int{1}, false},
		{"leads out in the middle", []byte{0, 2, 9, 1}, 1, 4, []int{1, 2}, true},
		{"begins outside", []byte{0, 1}, 7, 2, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b ring.Block
			b.Load(chain{}, []byte{0, 1}, 5, 1) // what was there before leaves no trace
			var f ring.Frame
			b.Next(&f)
			b.Load(chain{}, c.block, c.first, c.count)
			if b.Len() != c.count {
				t.Errorf("Len() = %d, want %d", b.Len(), c.count)
			}
			var got []int
			for b.Next(&f) {
				got = append(got, f.WireLen)
			}
			if !slices.Equal(got, c.want) || b.Malformed() != c.malformed {
				t.Errorf("frames %v, malformed %v; want %v, %v", got, b.Malformed(), c.want, c.malformed)
			}
			if b.Next(&f) {
				t.Error("a frame behind the end")
			}
		})
	}
}
