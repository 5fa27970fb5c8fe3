package ring

// Block is a cursor over the frames that arrived together. The backend makes
// one a ring and loads it anew for each block, so it costs no allocation.
type Block struct {
	walker Walker
	mem    []byte
	off    int
	left   int
	total  int
	bad    bool

	// Index is the backend's own name for the block.
	Index int
}

// Load points the cursor at the first of count frames in mem, at octet first.
// For backends.
func (b *Block) Load(w Walker, mem []byte, first, count int) {
	b.walker, b.mem, b.off, b.left, b.total, b.bad = w, mem, first, count, count, false
}

// Next reads the next frame into f; false at the end of the block. A block
// whose offsets lead out of it ends there and is Malformed.
func (b *Block) Next(f *Frame) bool {
	if b.left == 0 {
		return false
	}
	next, ok := b.walker.Frame(b.mem, b.off, f)
	if !ok {
		b.left, b.bad = 0, true
		return false
	}
	b.left--
	b.off = next
	return true
}

// Len is the number of frames that the kernel says the block holds.
func (b *Block) Len() int { return b.total }

// Malformed says that the kernel's offsets did not fit the block.
func (b *Block) Malformed() bool { return b.bad }
