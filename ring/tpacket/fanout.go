package tpacket

import (
	"sync"

	"golang.org/x/sys/unix"

	"pktgen/ring/internal/sock"
)

// Fanout spreads the frames of one interface over several RX rings, so that
// each stream goes to one of them: a classic BPF program takes the stream id
// out of the stamp, and the kernel takes it modulo the number of rings. So no
// sequence is shared between workers. What has no stamp goes to the first ring.
//
// Share one Fanout between the workers; each ring joins as it is opened.
// Safe from any goroutine.
type Fanout struct {
	mu sync.Mutex
	id int // the group's number, drawn by the kernel for the first to join
	n  int
}

func (f *Fanout) join(s *sock.Socket) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	mode := unix.PACKET_FANOUT_CBPF
	if f.n == 0 {
		mode |= unix.PACKET_FANOUT_FLAG_UNIQUEID
	}
	if err := s.SetInt("PACKET_FANOUT", unix.PACKET_FANOUT, f.id|mode<<16); err != nil {
		return err
	}
	if f.n++; f.n > 1 {
		return nil
	}
	v, err := unix.GetsockoptInt(s.FD, unix.SOL_PACKET, unix.PACKET_FANOUT)
	if err != nil {
		return s.Errorf("PACKET_FANOUT", err)
	}
	f.id = v & 0xffff
	prog := streamProgram()
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if err := unix.SetsockoptSockFprog(s.FD, unix.SOL_PACKET, unix.PACKET_FANOUT_DATA, &p); err != nil {
		return s.Errorf("PACKET_FANOUT_DATA", err)
	}
	return nil
}

// Where the stamp's fields stand behind the UDP header (product contract, "the
// stamp"): magic at 0 (0x9e37, closing 0x9e38), stream id at 4.
const (
	stampMagic  = 0x9e37
	closing     = 0x9e38
	stampStream = 4
)

// streamProgram returns the stream id of a stamped UDP frame, 0 for all else.
// The kernel runs it with the packet at the network header, tags taken off.
func streamProgram() []unix.SockFilter {
	const (
		ldb   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		ldh   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		ldhX  = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		ldxIH = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		ldxI  = unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM
		jeq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		retA  = unix.BPF_RET | unix.BPF_A
		retK  = unix.BPF_RET | unix.BPF_K
		proto = 0xfffff000 // SKF_AD_OFF + SKF_AD_PROTOCOL
		udp   = 8
	)
	return []unix.SockFilter{
		{Code: ldh, K: proto},
		{Code: jeq, K: unix.ETH_P_IP, Jf: 4},
		{Code: ldb, K: 9}, // IPv4 protocol
		{Code: jeq, K: unix.IPPROTO_UDP, Jf: 9},
		{Code: ldxIH, K: 0}, // X = IPv4 header length
		{Code: unix.BPF_JMP | unix.BPF_JA, K: 4},
		{Code: jeq, K: unix.ETH_P_IPV6, Jf: 6},
		{Code: ldb, K: 6}, // IPv6 next header
		{Code: jeq, K: unix.IPPROTO_UDP, Jf: 4},
		{Code: ldxI, K: 40}, // X = IPv6 header length
		{Code: ldhX, K: udp},
		{Code: jeq, K: stampMagic, Jt: 2},
		{Code: jeq, K: closing, Jt: 1},
		{Code: retK, K: 0},
		{Code: ldhX, K: udp + stampStream},
		{Code: retA},
	}
}
