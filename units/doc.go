// Package units holds the quantities that a packet tester speaks in - frame
// size, rate, wire time - and their text forms.
//
//	frame size    octets from destination MAC through FCS (RFC 1242, RFC 2544)
//	wire octets   frame size + 20: preamble 7, SFD 1, inter-frame gap 12 (IEEE 802.3)
//	L1 rate       wire octets x 8 x frames/s; 100 % of line rate is the link speed
//	L2 rate       frame size x 8 x frames/s
//
// SI prefixes are decimal. Everything here is a value: safe from any goroutine.
package units
