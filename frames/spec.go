package frames

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"pktgen/units"
)

// Spec describes the frames of one stream: Ethernet, IP and UDP, a payload of
// zeros up to the size. More headers will come; each is a field whose zero value
// means that it is not there.
type Spec struct {
	Size             units.FrameSize  // MinSize to the largest IP packet
	SrcMAC, DstMAC   net.HardwareAddr // 6 octets
	VLAN             *VLAN            // one 802.1Q tag; nil: none
	Src, Dst         netip.Addr       // both IPv4, or both IPv6; zones are ignored
	SrcPort, DstPort uint16           // UDP
	TTL              uint8            // or hop limit; 0: 64
	TOS              uint8            // or traffic class
	UDPChecksum      ChecksumMode     // zero value: ChecksumFull
	Flows            uint32           // source ports rotated through, SrcPort + n mod Flows; 0 is 1
	Stamp            bool             // see the package
	RoundTrip        bool             // with room for what a reflector adds to the stamp (ReturnedLen)
	RunID, StreamID  uint16           // in the stamp
}

// VLAN is an 802.1Q tag.
type VLAN struct {
	ID  uint16 // 0 (priority only) to 4094
	PCP uint8  // priority, 0 to 7
	DEI bool   // drop eligible
}

// ChecksumMode says what stands in the UDP checksum.
type ChecksumMode uint8

const (
	ChecksumFull ChecksumMode = iota // right for every frame
	ChecksumZero                     // none (RFC 768); IPv4 only
	// ChecksumPartial: the sum of the pseudo-header, to which the kernel or the NIC
	// adds the rest (CHECKSUM_PARTIAL, Documentation/networking/checksum-offloads.rst).
	ChecksumPartial
)

const defaultTTL = 64

// SizeError: the frame is too small for what it is to hold.
type SizeError struct {
	Size, Min units.FrameSize
	What      string // what it is to hold
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("a frame of %d octets does not hold %s: the least is %d", e.Size, e.What, e.Min)
}

// headers is the number of octets before the UDP payload.
func (s Spec) headers() int {
	n := ethernetLen + ipv4Len + udpLen
	if s.Src.Is6() {
		n = ethernetLen + ipv6Len + udpLen
	}
	if s.VLAN != nil {
		n += tagLen
	}
	return n
}

// MinSize is the least frame size that holds the headers and, if asked for, the
// stamp: with it 64 for IPv4, 68 with a tag, 84 for IPv6, 88 with a tag.
func (s Spec) MinSize() units.FrameSize {
	n := s.headers()
	switch {
	case s.RoundTrip:
		n += ReturnedLen
	case s.Stamp:
		n += StampLen
	}
	return max(units.FromSocket(n), units.MinFrameSize)
}

// Validate says whether the frame can be built. A frame too small is a
// *SizeError, which names the least size that fits.
func (s Spec) Validate() error {
	switch {
	case len(s.SrcMAC) != 6 || len(s.DstMAC) != 6:
		return errors.New("a frame needs a source and a destination MAC of 6 octets")
	case !s.Src.IsValid() || !s.Dst.IsValid():
		return errors.New("a frame needs a source and a destination address")
	case s.Src.Is4() != s.Dst.Is4() || s.Src.Is4In6() || s.Dst.Is4In6():
		return fmt.Errorf("source %v and destination %v are not of one IP version", s.Src, s.Dst)
	case s.VLAN != nil && (s.VLAN.ID > 4094 || s.VLAN.PCP > 7):
		return fmt.Errorf("VLAN %d priority %d: want 0 to 4094 and 0 to 7", s.VLAN.ID, s.VLAN.PCP)
	case s.UDPChecksum == ChecksumZero && s.Src.Is6():
		return errors.New("IPv6 knows no UDP checksum 0 (RFC 8200, section 8.1)")
	case int(s.SrcPort)+int(max(s.Flows, 1)) > 1<<16:
		return fmt.Errorf("%d flows from source port %d on would go beyond port 65535", s.Flows, s.SrcPort)
	case s.UDPChecksum > ChecksumPartial:
		return fmt.Errorf("UDP checksum mode %d is not known", s.UDPChecksum)
	}
	if min := s.MinSize(); s.Size < min {
		what := "its headers"
		switch {
		case s.RoundTrip:
			what = "its headers and the stamp of a round trip"
		case s.Stamp:
			what = "its headers and the stamp"
		}
		return &SizeError{Size: s.Size, Min: min, What: what}
	}
	if most := s.maxSize(); s.Size > most {
		return fmt.Errorf("a frame of %d octets: the largest is %d", s.Size, most)
	}
	return nil
}

// maxSize is that of the largest IPv4 packet (RFC 791: 65535 octets in all),
// for IPv6 too, though there a packet may have 40 octets more (RFC 8200).
func (s Spec) maxSize() units.FrameSize {
	if s.VLAN != nil {
		return units.MaxFrameSize + tagLen
	}
	return units.MaxFrameSize
}

// layers are the frame's headers, outermost first, and its payload.
func (s Spec) layers() []gopacket.SerializableLayer {
	eth := &layers.Ethernet{SrcMAC: s.SrcMAC, DstMAC: s.DstMAC}
	ls := []gopacket.SerializableLayer{eth}
	etherType := &eth.EthernetType
	if s.VLAN != nil {
		tag := &layers.Dot1Q{VLANIdentifier: s.VLAN.ID, Priority: s.VLAN.PCP, DropEligible: s.VLAN.DEI}
		*etherType = layers.EthernetTypeDot1Q
		etherType = &tag.Type
		ls = append(ls, tag)
	}
	ttl := s.TTL
	if ttl == 0 {
		ttl = defaultTTL
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(s.SrcPort), DstPort: layers.UDPPort(s.DstPort)}
	if s.Src.Is6() {
		*etherType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{
			Version: 6, TrafficClass: s.TOS, NextHeader: layers.IPProtocolUDP, HopLimit: ttl,
			SrcIP: s.Src.AsSlice(), DstIP: s.Dst.AsSlice(),
		}
		_ = udp.SetNetworkLayerForChecksum(ip) // it fails for layers that are not IP only
		ls = append(ls, ip, udp)
	} else {
		*etherType = layers.EthernetTypeIPv4
		ip := &layers.IPv4{
			Version: 4, TOS: s.TOS, Protocol: layers.IPProtocolUDP, TTL: ttl,
			SrcIP: s.Src.AsSlice(), DstIP: s.Dst.AsSlice(),
			// All have identification 0, which only packets that are never cut
			// into fragments may have (RFC 6864, section 4.1).
			Flags: layers.IPv4DontFragment,
		}
		_ = udp.SetNetworkLayerForChecksum(ip)
		ls = append(ls, ip, udp)
	}
	payload := make([]byte, s.Size.Socket()-s.headers())
	if s.Stamp {
		putStamp(payload, MagicTest, s.RunID, s.StreamID)
	}
	return append(ls, gopacket.Payload(payload))
}
