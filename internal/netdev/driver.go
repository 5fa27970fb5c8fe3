package netdev

import (
	"errors"
	"fmt"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DriverCounters are what a driver counts beside Counters, as ethtool -S shows
// it, by what it means. Frames, and totals since the driver was loaded or reset.
// A driver has its own names for them, and by no means all of them: 0 says that
// nothing is known, not that nothing was lost.
//
// No frame is in two fields, but for: RxErrors holds RxCRC; virtio_net counts what
// XDP dropped among its drops too, so that RxMissed may hold RxXDPDrop. vmxnet3
// repeats its names for each queue, and All has those of the last one only.
type DriverCounters struct {
	RxMissed  uint64 // good frames, for which the NIC's memory, the ring or the host's buffers had no room
	RxCRC     uint64 // arrived with a wrong FCS
	RxErrors  uint64 // arrived damaged, or of a wrong length; RxCRC among them
	RxXDPDrop uint64 // dropped by the interface's XDP program, or because it failed
	TxErrors  uint64 // not sent, as something failed
	TxDrop    uint64 // not sent, as there was no room, or no link
	PauseRx   uint64 // pause frames that arrived (IEEE 802.3 annex 31B), XON among them; PFC: one a priority
	PauseTx   uint64 // pause frames sent

	All map[string]uint64 // as the driver names them; nil where it has none
}

// fields are the classes in the order of their constants.
func (c *DriverCounters) fields() [classes]*uint64 {
	return [classes]*uint64{
		rxMissed: &c.RxMissed, rxCRC: &c.RxCRC, rxErrors: &c.RxErrors, rxXDPDrop: &c.RxXDPDrop,
		txErrors: &c.TxErrors, txDrop: &c.TxDrop, pauseRx: &c.PauseRx, pauseTx: &c.PauseTx,
	}
}

// Driver reads the driver's own counters. A driver without any is no error.
// Errors: ErrLost when the interface is gone, os.ErrClosed, those of rtnetlink and
// of ioctl SIOCETHTOOL.
func (p *Port) Driver() (DriverCounters, error) {
	// ethtool's ioctl goes by name; the interface may have another one by now.
	link, err := p.link()
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return DriverCounters{}, State{Ref: p.ref, Deleted: true}.Lost()
	}
	if err != nil {
		return DriverCounters{}, fmt.Errorf("%v: driver counters: %w", p.ref, err)
	}
	var all map[string]uint64
	err = withLink(Ref{Netns: p.ref.Netns, Name: link.Attrs().Name}, func(_ *netlink.Handle, link netlink.Link) error {
		if link.Attrs().Index != p.index {
			return fmt.Errorf("%v: driver counters: index %d is now %d: %w", p.ref, p.index, link.Attrs().Index, ErrNotFound)
		}
		all, err = driverStats(link.Attrs().Name)
		if err != nil {
			return fmt.Errorf("%v: driver counters: %w", p.ref, err)
		}
		return nil
	})
	if err != nil {
		return DriverCounters{}, err
	}
	return Classify(all), nil
}

