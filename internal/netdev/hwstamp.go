package netdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoHardwareStamps: the NIC or its driver notes no receive times of its own for
// every frame.
var ErrNoHardwareStamps = errors.New("no hardware receive times for all frames")

// HardwareStamps is a NIC that notes when each frame came.
type HardwareStamps struct {
	PHC     int          // of /dev/ptpPHC, by whose clock the times are
	Restore func() error // puts the NIC's setting back as it was; not nil
}

// EnableHardwareStamps has the NIC note the receive time of every frame
// (SIOCSHWTSTAMP, timestamping.rst). A NIC that does so already is left as it is.
// Errors: ErrNoHardwareStamps, those of the ioctls.
func EnableHardwareStamps(r Ref) (h HardwareStamps, err error) {
	h.Restore = func() error { return nil }
	err = r.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%v: socket: %w", r, err)
		}
		defer unix.Close(fd)
		info, err := unix.IoctlGetEthtoolTsInfo(fd, r.Name)
		if err != nil {
			return fmt.Errorf("%v: ETHTOOL_GET_TS_INFO: %w", r, err)
		}
		if info.So_timestamping&unix.SOF_TIMESTAMPING_RX_HARDWARE == 0 || info.Phc_index < 0 || info.Rx_filters&(1<<unix.HWTSTAMP_FILTER_ALL) == 0 {
			return fmt.Errorf("%v: %w", r, ErrNoHardwareStamps)
		}
		h.PHC = int(info.Phc_index)
		was, err := unix.IoctlGetHwTstamp(fd, r.Name)
		if err == nil && was.Rx_filter == unix.HWTSTAMP_FILTER_ALL {
			return nil
		}
		if err != nil { // old drivers only set
			was = &unix.HwTstampConfig{Tx_type: unix.HWTSTAMP_TX_OFF, Rx_filter: unix.HWTSTAMP_FILTER_NONE}
		}
		now := *was
		now.Rx_filter = unix.HWTSTAMP_FILTER_ALL
		if err := unix.IoctlSetHwTstamp(fd, r.Name, &now); err != nil {
			return fmt.Errorf("%v: SIOCSHWTSTAMP: %w", r, err)
		}
		h.Restore = func() error {
			return r.Do(func() error {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return fmt.Errorf("%v: socket: %w", r, err)
				}
				defer unix.Close(fd)
				if err := unix.IoctlSetHwTstamp(fd, r.Name, was); err != nil {
					return fmt.Errorf("%v: SIOCSHWTSTAMP, back: %w", r, err)
				}
				return nil
			})
		}
		return nil
	})
	return h, err
}
