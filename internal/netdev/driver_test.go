package netdev_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// statistics reads the text of ethtool -S.
func statistics(t testing.TB, text string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if i := strings.LastIndex(line, ": "); i >= 0 {
			n, err := strconv.ParseUint(line[i+2:], 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all[strings.TrimPrefix(line[:i], "     ")] = n // as ethtool indents
		}
	}
	return all
}

// TestClassify: the names are those of the drivers' tables, the values made up so
// that each sum shows what went into it. Long tables are shortened.
func TestClassify(t *testing.T) {
	for _, c := range []struct {
		driver, text string
		want         netdev.DriverCounters
	}{
		{"ixgbe", `NIC statistics:
     rx_packets: 5000000
     tx_packets: 4000000
     rx_pkts_nic: 5000000
     lsc_int: 3
     tx_busy: 0
     non_eop_descs: 0
     rx_errors: 12
     tx_errors: 0
     rx_dropped: 4000
     tx_dropped: 0
     rx_no_buffer_count: 8888
     rx_over_errors: 0
     rx_crc_errors: 10
     rx_frame_errors: 0
     fdir_match: 100
     rx_fifo_errors: 0
     rx_missed_errors: 700
     tx_aborted_errors: 0
     tx_carrier_errors: 0
     tx_fifo_errors: 0
     tx_heartbeat_errors: 0
     tx_timeout_count: 0
     tx_restart_queue: 55
     rx_length_errors: 2
     rx_long_length_errors: 77
     rx_short_length_errors: 0
     tx_flow_control_xon: 1
     rx_flow_control_xon: 20
     tx_flow_control_xoff: 2
     rx_flow_control_xoff: 400
     rx_csum_offload_errors: 31
     alloc_rx_page: 4096
     alloc_rx_page_failed: 5
     rx_no_dma_resources: 50
     tx_queue_0_packets: 4000000
     rx_queue_0_packets: 2500000
     rx_queue_1_packets: 2500000
     tx_pb_0_pxon: 0
     rx_pb_0_pxoff: 0
`, netdev.DriverCounters{RxMissed: 750, RxCRC: 10, RxErrors: 12, PauseRx: 420, PauseTx: 3}},

		{"ixgbe, PFC", `
     rx_flow_control_xon: 0
     rx_flow_control_xoff: 0
     rx_pb_0_pxon: 1
     rx_pb_0_pxoff: 10
     rx_pb_3_pxon: 100
     rx_pb_3_pxoff: 1000
     tx_pb_0_pxoff: 5
     tx_pb_7_pxoff: 6
`, netdev.DriverCounters{PauseRx: 1111, PauseTx: 11}},

		{"igb: rx_fifo_errors are the queues' drops", `
     rx_packets: 100
     rx_crc_errors: 1
     rx_no_buffer_count: 9
     rx_missed_errors: 200
     rx_errors: 6
     tx_errors: 3
     tx_dropped: 0
     rx_length_errors: 2
     rx_over_errors: 0
     rx_frame_errors: 3
     rx_fifo_errors: 35
     tx_fifo_errors: 0
     tx_aborted_errors: 1
     tx_carrier_errors: 0
     tx_window_errors: 2
     tx_abort_late_coll: 2
     rx_queue_0_packets: 50
     rx_queue_0_drops: 5
     rx_queue_0_csum_err: 7
     rx_queue_0_alloc_failed: 8
     rx_queue_1_packets: 50
     rx_queue_1_drops: 30
`, netdev.DriverCounters{RxMissed: 235, RxCRC: 1, RxErrors: 6, TxErrors: 3}},

		{"i40e", `
     rx_packets: 1000
     rx_errors: 0
     tx_errors: 0
     rx_dropped: 4
     tx_dropped: 0
     rx_length_errors: 0
     rx_crc_errors: 0
     rx_unknown_protocol: 9
     rx_alloc_fail: 3
     tx-0.packets: 10
     rx-0.packets: 1000
     port.rx_bytes: 64000
     port.tx_errors: 0
     port.rx_dropped: 300
     port.tx_dropped_link_down: 5
     port.rx_crc_errors: 2
     port.illegal_bytes: 1
     port.rx_length_errors: 0
     port.rx_undersize: 10
     port.rx_fragments: 20
     port.rx_oversize: 40
     port.rx_jabber: 80
     port.link_xon_rx: 6
     port.link_xoff_rx: 7
     port.link_xon_tx: 8
     port.link_xoff_tx: 9
     port.tx_priority_0_xon: 0
     port.rx_priority_0_xoff: 0
     port.rx_size_64: 1000
`, netdev.DriverCounters{RxMissed: 304, RxCRC: 2, RxErrors: 153, TxDrop: 5, PauseRx: 13, PauseTx: 17}},

		{"ice", `
     rx_unicast: 1000
     rx_dropped: 40
     rx_alloc_fail: 1
     tx_errors: 2
     rx_queue_0_packets: 1000
     rx_bytes.nic: 64000
     tx_errors.nic: 2
     tx_dropped_link_down.nic: 6
     rx_dropped.nic: 5
     rx_crc_errors.nic: 1
     rx_jabber.nic: 3
     link_xon_rx.nic: 0
     link_xoff_rx.nic: 11
     link_xoff_tx.nic: 12
     tx_priority_0_xoff.nic: 0
`, netdev.DriverCounters{RxMissed: 45, RxCRC: 1, RxErrors: 4, TxErrors: 2, TxDrop: 6, PauseRx: 11, PauseTx: 12}},

		{"mlx5_core", `NIC statistics:
     rx_packets: 9000
     tx_packets: 8000
     tx_queue_stopped: 4
     tx_queue_dropped: 33
     tx_xmit_more: 100
     tx_recover: 0
     tx_cqes: 500
     tx_queue_wake: 4
     tx_cqe_err: 2
     tx_xdp_xmit: 0
     tx_xdp_full: 0
     tx_xdp_err: 0
     rx_xdp_drop: 70
     rx_xdp_redirect: 5
     rx_xdp_tx_xmit: 6
     rx_xdp_tx_full: 9
     rx_xdp_tx_err: 0
     rx_wqe_err: 1
     rx_oversize_pkts_sw_drop: 0
     rx_buff_alloc_err: 5
     rx_out_of_buffer: 600
     rx_if_down_packets: 2
     rx_steer_missed_packets: 17
     rx_vport_unicast_packets: 9000
     tx_packets_phy: 8000
     rx_packets_phy: 9000
     rx_crc_errors_phy: 10
     tx_mac_control_phy: 5
     rx_pause_ctrl_phy: 44
     tx_pause_ctrl_phy: 55
     rx_symbol_err_phy: 20
     rx_in_range_len_errors_phy: 1
     rx_out_of_range_len_phy: 2
     rx_oversize_pkts_phy: 4
     rx_undersize_pkts_phy: 8
     rx_fragments_phy: 0
     rx_jabbers_phy: 0
     rx_64_bytes_phy: 9000
     rx_discards_phy: 7000
     tx_discards_phy: 100
     tx_errors_phy: 40
     rx_prio0_packets: 9000
     rx_prio0_discards: 6000
     rx_prio1_discards: 1000
     rx_prio0_buf_discard: 6000
     rx_prio1_buf_discard: 1000
     rx_global_pause: 44
     rx_global_pause_duration: 1234
     rx_global_pause_transition: 22
     tx_global_pause: 55
     rx_prio3_pause: 0
     rx0_packets: 4500
     rx0_xdp_drop: 30
     rx0_wqe_err: 0
     rx0_xdp_tx_full: 4
     rx1_packets: 4500
     rx1_xdp_drop: 40
     rx1_wqe_err: 1
     rx1_xdp_tx_full: 5
     tx0_packets: 4000
     tx0_dropped: 30
     tx0_cqe_err: 2
     tx1_packets: 4000
     tx1_dropped: 3
     tx1_cqe_err: 0
     tx0_xdp_full: 0
`, netdev.DriverCounters{RxMissed: 7600, RxCRC: 10, RxErrors: 46, RxXDPDrop: 70, TxErrors: 42, TxDrop: 142, PauseRx: 44, PauseTx: 55}},

		{"mlx4_en", `
     rx_packets: 100
     rx_errors: 7
     rx_dropped: 40
     tx_dropped: 2
     rx_length_errors: 1
     rx_over_errors: 0
     rx_crc_errors: 6
     rx_fifo_errors: 9
     rx_missed_errors: 9
     tso_packets: 0
     rx_alloc_pages: 55
     rx_pause: 3
     rx_pause_duration: 300
     tx_pause: 4
     rx_pause_prio_0: 0
     rx_xdp_drop: 5
     rx_xdp_tx_full: 1
     rx0_packets: 100
     rx0_dropped: 0
     rx0_xdp_drop: 5
     rx0_xdp_tx_full: 1
`, netdev.DriverCounters{RxMissed: 49, RxCRC: 6, RxErrors: 7, RxXDPDrop: 5, TxDrop: 3, PauseRx: 3, PauseTx: 4}},

		{"virtio_net", `NIC statistics:
     rx_queue_0_packets: 1000
     rx_queue_0_bytes: 64000
     rx_queue_0_drops: 3
     rx_queue_0_xdp_packets: 12
     rx_queue_0_xdp_tx: 0
     rx_queue_0_xdp_redirects: 0
     rx_queue_0_xdp_drops: 5
     rx_queue_0_kicks: 40
     rx_queue_1_packets: 900
     rx_queue_1_drops: 40
     rx_queue_1_xdp_drops: 60
     tx_queue_0_packets: 10
     tx_queue_0_xdp_tx: 0
     tx_queue_0_xdp_tx_drops: 2
     tx_queue_0_kicks: 10
     tx_queue_0_tx_timeouts: 1
     tx_queue_1_xdp_tx_drops: 4
`, netdev.DriverCounters{RxMissed: 43, RxXDPDrop: 65, TxDrop: 6}},

		{"virtio_net, with totals", `
     rx_packets: 1900
     rx_drops: 43
     rx_xdp_drops: 65
     tx_xdp_tx_drops: 6
     rx0_packets: 1000
     rx0_drops: 3
     rx0_xdp_drops: 5
     rx1_drops: 40
     rx1_xdp_drops: 60
     tx0_xdp_tx_drops: 2
     tx1_xdp_tx_drops: 4
`, netdev.DriverCounters{RxMissed: 43, RxXDPDrop: 65, TxDrop: 6}},

		{"veth", `NIC statistics:
     peer_ifindex: 7
     rx_queue_0_xdp_packets: 100
     rx_queue_0_xdp_bytes: 6400
     rx_queue_0_drops: 1
     rx_queue_0_xdp_redirect: 3
     rx_queue_0_xdp_drops: 20
     rx_queue_0_xdp_tx: 9
     rx_queue_0_xdp_tx_errors: 4
     tx_queue_0_xdp_xmit: 5
     tx_queue_0_xdp_xmit_errors: 300
     rx_queue_11_drops: 50
     rx_queue_11_xdp_drops: 600
     rx_pp_alloc_fast: 77
`, netdev.DriverCounters{RxMissed: 51, RxXDPDrop: 620, TxErrors: 304}},

		{"e1000e", `NIC statistics:
     rx_packets: 100
     tx_packets: 100
     rx_errors: 30
     tx_errors: 6
     tx_dropped: 5
     multicast: 1
     collisions: 9
     rx_length_errors: 7
     rx_over_errors: 0
     rx_crc_errors: 20
     rx_frame_errors: 3
     rx_no_buffer_count: 444
     rx_missed_errors: 55
     tx_aborted_errors: 2
     tx_carrier_errors: 0
     tx_fifo_errors: 0
     tx_heartbeat_errors: 0
     tx_window_errors: 4
     tx_abort_late_coll: 4
     rx_long_length_errors: 5
     rx_short_length_errors: 2
     rx_align_errors: 3
     rx_flow_control_xon: 1
     rx_flow_control_xoff: 2
     tx_flow_control_xon: 3
     tx_flow_control_xoff: 4
     rx_csum_offload_errors: 8
     alloc_rx_buff_failed: 9
     rx_dma_failed: 0
     uncorr_ecc_errors: 0
`, netdev.DriverCounters{RxMissed: 55, RxCRC: 20, RxErrors: 30, TxErrors: 6, TxDrop: 5, PauseRx: 3, PauseTx: 7}},

		{"r8169", `NIC statistics:
     tx_packets: 100
     rx_packets: 200
     tx_errors: 7
     rx_errors: 4
     rx_missed: 33
     align_errors: 5
     tx_single_collisions: 0
     tx_multi_collisions: 0
     unicast: 190
     broadcast: 5
     multicast: 5
     tx_aborted: 2
     tx_underrun: 1
`, netdev.DriverCounters{RxMissed: 33, RxErrors: 5, TxErrors: 7}},

		{"bnxt_en", `
     [0]: rx_ucast_packets: 100
     [0]: rx_discards: 4
     [0]: rx_errors: 1
     [0]: tx_errors: 0
     [0]: tx_discards: 2
     [0]: rx_l4_csum_errors: 6
     [0]: rx_buf_errors: 0
     [1]: rx_discards: 50
     [1]: rx_errors: 2
     [1]: tx_discards: 20
     rx_total_l4_csum_errors: 6
     rx_total_buf_errors: 0
     rx_total_oom_discards: 8
     rx_total_ring_discards: 54
     tx_total_ring_discards: 22
     rx_fcs_err_frames: 3
     rx_pause_frames: 10
     rx_pfc_frames: 0
     rx_align_err_frames: 0
     rx_ovrsz_frames: 9
     rx_stat_discard: 0
     rx_stat_err: 0
     tx_pause_frames: 11
     tx_err: 0
     rx_discard_packets_cos0: 54
`, netdev.DriverCounters{RxMissed: 62, RxCRC: 3, RxErrors: 12, TxDrop: 22, PauseRx: 10, PauseTx: 11}},

		{"tg3", `
     rx_octets: 6400
     rx_fragments: 1
     rx_fcs_errors: 2
     rx_align_errors: 4
     rx_xon_pause_rcvd: 10
     rx_xoff_pause_rcvd: 20
     rx_xoff_entered: 19
     rx_undersize_packets: 8
     tx_xon_sent: 30
     tx_xoff_sent: 40
     tx_mac_errors: 5
     tx_carrier_sense_errors: 0
     tx_discards: 6
     tx_errors: 0
     rxbds_empty: 77
     rx_discards: 70
     rx_errors: 0
`, netdev.DriverCounters{RxMissed: 70, RxCRC: 2, RxErrors: 15, TxErrors: 5, TxDrop: 6, PauseRx: 30, PauseTx: 70}},

		{"ena", `
     tx_timeout: 0
     rx_drops: 21
     queue_0_tx_cnt: 100
     queue_0_tx_dma_mapping_err: 1
     queue_0_rx_cnt: 100
     queue_0_rx_bad_desc_num: 3
     queue_0_rx_xdp_aborted: 4
     queue_0_rx_xdp_drop: 50
     queue_0_rx_xdp_invalid: 6
     queue_1_rx_xdp_drop: 700
     bw_in_allowance_exceeded: 99
`, netdev.DriverCounters{RxMissed: 21, RxErrors: 3, RxXDPDrop: 760, TxErrors: 1}},

		{"vmxnet3", `
     Tx Queue#: 0
       ucast pkts tx: 10
       pkts tx err: 3
       pkts tx discard: 4
       drv dropped tx total: 50
          too many frags: 50
     Rx Queue#: 0
       pkts rx OOB: 600
       pkts rx err: 7
       drv dropped rx total: 5
          err: 2
          fcs: 3
       rx buf alloc fail: 9
`, netdev.DriverCounters{RxMissed: 600, RxCRC: 3, RxErrors: 7, TxErrors: 3, TxDrop: 54}},

		{"atlantic", `
     InPackets: 100
     InErrors: 9
     OutErrors: 0
     InDroppedDma: 30
     Queue[0] InPackets: 50
     Queue[0] InErrors: 4
     Queue[1] InErrors: 5
`, netdev.DriverCounters{RxMissed: 30, RxErrors: 9}},

		{"bnx2x, brb and rings", `
     [0]: rx_discards: 5
     [1]: rx_discards: 6
     [0]: rx_skb_alloc_discard: 1
     rx_crc_errors: 2
     rx_discards: 11
     rx_brb_discard: 100
     rx_skb_alloc_discard: 1
     rx_pause_frames: 3
     pfc_frames_sent: 4
`, netdev.DriverCounters{RxMissed: 112, RxCRC: 2, RxErrors: 2, PauseRx: 3, PauseTx: 4}},

		{"cxgb4", `
     rx_bg0_frames_dropped: 1
     rx_bg1_frames_dropped: 2
`, netdev.DriverCounters{RxMissed: 3}},
		{"qede", "no_buff_discards: 7\nbrb_discards: 50\n0: rx_hw_errors: 1\n1: rx_hw_errors: 2\ntx_err_drop_pkts: 9\n",
			netdev.DriverCounters{RxMissed: 57, RxErrors: 3, TxDrop: 9}},
		{"stmmac", "mmc_rx_crc_error: 4\nrx_crc_errors: 4\nmmc_rx_fifo_overflow: 6\nrx_overflow_cntr: 5\nrx_missed_cntr: 10\nmmc_tx_pause_frame: 3\n",
			netdev.DriverCounters{RxMissed: 16, RxCRC: 4, RxErrors: 4, PauseTx: 3}},
		{"mvneta", "rx_discard: 1\nrx_overrun: 20\nbad_crc_event: 3\nmac_receive_error: 4\ngood_fc_received: 5\nfc_sent: 6\nrx_xdp_drop: 7\n",
			netdev.DriverCounters{RxMissed: 21, RxCRC: 3, RxErrors: 7, RxXDPDrop: 7, PauseRx: 5, PauseTx: 6}},
		{"sfc", "port_rx_nodesc_drops: 8\nport_rx_overflow: 90\nport_rx_bad: 1\nport_tx_pause: 2\n",
			netdev.DriverCounters{RxMissed: 98, RxCRC: 1, RxErrors: 1, PauseTx: 2}},
		{"hns3", "mac_rx_fcs_err_pkt_num: 2\nmac_rx_mac_pause_num: 3\ntxq0_dropped: 4\ntxq1_dropped: 50\n",
			netdev.DriverCounters{RxCRC: 2, RxErrors: 2, TxDrop: 54, PauseRx: 3}},
		{"none", "", netdev.DriverCounters{}},
	} {
		t.Run(c.driver, func(t *testing.T) {
			all := statistics(t, c.text)
			c.want.All = maps.Clone(all)
			if diff := cmp.Diff(c.want, netdev.Classify(all)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if got := netdev.Classify(nil); !reflect.DeepEqual(got, netdev.DriverCounters{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// TestDriverSince: a class is that of the differences, so that a total that was
// larger before does not hide what is new.
func TestDriverSince(t *testing.T) {
	classify := func(text string) netdev.DriverCounters { return netdev.Classify(statistics(t, text)) }
	before := classify("rx_errors: 100\nrx_length_errors: 5\nrx_queue_0_drops: 10\npeer_ifindex: 9\nlevel: 9\n")
	after := classify("rx_errors: 101\nrx_length_errors: 45\nrx_queue_0_drops: 12\nrx_queue_1_drops: 3\npeer_ifindex: 9\nlevel: 8\n")
	got, err := after.Since(before)
	want := netdev.DriverCounters{RxErrors: 40, RxMissed: 5, All: map[string]uint64{
		"rx_errors": 1, "rx_length_errors": 40, "rx_queue_0_drops": 2, "rx_queue_1_drops": 3, "peer_ifindex": 0,
	}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if got, err := before.Since(after); !errors.Is(err, netdev.ErrReset) {
		t.Errorf("backwards: %+v, %v", got, err)
	}
}

// TestDriver compares with the kernel's other words about a veth pair, and with
// ethtool(8) where it is installed.
func TestDriver(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Queues: 3})
	for _, ends := range [][2]netdev.Ref{{tx, rx}, {rx, tx}} {
		p := open(t, ends[0])
		got, err := p.Driver()
		if err != nil {
			t.Fatal(err)
		}
		if peer := lookup(t, ends[1]).Index; got.All["peer_ifindex"] != uint64(peer) {
			t.Errorf("%v: peer_ifindex %d, the peer's index is %d", ends[0], got.All["peer_ifindex"], peer)
		}
		for _, q := range []string{"0", "1", "2"} {
			if _, ok := got.All["rx_queue_"+q+"_xdp_packets"]; !ok {
				t.Errorf("%v: no rx_queue_%s_xdp_packets in %v", ends[0], q, got.All)
			}
		}
		if clean := (netdev.DriverCounters{All: got.All}); !cmp.Equal(got, clean) {
			t.Errorf("%v: %+v; nothing has happened yet", ends[0], got)
		}
		tool, err := exec.LookPath("ethtool")
		if err != nil {
			continue
		}
		testnet.In(t, ends[0], func() error {
			out, err := exec.Command(tool, "-S", ends[0].Name).Output()
			if diff := cmp.Diff(statistics(t, string(out)), got.All); diff != "" {
				t.Errorf("%v (-ethtool +Driver)\n%s", ends[0], diff)
			}
			return err
		})
	}
}

// TestDriverRenamed: the interface is asked, not whichever has its name.
func TestDriverRenamed(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error {
		if err := errors.Join(h.LinkSetDown(link), h.LinkSetName(link, "renamed")); err != nil {
			return err
		}
		_, err := other(h)
		if err != nil {
			return err
		}
		l, err := h.LinkByName("other-end")
		if err != nil {
			return err
		}
		return h.LinkSetName(l, tx.Name)
	})
	got, err := p.Driver()
	if peer := lookup(t, rx).Index; err != nil || got.All["peer_ifindex"] != uint64(peer) {
		t.Errorf("%v, %v; the peer's index is %d", got, err, peer)
	}
}

// TestDriverNone: lo has no counters of a driver, and that is no error.
func TestDriverNone(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	got, err := open(t, netdev.Ref{Netns: tx.Netns, Name: "lo"}).Driver()
	if err != nil || !reflect.DeepEqual(got, netdev.DriverCounters{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDriverGone(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	p := open(t, tx)
	change(t, tx, func(h *netlink.Handle, link netlink.Link) error { return h.LinkDel(link) })
	if _, err := p.Driver(); !errors.Is(err, netdev.ErrLost) {
		t.Errorf("interface removed: %v, want ErrLost", err)
	}
	p.Close()
	if _, err := p.Driver(); !errors.Is(err, os.ErrClosed) || !strings.HasPrefix(err.Error(), tx.String()+": driver counters") {
		t.Errorf("closed: %v", err)
	}
}

// FuzzClassify: any names, and the classes hold no more than all counters do.
func FuzzClassify(f *testing.F) {
	f.Add([]byte("rx_queue_0_drops\x00rx_queue_1_drops\x00rx_fifo_errors"), uint32(7))
	f.Add([]byte("[0]: rx_discards\x00 fcs \x00###\x00rx#_drops\x000"), uint32(1))
	f.Add([]byte("rx_crc_errors\x00rx_errors\x00rx_dropped\x00port.rx_bytes"), uint32(100))
	f.Fuzz(func(t *testing.T, names []byte, each uint32) {
		all, sum := map[string]uint64{}, uint64(0)
		for i, name := range bytes.Split(names, []byte{0}) {
			if _, there := all[string(name)]; !there {
				all[string(name)] = uint64(each) + uint64(i)
				sum += uint64(each) + uint64(i)
			}
		}
		c := netdev.Classify(all)
		// RxCRC is in RxErrors.
		if got := c.RxMissed + c.RxErrors + c.RxXDPDrop + c.TxErrors + c.TxDrop + c.PauseRx + c.PauseTx; got > sum || c.RxCRC > c.RxErrors {
			t.Fatalf("%+v holds %d, all counters %d", c, got, sum)
		}
	})
}
