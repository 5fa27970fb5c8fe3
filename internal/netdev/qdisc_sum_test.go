package netdev

import (
	"testing"

	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"
)

// TestSumQdiscs makes trees of which it knows what each discipline did by itself,
// shows them as the kernel does, in any order, and wants each thing counted once.
func TestSumQdiscs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []netlink.Qdisc
		var want QdiscCounters
		number := func(name string) uint32 { return rapid.Uint32Range(0, 1000).Draw(t, name) }
		handle := uint32(0)
		var grow func(parent uint32, depth int) netlink.GnetStatsQueue
		grow = func(parent uint32, depth int) netlink.GnetStatsQueue {
			own := netlink.GnetStatsQueue{Drops: number("drops"), Overlimits: number("overlimits"), Requeues: number("requeues"), Qlen: number("qlen")}
			q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{Parent: parent}, QdiscType: "htb"}
			// The default mq has handle 0, as the leaves below it.
			byDefault := depth == 0 && rapid.Bool().Draw(t, "mq by default")
			children := 0
			if byDefault || depth < 3 {
				children = rapid.IntRange(0, 3).Draw(t, "children")
			}
			leafByDefault := depth > 0 && children == 0 && rapid.Bool().Draw(t, "leaf by default")
			if !byDefault && !leafByDefault {
				handle += 0x10000
				q.Handle = handle
			}
			if byDefault || depth == 0 && rapid.Bool().Draw(t, "mq") {
				q.QdiscType, own = "mq", netlink.GnetStatsQueue{}
			}
			want.Drops += uint64(own.Drops)
			want.Overlimits += uint64(own.Overlimits)
			want.Requeues += uint64(own.Requeues)
			want.Backlog += uint64(own.Qlen)
			below := 3
			if !byDefault {
				below = depth + 1
			}
			shown, mine := own, q.Handle
			for i := range children {
				c := grow(mine|uint32(i+1), below)
				shown.Drops += c.Drops
				shown.Qlen += c.Qlen
				if q.QdiscType == "mq" {
					shown.Overlimits += c.Overlimits
					shown.Requeues += c.Requeues
				}
			}
			q.Statistics = &netlink.QdiscStatistics{Queue: &shown}
			all = append(all, q)
			if rapid.IntRange(0, 9).Draw(t, "hidden") == 0 && depth > 0 && children == 0 && q.QdiscType != "mq" {
				// As tbf's own child: its drops and frames show in its parent's alone.
				all = all[:len(all)-1]
				want.Overlimits -= uint64(own.Overlimits)
				want.Requeues -= uint64(own.Requeues)
				shown.Overlimits, shown.Requeues = 0, 0
			}
			return shown
		}
		grow(netlink.HANDLE_ROOT, 0)
		all = append(all, &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			Handle: 0xffff0000, Parent: netlink.HANDLE_INGRESS,
			Statistics: &netlink.QdiscStatistics{Queue: &netlink.GnetStatsQueue{Drops: 77, Overlimits: 77, Requeues: 77, Qlen: 77}},
		}}, &netlink.GenericQdisc{QdiscType: "noqueue", QdiscAttrs: netlink.QdiscAttrs{Parent: netlink.HANDLE_ROOT, Handle: 0xfffe0000}})
		shuffled := rapid.Permutation(all).Draw(t, "order")
		if got := sumQdiscs(shuffled); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

// TestSumQdiscsOdd: a list that was read while it changed ends the walk, and a
// parent that counts less than its children is no reason to forget theirs.
func TestSumQdiscsOdd(t *testing.T) {
	q := func(handle, parent uint32, drops uint32) netlink.Qdisc {
		return &netlink.GenericQdisc{QdiscType: "tbf", QdiscAttrs: netlink.QdiscAttrs{
			Handle: handle, Parent: parent, Statistics: &netlink.QdiscStatistics{Queue: &netlink.GnetStatsQueue{Drops: drops}},
		}}
	}
	for name, c := range map[string]struct {
		all  []netlink.Qdisc
		want uint64
	}{
		"none":                  {nil, 0},
		"no root":               {[]netlink.Qdisc{q(0x20000, 0x10001, 5)}, 0},
		"children of itself":    {[]netlink.Qdisc{q(0x10000, netlink.HANDLE_ROOT, 5), q(0x10000, 0x10001, 3)}, 5},
		"parent does not count": {[]netlink.Qdisc{q(0x10000, netlink.HANDLE_ROOT, 1), q(0x20000, 0x10001, 5), q(0x30000, 0x10002, 4)}, 9},
	} {
		if got := sumQdiscs(c.all).Drops; got != c.want {
			t.Errorf("%s: %d drops, want %d", name, got, c.want)
		}
	}
}
