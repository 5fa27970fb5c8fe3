package tpacket

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pktgen/ring"
	"pktgen/ring/internal/shm"
	"pktgen/ring/internal/sock"
)

// Sizes of an RX ring. A block is handed over when it is full or rxTimeoutMs
// after its first frame, so 256 blocks ride out a second in which the sink
// does not run, at any rate up to 2 M frames/s of 60 octets.
const (
	DefaultRXBlockSize = 1 << 18 // octets; two of the largest frames
	DefaultRXBlocks    = 256     // 64 MiB in all
	rxTimeoutMs        = 4
)

// RXOptions describe an RX ring.
type RXOptions struct {
	Interface string // name, for errors
	Index     int    // interface index in the namespace of the calling thread
	Queue     int    // worker number, for errors
	BlockSize int    // octets, a power of two and of whole pages; 0 = DefaultRXBlockSize
	Blocks    int    // 0 = DefaultRXBlocks
	Promisc   bool   // take frames to every MAC; undone by the kernel when the socket closes
	Fanout    *Fanout
	Hardware  bool // take the NIC's receive times where it notes them (Frame.Hardware)
}

// RX is a TPACKET_V3 receive ring. It implements ring.RX.
type RX struct {
	sock   *sock.Socket
	mem    *shm.Mem
	status []*atomic.Uint32 // block_status of each block: written by both sides, passes ownership
	blocks [][]byte

	next  int // the block that the kernel fills or has just filled
	block ring.Block
	drops ring.KernelDrops
	lost  error // the socket's error, told once it has been read out
}

var _ ring.RX = (*RX)(nil)

