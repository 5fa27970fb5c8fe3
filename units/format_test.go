package units

import (
	"math"
	"testing"
	"time"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{FormatCount(0), "0"},
		{FormatCount(999), "999"},
		{FormatCount(1000), "1,000"},
		{FormatCount(500000), "500,000"},
		{FormatCount(math.MaxUint64), "18,446,744,073,709,551,615"},

		{FormatPPS(0), "0 pps"},
		{FormatPPS(0.25), "0.25 pps"},
		{FormatPPS(999), "999 pps"},
		{FormatPPS(999.96), "1 kpps"},
		{FormatPPS(1488095.238), "1.488 Mpps"},
		{FormatPPS(14880952.38), "14.88 Mpps"},
		{FormatPPS(148809523.8), "148.8 Mpps"},
		{FormatPPS(math.NaN()), "- pps"},
		{FormatPPS(math.Inf(1)), "- pps"},

		{FormatBps(9.87e9), "9.87 Gbit/s"},
		{FormatBps(400e9), "400 Gbit/s"},
		{FormatBps(9.9999e9), "10 Gbit/s"},

		{FormatRatio(0), "0 %"},
		{FormatRatio(1), "100 %"},
		{FormatRatio(0.5), "50 %"},
		{FormatRatio(0.1234567), "12.35 %"},
		{FormatRatio(0.000012), "0.0012 %"},
		{FormatRatio(1e-12), "1e-10 %"},
		{FormatRatio(0.9999999), ">99.99 %"}, // not all of it
		{FormatRatio(1.5), "150 %"},
		{FormatRatio(math.NaN()), "- %"},

		{FormatDuration(0), "0 ns"},
		{FormatDuration(999), "999 ns"},
		{FormatDuration(12345), "12.35 us"},
		{FormatDuration(12300), "12.3 us"},
		{FormatDuration(1500 * time.Microsecond), "1.5 ms"},
		{FormatDuration(10 * time.Second), "10 s"},
		{FormatDuration(-12300), "-12.3 us"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
