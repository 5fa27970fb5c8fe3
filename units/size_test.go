package units

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFrameSize(t *testing.T) {
	// RFC 2544: a frame of 64 octets is 60 octets and the FCS, and takes 84
	// octet times of the wire.
	s := FrameSize(64)
	if s.Socket() != 60 || s.Wire() != 84 || FromSocket(60) != s {
		t.Errorf("64: socket %d, wire %d; 60 in the socket is size %d", s.Socket(), s.Wire(), FromSocket(60))
	}
}

func TestParseSizes(t *testing.T) {
	for text, want := range map[string][]FrameSize{
		"64":               {64},
		"64, 128,512":      {64, 128, 512},
		"512,64,64":        {512, 64, 64},
		"64-66":            {64, 65, 66},
		"64-320:128":       {64, 192, 320},
		"64-300:128":       {64, 192},
		"64-64":            {64},
		"rfc2544":          {64, 128, 256, 512, 1024, 1280, 1518},
		"RFC2544,9018":     {64, 128, 256, 512, 1024, 1280, 1518, 9018},
		"64-128:64,65553":  {64, 128, 65553},
		"64-1518:128,1518": {64, 192, 320, 448, 576, 704, 832, 960, 1088, 1216, 1344, 1472, 1518},
	} {
		if got, err := ParseSizes(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestParseSizesRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"":               "number",
		"64,":            "number",
		"64,,128":        "number",
		"x":              "number",
		"-64":            "number",
		"+64":            "number",
		"64.5":           "number",
		"1e3":            "number",
		"63":             "64 to",
		"0":              "64 to",
		"65554":          "64 to",
		"99999999999":    "number",
		"128-64":         "backwards",
		"64-1518:0":      "step",
		"64-1518:-1":     "step",
		"64-1518:":       "step",
		"64-1518:70000":  "step",
		"64-":            "number",
		"64-128-256":     "number",
		"64:128":         "number",
		"64-65553":       "more than 2048",
		"64-2111,64":     "more than 2048",
		"imix":           "not supported",
		"64-1518:128:12": "step",
	} {
		got, err := ParseSizes(text)
		if err == nil || got != nil {
			t.Errorf("%q was read as %v", text, got)
		} else if !strings.Contains(err.Error(), why) || !strings.HasPrefix(err.Error(), "frame size \"") {
			t.Errorf("%q: %q does not say %q", text, err, why)
		}
	}
	if got, err := ParseSizes("64-2111"); err != nil || len(got) != maxSizes {
		t.Errorf("2048 sizes: %d, %v", len(got), err)
	}
}

// The result is the caller's own.
func TestParseSizesDoesNotAlias(t *testing.T) {
	got, err := ParseSizes("rfc2544")
	if err != nil {
		t.Fatal(err)
	}
	got[0] = 9999
	if RFC2544Sizes[0] != 64 {
		t.Error("writing to the result changed RFC2544Sizes")
	}
}

func TestSizeRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(int(MinFrameSize), int(MaxFrameSize))
		low, high := size.Draw(t, "low"), size.Draw(t, "high")
		step := rapid.IntRange(1, 65535).Draw(t, "step")
		if high < low {
			low, high = high, low
		}
		got, err := ParseSizes(fmt.Sprintf("%d-%d:%d", low, high, step))
		var want []FrameSize
		for s := low; s <= high; s += step {
			want = append(want, FrameSize(s))
		}
		if len(want) > maxSizes {
			if err == nil {
				t.Fatalf("%d sizes were taken", len(want))
			}
			return
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
	})
}

func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"64", "64,128,512", "64-1518:128", "rfc2544", "imix", "64-65553", "1518-64", ",", "64-1518:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sizes, err := ParseSizes(text)
		if err != nil {
			return
		}
		if len(sizes) == 0 || len(sizes) > maxSizes {
			t.Fatalf("%q: %d sizes", text, len(sizes))
		}
		for _, s := range sizes {
			if s < MinFrameSize || s > MaxFrameSize {
				t.Fatalf("%q: size %d", text, s)
			}
		}
	})
}