// OpenRX opens a receive ring for all protocols on an interface of the calling
// thread's network namespace. It sees what arrives, not what the host sends.
func OpenRX(o RXOptions) (*RX, error) {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultRXBlockSize
	}
	if o.Blocks == 0 {
		o.Blocks = DefaultRXBlocks
	}
	sock, err := sock.Packet(o.Interface, o.Queue)
	if err != nil {
		return nil, err
	}
	r := &RX{sock: sock}
	if err := r.setUp(o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *RX) setUp(o RXOptions) error {
	s := r.sock
	if err := s.SetInt("PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return err
	}
	// Linux 4.20. Without it the ring also holds what this host sends.
	if err := s.SetInt("PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return err
	}
	if o.Hardware {
		// Both: where the NIC noted none, the kernel's.
		const flags = unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_SOFTWARE
		if err := s.SetInt("PACKET_TIMESTAMP", unix.PACKET_TIMESTAMP, flags); err != nil {
			return err
		}
	}
	const frameSize = 2048 // the kernel wants one that divides the block; V3 packs frames regardless
	req := unix.TpacketReq3{
		Block_size: uint32(o.BlockSize), Block_nr: uint32(o.Blocks),
		Frame_size: frameSize, Frame_nr: uint32(o.BlockSize / frameSize * o.Blocks),
		Retire_blk_tov: rxTimeoutMs,
	}
	length := o.BlockSize * o.Blocks
	if err := unix.SetsockoptTpacketReq3(s.FD, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return s.Errorf("PACKET_RX_RING of "+sock.Size(length), err)
	}
	mem, err := shm.Map(s.FD, 0, length)
	if err != nil {
		return s.Errorf("mmap of "+sock.Size(length), err)
	}
	r.view(mem, o.BlockSize, o.Blocks)
	if err := s.Shut(); err != nil {
		return err
	}
	if err := s.Bind(o.Index, unix.ETH_P_ALL); err != nil {
		return err
	}
	if o.Promisc {
		m := unix.PacketMreq{Ifindex: int32(o.Index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(s.FD, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			return s.Errorf("PACKET_ADD_MEMBERSHIP (promiscuous)", err)
		}
	}
	if o.Fanout != nil {
		return o.Fanout.join(s)
	}
	return nil
}

func (r *RX) view(mem *shm.Mem, blockSize, blocks int) {
	r.mem = mem
	r.status, r.blocks = make([]*atomic.Uint32, blocks), make([][]byte, blocks)
	for i := range blocks {
		r.status[i] = mem.Word(i*blockSize + blockStatus)
		r.blocks[i] = mem.Bytes(i*blockSize, blockSize)
	}
}

// Start implements ring.RX.
func (r *RX) Start() error {
	if err := unix.SetsockoptInt(r.sock.FD, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
		return r.sock.Errorf("SO_DETACH_FILTER", err)
	}
	return nil
}

// Next implements ring.RX.
func (r *RX) Next(wait time.Duration) (*ring.Block, error) {
	if r.status[r.next].Load()&unix.TP_STATUS_USER == 0 {
		if err := r.wait(wait); err != nil {
			return nil, err
		}
	}
	b := r.load(r.next)
	if r.next++; r.next == len(r.blocks) {
		r.next = 0
	}
	return b, nil
}

// load points the cursor at the frames of block i.
func (r *RX) load(i int) *ring.Block {
	mem := r.blocks[i]
	first := binary.NativeEndian.Uint32(mem[blockFirstPkt:])
	count := binary.NativeEndian.Uint32(mem[blockNumPkts:])
	r.block.Load(v3, mem, int(first), int(count))
	r.block.Index = i
	return &r.block
}

// wait returns nil once the next block is ours.
func (r *RX) wait(wait time.Duration) error {
	for end := time.Now().Add(wait); ; wait = time.Until(end) {
		if r.lost == nil {
			r.lost = r.sock.Poll(unix.POLLIN, max(wait, 0))
		}
		if r.status[r.next].Load()&unix.TP_STATUS_USER != 0 {
			return nil // also after an error, which is kept: what has arrived is read first
		}
		if r.lost != nil {
			return r.lost
		}
		// The runtime's own signals end a poll early: that is no timeout.
		if !time.Now().Before(end) {
			return ring.ErrTimeout
		}
	}
}

// Release implements ring.RX.
func (r *RX) Release(b *ring.Block) {
	r.status[b.Index].Store(unix.TP_STATUS_KERNEL)
}

// Drops implements ring.RX.
func (r *RX) Drops() (ring.KernelDrops, error) {
	st, err := unix.GetsockoptTpacketStatsV3(r.sock.FD, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return r.drops, r.sock.Errorf("PACKET_STATISTICS", err)
	}
	r.drops.Packets += uint64(st.Packets)
	r.drops.Drops += uint64(st.Drops)
	r.drops.Freezes += uint64(st.Freeze_q_cnt)
	return r.drops, nil
}

// Close implements ring.RX.
func (r *RX) Close() error {
	var unmap error
	if r.mem != nil {
		unmap = r.mem.Unmap()
		r.mem, r.status, r.blocks = nil, nil, nil
	}
	return errors.Join(unmap, r.sock.Close())
}

// tagOctets is what an 802.1Q tag adds to a frame.
const tagOctets = 4

// v3 walks the frames of a TPACKET_V3 block.
var v3 ring.Walker = v3Walker{}

type v3Walker struct{}

// Frame implements ring.Walker. Each of the kernel's words is read once, and
// checked before it is used. The next frame begins behind this one's header, so
// that a walk ends, whatever the block says.
func (v3Walker) Frame(block []byte, off int, f *ring.Frame) (next int, ok bool) {
	if off < blockHeader || off > len(block)-v3Header {
		return 0, false
	}
	h := block[off : off+v3Header : off+v3Header]
	mac := int(binary.NativeEndian.Uint16(h[v3Mac:]))
	snap := binary.NativeEndian.Uint32(h[v3Snaplen:])
	room := len(block) - off - mac
	if mac < v3Header || room < 0 || snap > uint32(room) {
		return 0, false
	}
	f.Data = block[off+mac : off+mac+int(snap) : off+mac+int(snap)]
	f.WireLen = int(binary.NativeEndian.Uint32(h[v3Len:]))
	f.TimeNs = int64(binary.NativeEndian.Uint32(h[v3Sec:]))*1e9 + int64(binary.NativeEndian.Uint32(h[v3Nsec:]))
	status := binary.NativeEndian.Uint32(h[v3Status:])
	f.ChecksumPartial = status&unix.TP_STATUS_CSUMNOTREADY != 0
	f.Hardware = status&unix.TP_STATUS_TS_RAW_HARDWARE != 0
	f.VLAN, f.TPID = 0, 0
	if status&unix.TP_STATUS_VLAN_VALID != 0 {
		f.VLAN = uint16(binary.NativeEndian.Uint32(h[v3TCI:]))
		f.TPID = unix.ETH_P_8021Q
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			f.TPID = binary.NativeEndian.Uint16(h[v3TPID:])
		}
		f.WireLen += tagOctets
	}
	step := int(binary.NativeEndian.Uint32(h[v3NextOffset:]))
	if step < v3Header {
		return len(block), true // the last frame, or nonsense: no frame begins there
	}
	return off + step, true
}
