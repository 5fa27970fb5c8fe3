package units

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		text string
		want Rate
		out  string // "": the same as text
	}{
		{"max", Max, ""},
		{" MAX ", Max, "max"},
		{"1500", Rate{ratePPS, 1500 * micro}, "1.5kpps"},
		{"250kpps", Rate{ratePPS, 250_000 * micro}, ""},
		{"250k", Rate{ratePPS, 250_000 * micro}, "250kpps"},
		{"1.488Mpps", Rate{ratePPS, 1_488_000 * micro}, ""},
		{"1.488 mPPS", Rate{ratePPS, 1_488_000 * micro}, "1.488Mpps"},
		{"0.5pps", Rate{ratePPS, micro / 2}, ""},
		{"10%", Rate{ratePercent, 10 * micro}, ""},
		{"100 %", Rate{ratePercent, 100 * micro}, "100%"},
		{"0.000001%", Rate{ratePercent, 1}, ""},
		{"3Gbps", Rate{rateL2, 3e9 * micro}, ""},
		{"3GbpsL2", Rate{rateL2, 3e9 * micro}, "3Gbps"},
		{"10GbpsL1", Rate{rateL1, 10e9 * micro}, ""},
		{"10Tbps", Rate{rateL2, maxMicro}, ""},
	} {
		got, err := ParseRate(c.text)
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.text, got, err, c.want)
		}
		out := c.out
		if out == "" {
			out = c.text
		}
		if got.String() != out {
			t.Errorf("%q: canonical text %q, want %q", c.text, got, out)
		}
	}
}

func TestParseRateRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "0", "0%", "0.0Gbps", "-1", "+1", "-10%", "NaN", "Inf", "1e6", "0x10", "1_000",
		".", "1..2", "1.2.3", "k", "kpps", "pps", "%", "bps", "10kk", "10kmpps", "10 k pps x", "10%%", "10k%",
		"100.000001%", "101%", "0.0000001", "0.0000001%", "10.0000000000001Tbps", "11Tbps", "11Tpps",
		"99999999999999999999999999", strings.Repeat("9", 1000), "10G", "1.5T", "max max", "10Gbit", "10GbpsL3", "１", "10,5Mpps",
	} {
		r, err := ParseRate(text)
		if err == nil {
			t.Errorf("%q was read as %v", text, r)
			continue
		}
		if !strings.Contains(err.Error(), "1.488Mpps") || r != (Rate{}) {
			t.Errorf("%q: %v, %v: want no rate, and examples in the error", text, r, err)
		}
	}
}

// The examples that the errors give must be right themselves.
func TestRateExamplesParse(t *testing.T) {
	for _, text := range strings.FieldsFunc(rateExamples, func(r rune) bool { return strings.ContainsRune(", ()", r) }) {
		switch text {
		case "want", "or", "L2":
			continue
		}
		if _, err := ParseRate(text); err != nil {
			t.Error(err)
		}
	}
}

func drawRate(t *rapid.T) Rate {
	r := Rate{kind: rapid.SampledFrom([]rateKind{ratePPS, ratePercent, rateL2, rateL1}).Draw(t, "kind")}
	top := uint64(maxMicro)
	if r.kind == ratePercent {
		top = 100 * micro
	}
	// Digits drawn first: else nearly all would be of the largest magnitude.
	limit := uint64(1)
	for range rapid.IntRange(0, 19).Draw(t, "digits") {
		limit *= 10
	}
	r.micro = rapid.Uint64Range(1, min(limit, top)).Draw(t, "micro")
	return r
}

func TestRateTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRate(t)
		back, err := ParseRate(r.String())
		if err != nil || back != r {
			t.Fatalf("%+v -> %q -> %+v, %v", r, r, back, err)
		}
	})
}

// exactPerNs is the definition, in fractions of any size: L1 rate = (size + 20)
// x 8 x frames/s, L2 rate = size x 8 x frames/s.
func exactPerNs(r Rate, size FrameSize, linkBps uint64) *big.Rat {
	v := new(big.Rat).SetFrac(new(big.Int).SetUint64(r.micro), big.NewInt(1e6))
	per := int64(1)
	switch r.kind {
	case ratePercent:
		v.Mul(v, new(big.Rat).SetInt(new(big.Int).SetUint64(linkBps)))
		per = 100 * 8 * (int64(size) + 20)
	case rateL1:
		per = 8 * (int64(size) + 20)
	case rateL2:
		per = 8 * int64(size)
	}
	return v.Mul(v, big.NewRat(1, per*1e9))
}

func TestPPSAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRate(t)
		size := FrameSize(rapid.IntRange(int(MinFrameSize), int(MaxFrameSize)).Draw(t, "size"))
		link := rapid.Uint64Range(1, 1.6e12).Draw(t, "link")
		f, err := r.PPS(size, link)
		if err != nil {
			t.Fatal(err)
		}
		if f.Num == 0 || f.Den == 0 || f.Num>>maxBits != 0 || f.Den>>maxBits != 0 {
			t.Fatalf("%v of size %d: %+v does not fit", r, size, f)
		}
		want := exactPerNs(r, size, link)
		if want.Num().BitLen() <= maxBits && want.Denom().BitLen() <= maxBits {
			if want.Num().Uint64() != f.Num || want.Denom().Uint64() != f.Den {
				t.Fatalf("%v of size %d: %+v, want %v exactly", r, size, f, want)
			}
			return
		}
		if want.Cmp(big.NewRat(1, 1<<61)) < 0 {
			return // less than a frame in 73 years
		}
		got := new(big.Rat).SetFrac(new(big.Int).SetUint64(f.Num), new(big.Int).SetUint64(f.Den))
		off := new(big.Rat).Sub(got, want)
		if off.Abs(off).Cmp(new(big.Rat).Mul(want, big.NewRat(1, 1e15))) > 0 {
			t.Fatalf("%v of size %d: %+v is off by %v of %v", r, size, f, off, want)
		}
	})
}

// The frame rates of 10 Mbit/s Ethernet in RFC 2544, appendix B.
var rfc2544Rates = map[FrameSize]int{64: 14880, 128: 8445, 256: 4528, 512: 2349, 768: 1586, 1024: 1197, 1280: 961, 1518: 812}

func TestLineRateRFC2544(t *testing.T) {
	full, err := ParseRate("100%")
	if err != nil {
		t.Fatal(err)
	}
	l1, err := ParseRate("10MbpsL1")
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range rfc2544Rates {
		if got := LineRate(size, 10e6); int(got) != want {
			t.Errorf("size %d: line rate %v frames/s, RFC 2544 says %d", size, got, want)
		}
		for _, r := range []Rate{full, l1} {
			if f, err := r.PPS(size, 10e6); err != nil || int(f.PerSecond()) != want {
				t.Errorf("%v, size %d: %v frames/s, %v; RFC 2544 says %d", r, size, f.PerSecond(), err, want)
			}
		}
	}
}

func TestPPSLinkSpeed(t *testing.T) {
	half, _ := ParseRate("50%")
	if _, err := half.PPS(64, 0); !errors.Is(err, ErrLinkSpeed) || !half.NeedsLink() {
		t.Errorf("50%% of an unknown link: %v, NeedsLink %v", err, half.NeedsLink())
	}
	for _, text := range []string{"1500", "3Gbps", "10GbpsL1", "max"} {
		r, err := ParseRate(text)
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.PPS(64, 0)
		if err != nil || r.NeedsLink() {
			t.Errorf("%s needs no link: %v, NeedsLink %v", text, err, r.NeedsLink())
		}
		if r.IsMax() != (text == "max") || (f == FrameRate{}) != r.IsMax() {
			t.Errorf("%s: IsMax %v, rate %+v", text, r.IsMax(), f)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"max", "1500", "250kpps", "1.488Mpps", "10%", "3Gbps", "10GbpsL1", "-1", "1e9", "10G", "0.0000001", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRate(text)
		if err != nil {
			return
		}
		if back, err := ParseRate(r.String()); err != nil || back != r {
			t.Fatalf("%q: %+v -> %q -> %+v, %v", text, r, r, back, err)
		}
		if fr, err := r.PPS(64, 1e9); err != nil || (fr.Num == 0) != r.IsMax() {
			t.Fatalf("%q: %v frames %+v, %v", text, r, fr, err)
		}
	})
}
