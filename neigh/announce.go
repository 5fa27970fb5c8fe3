package neigh

import (
	"fmt"
	"net/netip"
	"time"
)

// announcements and their distance are those of an ARP announcement (RFC 5227,
// section 1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL), closer together: switches learn
// at once.
const (
	announcements    = 2
	announceInterval = 20 * time.Millisecond
)

// Announce tells everybody on the link, unasked, that ifi.MAC has an address: the
// learning frames of RFC 2544, section 23, by which switches learn the port, and
// hosts the MAC. tag is the frames' tag, nil for none. Errors: those of the socket.
func Announce(ifi Iface, ip netip.Addr, tag *VLAN) error {
	s, err := open(ifi, true)
	if err != nil {
		return err
	}
	defer s.close()
	frame := announce(ifi.MAC, ip.Unmap().WithZone(""), tag)
	for i := range announcements {
		if i > 0 {
			time.Sleep(announceInterval)
		}
		if err := s.write(frame); err != nil {
			return fmt.Errorf("%s: announce %v: %w", ifi.Name, ip, err)
		}
	}
	return nil
}
