package units

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// Rate is a rate as a user asks for it. The zero value is Max. Comparable.
type Rate struct {
	kind  rateKind
	micro uint64 // frames/s, bit/s or percent, in millionths
}

type rateKind uint8

const (
	rateMax rateKind = iota
	ratePPS
	ratePercent
	rateL2
	rateL1
)

// Max is as fast as it goes.
var Max = Rate{}

// ErrLinkSpeed: a percentage of a link whose speed is not known.
var ErrLinkSpeed = errors.New("the link speed is not known: give the rate in frames/s or bit/s")

const (
	rateExamples = "want max, 1500, 250kpps, 1.488Mpps, 10%, 3Gbps (L2) or 10GbpsL1"
	micro        = 1_000_000
	// maxMicro bounds a rate: 10^13 frames/s or bit/s, beyond any link (IEEE
	// 802.3dj ends at 1.6 Tbit/s), and within 64 bits in millionths.
	maxMicro = 10_000_000_000_000 * micro
)

// suffixes of a rate, longest first where one ends another.
var suffixes = []struct {
	text string
	kind rateKind
}{
	{"bpsl1", rateL1}, {"bpsl2", rateL2}, {"bps", rateL2}, {"pps", ratePPS}, {"%", ratePercent}, {"", ratePPS},
}

var prefixes = map[string]int64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

// ParseRate reads "max", frames a second ("1500", "250kpps", "1.488Mpps"), a
// percentage of the link speed ("10%"), or bits a second ("3Gbps" is L2,
// "10GbpsL1" L1). SI prefixes are decimal, letters of either case: m is mega.
// A rate is above 0, at most 10^13, a whole number of millionths of a frame/s,
// bit/s or percent, and at most 100%. A bare G or T ("10G") is refused: who
// types it means bits a second, and it would be read as frames.
func ParseRate(text string) (Rate, error) {
	lower := strings.ToLower(strings.TrimSpace(text))
	if lower == "max" {
		return Max, nil
	}
	fail := func(why string) (Rate, error) {
		return Rate{}, fmt.Errorf("rate %q: %s; %s", text, why, rateExamples)
	}
	if strings.Contains(text, "Bps") {
		return fail("bits a second are bps; octets a second are no unit here")
	}
	for _, s := range suffixes {
		number, ok := strings.CutSuffix(lower, s.text)
		if !ok {
			continue
		}
		digits := strings.TrimRight(number, "kmgt")
		factor, ok := prefixes[number[len(digits):]]
		if !ok || (s.kind == ratePercent && factor != 1) {
			return fail("not a number with a unit")
		}
		if s.text == "" && factor >= 1e9 {
			return fail("frames or bits a second? Give the unit")
		}
		value, ok := parseDecimal(strings.TrimSpace(digits))
		if !ok {
			return fail("not a number with a unit")
		}
		value.Mul(value, big.NewRat(factor*micro, 1))
		if !value.IsInt() || value.Sign() <= 0 {
			return fail("want more than 0, in steps of a millionth")
		}
		if value.Num().Cmp(new(big.Int).SetUint64(maxMicro)) > 0 {
			return fail("too large")
		}
		r := Rate{kind: s.kind, micro: value.Num().Uint64()}
		if r.kind == ratePercent && r.micro > 100*micro {
			return fail("more than 100 % of the link")
		}
		return r, nil
	}
	return fail("not a number with a unit")
}