// driverStats is ethtool -S, in the calling thread's namespace.
func driverStats(name string) (map[string]uint64, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer e.Close()
	all, err := e.Stats(name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	return all, nil
}

// Since is what was counted after before: the differences of All, classified. What
// has no class and went back, as a level may, is left out. Errors: ErrReset where
// a counter that has a class went back.
func (c DriverCounters) Since(before DriverCounters) (DriverCounters, error) {
	d := make(map[string]uint64, len(c.All))
	for name, after := range c.All {
		start := before.All[name]
		if after >= start {
			d[name] = after - start
		} else if driverNames[shape(name)] {
			return DriverCounters{}, fmt.Errorf("driver: %w: %s went from %d to %d", ErrReset, name, start, after)
		}
	}
	return Classify(d), nil
}

// class is a field of DriverCounters.
type class int

const (
	rxMissed class = iota
	rxCRC
	rxErrors
	rxXDPDrop
	txErrors
	txDrop
	pauseRx
	pauseTx
	classes
)

// event is one thing that happens to frames, and all names for it: of the
// drivers, and of totals and parts in one driver. A # stands for the number of a
// queue, priority or buffer; such a name's counters add up.
type event struct {
	class class
	whole bool     // holds the other events of its class, as far as the driver knows them
	only  string   // if not "": of the drivers that have this name too
	names []string // without spaces around them
}

// driverEvents says what the drivers' names mean. The rule by which no frame is
// counted twice:
//
//   - Of an event's names only the largest counts. So queues count where there is
//     no total, and never in addition to one.
//   - The events of a class are different frames, and add up. Where a counter is
//     there that holds them all (whole), the larger of it and their sum counts.
//
// Sources: the tables of the drivers' ethtool code in Linux drivers/net (such as
// ixgbe_gstrings_stats), struct rtnl_link_stats64 in linux/if_link.h, whose names
// many use, RFC 2819 (etherStats), whose classes of damaged frames exclude one
// another.
//
// Not here, as no frame is lost by them: rx_no_buffer_count of Intel's (the frame
// waits in the NIC; what is lost is in rx_missed_errors), failed allocations that
// are tried again, checksums that the host verifies, stopped queues. Nor
// rx_dropped in general: the kernel adds frames to it that nobody wanted.
var driverEvents = []event{
	// The NIC's own memory was full.
	{class: rxMissed, names: []string{
		"rx_missed_errors",      // rtnl_link_stats64: ixgbe, igb, igc, e1000e, ...
		"rx_missed",             // r8169, r8152
		"port.rx_dropped",       // i40e
		"rx_dropped.nic",        // ice
		"rx_discards_phy",       // mlx5
		"rx_prio#_buf_discard",  // mlx5, parts of rx_discards_phy
		"rx_prio#_discards",     // mlx5, likewise
		"rx_brb_discard",        // bnx2x
		"brb_discards",          // qede
		"rx_bg#_frames_dropped", // cxgb4
		"rx_overflow_cntr",      // stmmac, DMA
		"mmc_rx_fifo_overflow",  // stmmac, MAC
		"mmc_rx_fifooverflow",   // stmmac, older
		"rx_overrun",            // mvneta
		"rx_fifo_overrun",       // mvpp2
		"port_rx_overflow",      // sfc
		"rx_overflow",           // sfc, older
		"dev_rx_discards",       // nfp
		"InDroppedDma",          // atlantic
	}},
	// The ring, or the host, had no buffer for it.
	{class: rxMissed, names: []string{
		"rx_no_dma_resources",   // ixgbe
		"rx_queue_#_drops",      // igb, igc, virtio_net, veth
		"rx_drops", "rx#_drops", // virtio_net since 6.10, ena
		"rx_out_of_buffer",                           // mlx5
		"rx_total_ring_discards", "[#]: rx_discards", // bnxt, bnx2x
		"rx_discards",                                                   // bnx2x, tg3
		"no_buff_discards",                                              // qede
		"rx_missed_cntr",                                                // stmmac, DMA
		"rx_discard",                                                    // mvneta
		"rxq_#_queue_full_drops",                                        // mvpp2
		"port_rx_nodesc_drops", "rx_nodesc_drops", "rx_nodesc_drop_cnt", // sfc
		"pkts rx OOB",                                 // vmxnet3
		"rx_hw_drop_overruns", "rx#_hw_drop_overruns", // virtio_net, the device's
	}},
	// i40e, ice: no descriptor; mlx4: no buffer. Each fills it from the NIC alone.
	{class: rxMissed, only: "port.rx_bytes", names: []string{"rx_dropped"}},
	{class: rxMissed, only: "rx_bytes.nic", names: []string{"rx_dropped"}},
	{class: rxMissed, only: "rx_alloc_pages", names: []string{"rx_dropped", "rx#_dropped"}},
	// The driver had no memory for it.
	{class: rxMissed, names: []string{"rx_total_oom_discards"}},                             // bnxt
	{class: rxMissed, names: []string{"rx_skb_alloc_discard", "[#]: rx_skb_alloc_discard"}}, // bnx2x
	{class: rxMissed, names: []string{"rx_noskb_drops"}},                                    // sfc
	{class: rxMissed, names: []string{"rxq_#_packets_bm_drops"}},                            // mvpp2
	{class: rxMissed, names: []string{"rxq_#_packets_early_drops"}},                         // mvpp2
	{class: rxMissed, whole: true, names: []string{
		"rx_stat_discard", "rx_discard_packets_cos#", // bnxt
		// rtnl_link_stats64, where the first "was used interchangeably" with the second:
		// igb and igc have the sum of rx_queue_#_drops there, mlx4 what it has missed.
		"rx_fifo_errors", "rx_over_errors",
	}},

	{class: rxCRC, names: []string{
		"rx_crc_errors",         // rtnl_link_stats64; bnx2x, qede, stmmac
		"port.rx_crc_errors",    // i40e
		"rx_crc_errors.nic",     // ice
		"rx_crc_errors_phy",     // mlx5
		"rx_fcs_errors",         // tg3, cxgb4
		"rx_fcs_err_frames",     // bnxt
		"mmc_rx_crc_error",      // stmmac
		"mmc_rx_crc_errors",     // stmmac
		"bad_crc_event",         // mvneta
		"port_rx_bad", "rx_bad", // sfc
		"mac_rx_fcs_err_pkt_num", // hns3
		"fcs",                    // vmxnet3
	}},

	{class: rxErrors, whole: true, names: []string{
		"rx_errors",                     // rtnl_link_stats64; r8169, tg3
		"[#]: rx_errors", "rx_stat_err", // bnxt
		"InErrors", "Queue[#] InErrors", "TC# Queue[#] InErrors", // atlantic
		"pkts rx err", "drv dropped rx total", // vmxnet3
		"dev_rx_errors", // nfp
	}},
	{class: rxErrors, names: []string{ // the length field is wrong
		"rx_length_errors", "port.rx_length_errors", "rx_length_errors.nic", "rx_in_range_len_errors_phy", "rx_in_length_errors",
		"port_rx_length_error", "mmc_rx_length_error",
	}},
	{class: rxErrors, names: []string{"rx_out_of_range_len_phy", "rx_out_length_errors"}},
	{class: rxErrors, names: []string{ // no whole number of octets
		"rx_align_errors", "align_errors", "rx_frame_errors", "rx_align_err_frames", "mmc_rx_align_error", "port_rx_align_error",
	}},
	{class: rxErrors, names: []string{"rx_symbol_err_phy", "rx_symbol_errors", "rx_carrier_errors"}},
	{class: rxErrors, names: []string{"port.illegal_bytes", "illegal_bytes.nic"}},
	{class: rxErrors, names: []string{ // etherStatsUndersizePkts
		"port.rx_undersize", "rx_undersize.nic", "rx_undersize_pkts_phy", "rx_undersize_packets", "rx_undrsz_frames",
		"rx_runt_frames", "undersize_received", "mmc_rx_undersize_g",
	}},
	{class: rxErrors, names: []string{ // etherStatsFragments
		"port.rx_fragments", "rx_fragments.nic", "rx_fragments_phy", "rx_fragments", "rx_frag_frames", "fragments_received",
		"mmc_rx_runt_error", "mmc_rx_run_error",
	}},
	{class: rxErrors, names: []string{ // etherStatsOversizePkts
		"port.rx_oversize", "rx_oversize.nic", "rx_oversize_pkts_phy", "rx_oversize_packets", "rx_ovrsz_frames",
		"rx_frame_too_long_errors", "rx_frames_too_long", "oversize_received", "mmc_rx_oversize_g", "port_rx_gtjumbo",
	}},
	{class: rxErrors, names: []string{ // etherStatsJabbers
		"port.rx_jabber", "rx_jabber.nic", "rx_jabbers_phy", "rx_jabbers", "rx_jbr_frames", "rx_jabber_errors", "jabber_received",
		"mmc_rx_jabber_error", "mac_rx_jabber_pkt_num",
	}},
	{class: rxErrors, names: []string{"rx_wqe_err", "rx#_wqe_err"}},                             // mlx5
	{class: rxErrors, names: []string{"rx_oversize_pkts_sw_drop", "rx#_oversize_pkts_sw_drop"}}, // mlx5
	{class: rxErrors, names: []string{"rx_total_buf_errors", "[#]: rx_buf_errors"}},             // bnxt
	{class: rxErrors, names: []string{"#: rx_hw_errors", "#_#: rx_hw_errors"}},                  // qede
	{class: rxErrors, names: []string{"queue_#_rx_bad_desc_num"}},                               // ena
	{class: rxErrors, names: []string{"mac_receive_error"}},                                     // mvneta
	{class: rxErrors, names: []string{"port_rx_internal_error"}},                                // sfc

	{class: rxXDPDrop, names: []string{
		"rx_xdp_drop", "rx#_xdp_drop", // mlx5, mlx4, mvneta, mvpp2
		"rx_xdp_drops", "rx_queue_#_xdp_drops", "rx#_xdp_drops", // virtio_net, veth, sfc
		"queue_#_rx_xdp_drop", // ena
	}},
	{class: rxXDPDrop, names: []string{"queue_#_rx_xdp_aborted"}}, // ena
	{class: rxXDPDrop, names: []string{"queue_#_rx_xdp_invalid"}}, // ena
	{class: rxXDPDrop, names: []string{"rx_xdp_bad_drops"}},       // sfc

	{class: txErrors, whole: true, names: []string{
		"tx_errors",                                 // rtnl_link_stats64; r8169, tg3
		"port.tx_errors",                            // i40e
		"tx_errors.nic",                             // ice
		"tx_err", "tx_stat_error", "[#]: tx_errors", // bnxt
		"tx_error_frames", // cxgb4
		"OutErrors",       // atlantic
		"pkts tx err",     // vmxnet3
		"dev_tx_errors",   // nfp
	}},
	{class: txErrors, names: []string{"tx_errors_phy"}},                                                                                // mlx5
	{class: txErrors, names: []string{"tx_cqe_err", "tx#_cqe_err"}},                                                                    // mlx5
	{class: txErrors, names: []string{"tx_aborted_errors", "tx_aborted"}},                                                              // rtnl_link_stats64, r8169
	{class: txErrors, names: []string{"tx_carrier_errors", "tx_carrier_sense_errors"}},                                                 // rtnl_link_stats64, bnx2x, tg3
	{class: txErrors, names: []string{"tx_fifo_errors", "tx_underrun", "tx_fifo_underruns", "mmc_tx_underflow_error", "tx_underflow"}}, // rtnl_link_stats64, r8169, bnxt, stmmac
	{class: txErrors, names: []string{"tx_mac_errors", "internal_mac_transmit_err"}},                                                   // tg3, bnx2x, mvneta
	{class: txErrors, names: []string{"queue_#_tx_dma_mapping_err"}},                                                                   // ena
	{class: txErrors, names: []string{"#: tx_mem_alloc_err", "#_#: tx_mem_alloc_err"}},                                                 // qede
	{class: txErrors, names: []string{"tx_xdp_err", "tx#_xdp_err", "tx_xdp_xmit_errors", "tx_queue_#_xdp_xmit_errors"}},                // mlx5, mvneta, veth: XDP_REDIRECT
	{class: txErrors, names: []string{"rx_xdp_tx_err", "rx#_xdp_tx_err", "rx_xdp_tx_errors", "rx_queue_#_xdp_tx_errors"}},              // mlx5, mvneta, veth: XDP_TX

	{class: txDrop, names: []string{
		"tx_dropped",                      // rtnl_link_stats64, mlx4
		"tx_queue_dropped", "tx#_dropped", // mlx5
		"txq#_dropped",                                                  // hns3
		"tx_drops",                                                      // ena
		"tx_discards",                                                   // tg3
		"tx_total_ring_discards", "[#]: tx_discards", "tx_stat_discard", // bnxt
		"tx_frames_dropped", // cxgb4
		"tx_err_drop_pkts",  // qede
		"pkts tx discard",   // vmxnet3
		"dev_tx_discards",   // nfp
	}},
	{class: txDrop, names: []string{"port.tx_dropped_link_down", "tx_dropped_link_down.nic"}},                                               // i40e, ice
	{class: txDrop, names: []string{"tx_discards_phy"}},                                                                                     // mlx5
	{class: txDrop, names: []string{"drv dropped tx total"}},                                                                                // vmxnet3
	{class: txDrop, names: []string{"tx_hw_drops", "tx#_hw_drops"}},                                                                         // virtio_net, the device's
	{class: txDrop, names: []string{"tx_xdp_full", "tx#_xdp_full"}},                                                                         // mlx5: XDP_REDIRECT
	{class: txDrop, names: []string{"rx_xdp_tx_full", "rx#_xdp_tx_full", "tx_xdp_tx_drops", "tx_queue_#_xdp_tx_drops", "tx#_xdp_tx_drops"}}, // mlx5, mlx4, virtio_net: XDP_TX

	{class: pauseRx, whole: true, names: []string{
		"rx_pause_ctrl_phy", "rx_global_pause", // mlx5
		"rx_pause",                                   // mlx4
		"rx_pause_frames",                            // bnxt, bnx2x, cxgb4, qede
		"port_rx_pause",                              // sfc
		"mmc_rx_pause_frames", "mmc_rx_pause_framec", // stmmac
		"good_fc_received", "fc_received", // mvneta, mvpp2
		"mac_rx_mac_pause_num", // hns3
	}},
	{class: pauseRx, names: []string{"rx_flow_control_xon", "port.link_xon_rx", "link_xon_rx.nic", "rx_xon_pause_rcvd"}},     // Intel, tg3
	{class: pauseRx, names: []string{"rx_flow_control_xoff", "port.link_xoff_rx", "link_xoff_rx.nic", "rx_xoff_pause_rcvd"}}, // Intel, tg3
	// PFC, IEEE 802.1Qbb.
	{class: pauseRx, names: []string{"rx_pb_#_pxon", "port.rx_priority_#_xon", "rx_priority_#_xon.nic"}},
	{class: pauseRx, names: []string{"rx_pb_#_pxoff", "port.rx_priority_#_xoff", "rx_priority_#_xoff.nic"}},
	{class: pauseRx, names: []string{
		"rx_prio#_pause", "rx_pause_prio_#", "rx_pfc_frames", "pfc_frames_received", "rx_ppp#_frames", "mac_rx_pfc_pkt_num",
	}},

	{class: pauseTx, whole: true, names: []string{
		"tx_pause_ctrl_phy", "tx_global_pause",
		"tx_pause",
		"tx_pause_frames",
		"port_tx_pause",
		"mmc_tx_pause_frame", "mmc_tx_pause_framec",
		"fc_sent",
		"mac_tx_mac_pause_num",
	}},
	{class: pauseTx, names: []string{"tx_flow_control_xon", "port.link_xon_tx", "link_xon_tx.nic", "tx_xon_sent"}},
	{class: pauseTx, names: []string{"tx_flow_control_xoff", "port.link_xoff_tx", "link_xoff_tx.nic", "tx_xoff_sent"}},
	{class: pauseTx, names: []string{"tx_pb_#_pxon", "port.tx_priority_#_xon", "tx_priority_#_xon.nic"}},
	{class: pauseTx, names: []string{"tx_pb_#_pxoff", "port.tx_priority_#_xoff", "tx_priority_#_xoff.nic"}},
	{class: pauseTx, names: []string{
		"tx_prio#_pause", "tx_pause_prio_#", "tx_pfc_frames", "pfc_frames_sent", "tx_ppp#_frames", "mac_tx_pfc_pkt_num",
	}},
}

// driverNames are the names in driverEvents.
var driverNames = func() map[string]bool {
	known := map[string]bool{}
	for _, e := range driverEvents {
		for _, name := range e.names {
			known[name] = true
		}
	}
	return known
}()

// shape is a counter's name as the table has it: without spaces around it, and a #
// for each number in it.
func shape(name string) string {
	var b strings.Builder
	digits := false
	for _, c := range []byte(strings.TrimSpace(name)) {
		if c >= '0' && c <= '9' {
			if !digits {
				b.WriteByte('#')
			}
			digits = true
			continue
		}
		digits = false
		b.WriteByte(c)
	}
	return b.String()
}

// Classify says what a driver's counters mean, by its names for them. It keeps
// all as All.
func Classify(all map[string]uint64) DriverCounters {
	byShape := map[string]uint64{}
	for name, n := range all {
		byShape[shape(name)] += n
	}
	var whole, sum [classes]uint64
	for _, e := range driverEvents {
		if _, there := all[e.only]; e.only != "" && !there {
			continue
		}
		var most uint64
		for _, name := range e.names {
			most = max(most, byShape[name])
		}
		if e.whole {
			whole[e.class] = max(whole[e.class], most)
		} else {
			sum[e.class] += most
		}
	}
	sum[rxErrors] += sum[rxCRC]
	c := DriverCounters{All: all}
	for class, field := range c.fields() {
		*field = max(whole[class], sum[class])
	}
	return c
}
