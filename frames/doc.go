// Package frames is the bytes of a frame: what one looks like (Spec), how many
// like it are made fast (Template), and how a received one is recognised
// (ParseStamp).
//
//	Spec -> Compile -> *Template                     once, through gopacket layers
//	slot holding the prototype -> Template.Apply     each frame sent: a table of edits
//	received frame -> ParseStamp -> VerifyChecksums  each frame received
//
// The stamp makes a frame ours. It stands at the start of the UDP, TCP or ICMP
// payload, 18 octets, big-endian, so that an untagged IPv4/UDP frame of 64
// octets holds it exactly:
//
//	offset size
//	 0     2    magic: 0x9e37, closing frames 0x9e38
//	 2     2    run id, drawn at random for each run
//	 4     2    stream id
//	 6     4    sequence number, wraps; in a closing frame the number of its repeat
//	10     8    time sent, ns since the Unix epoch; in a closing frame the
//	            number of frames sent in the stream
//
// Frames here have no FCS: they begin with the destination MAC and end with the
// payload. No goroutines, no clocks, no sockets; a Template is safe from any
// goroutine, each slot belongs to one.
package frames
