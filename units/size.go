package units

import (
	"fmt"
	"strconv"
	"strings"
)

// FrameSize is a frame's octets from destination MAC through FCS.
type FrameSize int

const (
	FCSOctets          = 4  // frame check sequence, added and removed by the NIC
	WireOverheadOctets = 20 // preamble 7, SFD 1, inter-frame gap 12 (IEEE 802.3)

	MinFrameSize FrameSize = 64                     // the least of Ethernet
	MaxFrameSize FrameSize = 65535 + 14 + FCSOctets // the largest IP packet, untagged
)

// RFC2544Sizes are the sizes of RFC 2544, section 9.1, for Ethernet.
var RFC2544Sizes = []FrameSize{64, 128, 256, 512, 1024, 1280, 1518}

// maxSizes bounds a list: a sweep over every size of standard Ethernet.
const maxSizes = 2048

// FromSocket is the size of a frame of n octets in the socket.
func FromSocket(n int) FrameSize { return FrameSize(n + FCSOctets) }

// Socket is the number of octets handed to a socket: without the FCS.
func (s FrameSize) Socket() int { return int(s) - FCSOctets }

// Wire is the number of octet times that the frame takes on the wire.
func (s FrameSize) Wire() int { return int(s) + WireOverheadOctets }

// ParseSizes reads one size ("64"), a list ("64,128,512"), a range with a step
// ("64-1518:128": 64, 192, ... 1472; the step is 1 if not given), "rfc2544", or
// a mixture of them, in the order given. It refuses what is not MinFrameSize to
// MaxFrameSize, and more than 2048 sizes.
func ParseSizes(text string) ([]FrameSize, error) {
	var sizes []FrameSize
	for part := range strings.SplitSeq(text, ",") {
		more, err := parseSizePart(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("frame size %q: %w", text, err)
		}
		if sizes = append(sizes, more...); len(sizes) > maxSizes {
			return nil, fmt.Errorf("frame size %q: more than %d sizes", text, maxSizes)
		}
	}
	return sizes, nil
}

func parseSizePart(part string) ([]FrameSize, error) {
	switch strings.ToLower(part) {
	case "rfc2544":
		return RFC2544Sizes, nil
	case "imix":
		return nil, fmt.Errorf("mixed sizes are not supported yet: give sizes such as 64,512,1518")
	}
	lowText, rest, isRange := strings.Cut(part, "-")
	low, err := parseSize(lowText)
	if err != nil || !isRange {
		return []FrameSize{low}, err
	}
	highText, stepText, hasStep := strings.Cut(rest, ":")
	high, err := parseSize(highText)
	if err != nil {
		return nil, err
	}
	if high < low {
		return nil, fmt.Errorf("%d-%d runs backwards", low, high)
	}
	step := uint64(1)
	if hasStep {
		if step, err = strconv.ParseUint(stepText, 10, 16); err != nil || step == 0 {
			return nil, fmt.Errorf("step %q: want a whole number above 0, as in 64-1518:128", stepText)
		}
	}
	var sizes []FrameSize
	for s := low; s <= high && len(sizes) <= maxSizes; s += FrameSize(step) {
		sizes = append(sizes, s)
	}
	return sizes, nil
}

func parseSize(text string) (FrameSize, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of octets, as in 64 or 64-1518:128", text)
	}
	s := FrameSize(n)
	if n > uint64(MaxFrameSize) || s < MinFrameSize {
		return 0, fmt.Errorf("%d octets: want %d to %d, destination MAC through FCS", n, MinFrameSize, MaxFrameSize)
	}
	return s, nil
}
