package neigh

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// announcements and their distance are those of an ARP announcement (RFC 5227,
// section 1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL), closer together: switches learn
// at once.
const (
	announcements    = 2
	announceInterval = 20 * time.Millisecond
	announceTries    = 10 // the full queues of a loaded machine among them
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
	said := 0
	for range announceTries {
		err = s.write(frame)
		if err == nil {
			if said++; said == announcements {
				return nil
			}
		} else if !errors.Is(err, unix.ENOBUFS) { // a full queue: the next try may find room
			break
		}
		time.Sleep(announceInterval)
	}
	if said > 0 { // once is enough for a switch to learn
		return nil
	}
	return fmt.Errorf("%s: announce %v: %w", ifi.Name, ip, err)
}
