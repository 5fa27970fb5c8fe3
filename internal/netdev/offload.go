package netdev

import (
	"fmt"
	"maps"
	"slices"

	"github.com/safchain/ethtool"
)

// unfinished are the features by which a driver takes frames that the system has
// not finished, as ethtool -k names them: without their checksum, or many as one.
var unfinished = []string{"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-udp-segmentation"}

// virtual are the drivers of ports that may hand a frame on as they got it, to
// another machine on the same host; "" is of those with no device behind them.
var virtual = []string{"", "virtio_net", "vif", "vmxnet3", "hv_netvsc"}

// FinishFrames has the system finish every frame before a port that has no wire
// behind it gets it, until restore, not nil, is called. A NIC finishes its frames
// itself, and is left as it is. Errors: those of ioctl SIOCETHTOOL.
func FinishFrames(info Info) (restore func() error, err error) {
	restore = func() error { return nil }
	if !slices.Contains(virtual, info.Driver) {
		return restore, nil
	}
	on, err := Features(info.Ref)
	if err != nil {
		return restore, err
	}
	off, back := map[string]bool{}, map[string]bool{}
	for _, name := range unfinished {
		if slices.Contains(on, name) {
			off[name], back[name] = false, true
		}
	}
	if len(off) == 0 {
		return restore, nil
	}
	if err := setFeatures(info.Ref, off); err != nil {
		return restore, err
	}
	return func() error { return setFeatures(info.Ref, back) }, nil
}

// Features are what a port has turned on, as ethtool -k names it, in order. Errors:
// those of ioctl SIOCETHTOOL.
func Features(r Ref) (on []string, err error) {
	err = r.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("%v: socket: %w", r, err)
		}
		defer e.Close()
		all, err := e.Features(r.Name)
		if err != nil {
			return fmt.Errorf("%v: ETHTOOL_GFEATURES: %w", r, err)
		}
		for name, is := range all {
			if is {
				on = append(on, name)
			}
		}
		return nil
	})
	slices.Sort(on)
	return on, err
}

func setFeatures(r Ref, to map[string]bool) error {
	return r.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("%v: socket: %w", r, err)
		}
		defer e.Close()
		if err := e.Change(r.Name, to); err != nil {
			return fmt.Errorf("%v: ETHTOOL_SFEATURES %v: %w", r, slices.Sorted(maps.Keys(to)), err)
		}
		return nil
	})
}
