package stats

import "math/bits"

// Sampling says which frames of a stream are looked at more closely, on both
// sides alike: runs of SampleRun consecutive numbers, so that their spacing can
// be told, one at each multiple of a power of two. The zero value takes none.
type Sampling struct{ mask uint64 }

const (
	// SampleRun is the length of a run, frames.
	SampleRun = 16
	// MaxSamples is how many frames of a stream are kept at most.
	MaxSamples = 1 << 16
	// samplesPerSecond is how many runs a second a fast stream has.
	samplesPerSecond = 100
)

// NewSampling is for a stream of some rate, frames/s, and number of frames; 0:
// not known. A slow stream is looked at whole.
func NewSampling(pps float64, frames uint64) Sampling {
	every := max(SampleRun, uint64(pps/samplesPerSecond), frames/(MaxSamples/SampleRun))
	return Sampling{mask: 1<<bits.Len64(every-1) - 1}
}

// Any says that some frames are sampled.
func (s Sampling) Any() bool { return s.mask != 0 }

// Has says that frame seq is.
func (s Sampling) Has(seq uint64) bool { return s.mask != 0 && seq&s.mask < SampleRun }

// Overlaps says that one of the n frames from seq on is.
func (s Sampling) Overlaps(seq, n uint64) bool {
	return s.mask != 0 && (seq&s.mask < SampleRun || seq&s.mask+n > s.mask+1)
}

// Sample is when a frame passed, ns since the Unix epoch.
type Sample struct {
	Seq    uint64
	TimeNs int64
}
