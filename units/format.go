package units

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// FormatCount writes a whole number with thousands separators: 1,500,000.
func FormatCount(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// FormatPPS writes a frame rate: 1.488 Mpps.
func FormatPPS(pps float64) string { return formatSI(pps) + "pps" }

// FormatBps writes a bit rate: 9.87 Gbit/s.
func FormatBps(bps float64) string { return formatSI(bps) + "bit/s" }

// formatSI writes four significant digits and a decimal prefix.
func formatSI(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "- "
	}
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T", "P", "E"} {
		if math.Abs(v) < 999.95 {
			break
		}
		v /= 1000
		prefix = p
	}
	return significant(v) + " " + prefix
}

func significant(v float64) string {
	decimals := 3
	for limit := 9.9995; math.Abs(v) >= limit && decimals > 0; limit *= 10 {
		decimals--
	}
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// FormatRatio writes a ratio as a percentage, small ones too: 0.0012 %. It says
// 0 or 100 % only for what is exactly that.
func FormatRatio(r float64) string {
	p := r * 100
	switch {
	case math.IsNaN(p) || math.IsInf(p, 0):
		return "- %"
	case p == 0:
		return "0 %"
	case r < 1 && p > 99.99:
		return ">99.99 %"
	case math.Abs(p) >= 0.01:
		return significant(p) + " %"
	}
	return strconv.FormatFloat(p, 'g', 2, 64) + " %"
}

// FormatDuration writes a time with four significant digits: 12.34 us.
func FormatDuration(d time.Duration) string {
	switch a := d.Abs(); {
	case a < 1000:
		return strconv.FormatInt(int64(d), 10) + " ns"
	case a < time.Millisecond:
		return significant(float64(d)/1e3) + " us"
	case a < time.Second:
		return significant(float64(d)/1e6) + " ms"
	}
	return significant(d.Seconds()) + " s"
}