// parseDecimal reads digits with at most one point: no sign, no exponent.
func parseDecimal(s string) (*big.Rat, bool) {
	if s == "" || s == "." || len(s) > 32 || strings.Count(s, ".") > 1 || strings.Trim(s, "0123456789.") != "" {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// IsMax says that the rate is as fast as it goes.
func (r Rate) IsMax() bool { return r.kind == rateMax }

// NeedsLink says that the rate is a share of the link speed.
func (r Rate) NeedsLink() bool { return r.kind == ratePercent }

// String is the text that ParseRate reads back to the same value.
func (r Rate) String() string {
	switch r.kind {
	case ratePPS:
		return siText(r.micro) + "pps"
	case ratePercent:
		return decimalText(r.micro, 1) + "%"
	case rateL2:
		return siText(r.micro) + "bps"
	case rateL1:
		return siText(r.micro) + "bpsL1"
	}
	return "max"
}

func siText(v uint64) string {
	for _, p := range []struct {
		scale  uint64
		prefix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.scale*micro {
			return decimalText(v, p.scale) + p.prefix
		}
	}
	return decimalText(v, 1)
}

// decimalText is v millionths divided by scale, exact.
func decimalText(v, scale uint64) string {
	r := new(big.Rat).SetFrac(new(big.Int).SetUint64(v), new(big.Int).SetUint64(scale*micro))
	s := strings.TrimRight(r.FloatString(18), "0")
	return strings.TrimSuffix(s, ".")
}

// FrameRate is Num frames every Den ns, both below 2^62. The zero value is as
// fast as it goes. Comparable.
type FrameRate struct{ Num, Den uint64 }

// PPS is the frame rate for frames of a size, above 0, on a link of linkBps
// bit/s (0: not known). It is exact where 62 bits hold it, as they do for
// frames/s up to 10^12 and for what people ask of common links; else to 1 in
// 10^15. It fails with ErrLinkSpeed where a percentage needs the link speed.
func (r Rate) PPS(size FrameSize, linkBps uint64) (FrameRate, error) {
	// frames/ns = micro / 10^6 / octets / 8 / 10^9
	num, den := new(big.Int).SetUint64(r.micro), big.NewInt(micro)
	times := func(z *big.Int, v uint64) { z.Mul(z, new(big.Int).SetUint64(v)) }
	times(den, 1e9)
	switch r.kind {
	case rateMax:
		return FrameRate{}, nil
	case ratePercent:
		if linkBps == 0 {
			return FrameRate{}, ErrLinkSpeed
		}
		times(num, linkBps)
		times(den, 100)
		times(den, 8*uint64(size.Wire()))
	case rateL1:
		times(den, 8*uint64(size.Wire()))
	case rateL2:
		times(den, 8*uint64(size))
	}
	return reduce(num, den), nil
}

// maxBits bounds both parts of a FrameRate, so that elapsed ns x Num fits the
// 128 bits that the pacer divides.
const maxBits = 62

// reduce cancels the fraction. One that still does not fit is rounded, its
// smaller part to a power of two, to less than 1 in 10^15.
func reduce(num, den *big.Int) FrameRate {
	gcd := new(big.Int).GCD(nil, nil, num, den)
	num.Div(num, gcd)
	den.Div(den, gcd)
	if max(num.BitLen(), den.BitLen()) <= maxBits {
		return FrameRate{num.Uint64(), den.Uint64()}
	}
	if num.Cmp(den) > 0 {
		one, q := scaledQuotient(num, den)
		return FrameRate{Num: q, Den: one}
	}
	one, q := scaledQuotient(den, num)
	return FrameRate{Num: one, Den: q}
}

// scaledQuotient is q/one = a/b, for a >= b, with q of maxBits-1 to maxBits
// bits, or the largest such q when the quotient is beyond it (a frame in a century).
func scaledQuotient(a, b *big.Int) (one, q uint64) {
	shift := maxBits - 1 - (a.BitLen() - b.BitLen())
	if shift < 0 {
		return 1, 1<<maxBits - 1
	}
	z := new(big.Int).Lsh(a, uint(shift))
	return 1 << shift, z.Div(z, b).Uint64()
}

// PerSecond is the rate in frames/s; 0 for as fast as it goes.
func (f FrameRate) PerSecond() float64 {
	if f.Num == 0 {
		return 0
	}
	return float64(f.Num) / float64(f.Den) * 1e9
}

// LineRate is the frames/s of a link of linkBps bit/s that is 100 % full.
func LineRate(size FrameSize, linkBps uint64) float64 {
	return float64(linkBps) / float64(8*size.Wire())
}
