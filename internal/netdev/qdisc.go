package netdev

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

// QdiscCounters are those of an interface's queueing disciplines, from the root
// down, each frame once: struct gnet_stats_queue, linux/gen_stats.h. All but
// Backlog are totals since the disciplines were made; the kernel's own are of 32
// bits. The disciplines of arriving frames (ingress, clsact) are not among them,
// and rings that go past the disciplines (PACKET_QDISC_BYPASS) never show here.
type QdiscCounters struct {
	Drops      uint64 // frames
	Overlimits uint64 // times that a discipline held a frame back, or found its limit reached
	Requeues   uint64 // times that the driver had no room, and the frame went back
	Backlog    uint64 // frames that wait now
}

// Since is what was counted after before; Backlog stays that of c. Errors:
// ErrReset where a counter has gone back: it wrapped, or the disciplines are others.
func (c QdiscCounters) Since(before QdiscCounters) (QdiscCounters, error) {
	d := QdiscCounters{Backlog: c.Backlog}
	for _, f := range []struct {
		name         string
		to           *uint64
		after, start uint64
	}{
		{"drops", &d.Drops, c.Drops, before.Drops},
		{"overlimits", &d.Overlimits, c.Overlimits, before.Overlimits},
		{"requeues", &d.Requeues, c.Requeues, before.Requeues},
	} {
		if f.after < f.start {
			return QdiscCounters{}, fmt.Errorf("qdisc: %w: %s went from %d to %d", ErrReset, f.name, f.start, f.after)
		}
		*f.to = f.after - f.start
	}
	return d, nil
}

// Qdiscs reads the counters of the interface's queueing disciplines, tc-qdisc(8).
// Errors: those of Counters.
func (p *Port) Qdiscs() (QdiscCounters, error) {
	// Of an interface that is gone the kernel lists no disciplines, and no error.
	link, err := p.link()
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return QdiscCounters{}, State{Ref: p.ref, Deleted: true}.Lost()
	}
	var all []netlink.Qdisc
	if err == nil {
		all, err = p.qdiscs(link)
	}
	if err != nil {
		return QdiscCounters{}, fmt.Errorf("%v: qdiscs: %w", p.ref, err)
	}
	return sumQdiscs(all), nil
}

func (p *Port) qdiscs(link netlink.Link) ([]netlink.Qdisc, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == nil {
		return nil, os.ErrClosed
	}
	return list(func() ([]netlink.Qdisc, error) { return p.h.QdiscList(link) })
}

// QdiscKinds are the kinds of the interface's queueing disciplines, in the kernel's
// order: the root first. Errors: those of Counters.
func (p *Port) QdiscKinds() ([]string, error) {
	link, err := p.link()
	if err != nil {
		return nil, fmt.Errorf("%v: qdiscs: %w", p.ref, err)
	}
	all, err := p.qdiscs(link)
	if err != nil {
		return nil, fmt.Errorf("%v: qdiscs: %w", p.ref, err)
	}
	var kinds []string
	for _, q := range all {
		kinds = append(kinds, q.Type())
	}
	return kinds, nil
}

// sumQdiscs walks the tree from its root.
//
// A parent counts the drops of its children with its own: at enqueue it sees
// their verdict, and what they drop later they tell up the tree
// (qdisc_tree_reduce_backlog, net/sched/sch_api.c). So it does with the frames
// that wait. Holding back and requeueing are each discipline's own, except that
// mq and mqprio have nothing of their own and show the sum of their children.
//
// Where a parent counts its children, the larger of it and their sum is taken: a
// child that was replaced took its counts with it, and a parent need not have
// counted.
func sumQdiscs(all []netlink.Qdisc) QdiscCounters {
	var roots []netlink.Qdisc
	children := map[uint32][]netlink.Qdisc{} // by the parent's handle
	for _, q := range all {
		switch parent := q.Attrs().Parent; parent {
		case netlink.HANDLE_ROOT:
			roots = append(roots, q)
		case netlink.HANDLE_INGRESS:
		default:
			major := parent &^ 0xffff // TC_H_MAJ, linux/pkt_sched.h: the rest is the class
			children[major] = append(children[major], q)
		}
	}
	var sum func([]netlink.Qdisc) QdiscCounters
	sum = func(level []netlink.Qdisc) (total QdiscCounters) {
		for _, q := range level {
			a := q.Attrs()
			below := children[a.Handle]
			// The default mq and its leaves all have handle 0: the leaves, which come
			// later, are not their own children.
			delete(children, a.Handle)
			c := sum(below)
			if s := a.Statistics; s != nil && s.Queue != nil {
				c.Drops = max(c.Drops, uint64(s.Queue.Drops))
				c.Backlog = max(c.Backlog, uint64(s.Queue.Qlen))
				if kind := q.Type(); kind == "mq" || kind == "mqprio" {
					c.Overlimits = max(c.Overlimits, uint64(s.Queue.Overlimits))
					c.Requeues = max(c.Requeues, uint64(s.Queue.Requeues))
				} else {
					c.Overlimits += uint64(s.Queue.Overlimits)
					c.Requeues += uint64(s.Queue.Requeues)
				}
			}
			total.Drops += c.Drops
			total.Overlimits += c.Overlimits
			total.Requeues += c.Requeues
			total.Backlog += c.Backlog
		}
		return total
	}
	return sum(roots)
}
