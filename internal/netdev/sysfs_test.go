package netdev

import (
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// tree is a directory of /sys/class/net: name, content.
func tree(files map[string]string) fstest.MapFS {
	fs := fstest.MapFS{}
	for name, content := range files {
		fs[name] = &fstest.MapFile{Data: []byte(content + "\n")}
	}
	return fs
}

func TestReadSysfs(t *testing.T) {
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0x31}
	before := Info{Index: 7, MAC: mac, NUMANode: -1, TxQueues: 64, RxQueues: 64}
	with := func(change func(*Info)) Info {
		i := before
		change(&i)
		return i
	}
	own := map[string]string{"ifindex": "7", "address": "02:00:00:00:00:31"}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Info
	}{
		{"empty", nil, before},
		{"another interface of that name: index", map[string]string{"ifindex": "8", "address": own["address"], "speed": "1000"}, before},
		{"another interface of that name: address", map[string]string{"ifindex": "7", "address": "02:00:00:00:00:32", "speed": "1000"}, before},
		{"speed", map[string]string{"speed": "400000"}, with(func(i *Info) { i.SpeedBps = 400_000_000_000 })},
		{"speed unknown", map[string]string{"speed": "-1"}, before},
		{"speed unknown, unsigned", map[string]string{"speed": "4294967295"}, before},
		{"speed in words", map[string]string{"speed": "Unknown"}, before},
		{"node", map[string]string{"device/numa_node": "1"}, with(func(i *Info) { i.NUMANode = 1 })},
		{"no node", map[string]string{"device/numa_node": "-1"}, before},
		{"queues in use", map[string]string{
			"queues/tx-0/xps_cpus": "0", "queues/tx-1/xps_cpus": "0", "queues/rx-0/rps_cpus": "0",
		}, with(func(i *Info) { i.TxQueues, i.RxQueues = 2, 1 })},
		{"XPS, more than ten queues", map[string]string{
			"queues/tx-0/xps_cpus": "1", "queues/tx-1/xps_cpus": "00000001,80000000", "queues/tx-2/xps_cpus": "garbage",
			"queues/tx-3/xps_cpus": "0", "queues/tx-4/xps_cpus": "0", "queues/tx-5/xps_cpus": "0", "queues/tx-6/xps_cpus": "0",
			"queues/tx-7/xps_cpus": "0", "queues/tx-8/xps_cpus": "0", "queues/tx-9/xps_cpus": "0", "queues/tx-10/xps_cpus": "f0",
		}, with(func(i *Info) {
			i.TxQueues = 11
			i.XPS = [][]int{{0}, {31, 32}, nil, nil, nil, nil, nil, nil, nil, nil, {4, 5, 6, 7}}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := tree(own)
			for name, file := range tree(c.files) {
				fs[name] = file
			}
			got := before
			got.readSysfs(fs)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	t.Run("driver", func(t *testing.T) {
		fs := tree(own)
		fs["device/driver"] = &fstest.MapFile{Data: []byte("../../../../bus/pci/drivers/ixgbe"), Mode: 0o777 | 1<<27}
		got := before
		got.readSysfs(fs)
		if got.Driver != "ixgbe" {
			t.Errorf("driver %q", got.Driver)
		}
	})
	t.Run("unreadable", func(t *testing.T) { // speed of an interface that is down: EINVAL
		fs := tree(own)
		fs["speed"] = &fstest.MapFile{Mode: 1 << 31}
		got := before
		got.readSysfs(fs)
		if diff := cmp.Diff(before, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// FuzzParseMask compares with a big integer's bits.
func FuzzParseMask(f *testing.F) {
	for _, s := range []string{"", "0", "f", "00000000,0000000f", "80000000,00000000", "ff,ffffffff,00000001", "x", ",", "1,", "1,,1", "100000000", "-1", "+1", "0x1", "_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := parseMask(text)
		if !slices.IsSorted(got) {
			t.Fatalf("parseMask(%q) = %v: not in order", text, got)
		}
		groups := strings.Split(text, ",")
		v := new(big.Int)
		for _, g := range groups {
			w, ok := new(big.Int).SetString("0"+g, 16)
			if !ok || g == "" || strings.ContainsAny(g, "+-_xX") || w.BitLen() > 32 {
				if got != nil {
					t.Fatalf("parseMask(%q) = %v, want nil: no mask", text, got)
				}
				return
			}
			v.Lsh(v, 32).Or(v, w)
		}
		var want []int
		for bit := range v.BitLen() {
			if v.Bit(bit) != 0 {
				want = append(want, bit)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("parseMask(%q) = %v, want %v", text, got, want)
		}
	})
}

func TestNearest(t *testing.T) {
	if got := nearest("eth3", nil); got != "" {
		t.Errorf("of none: %q", got)
	}
	if got, want := nearest("enp3s0f1", []string{"docker0", "enp3s0f0", "eno1"}), " (there are: enp3s0f0, eno1, docker0)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("veth%d", i))
	}
	if got := nearest("veth77", many); !strings.Contains(got, "veth77, veth7, ") || !strings.HasSuffix(got, ", ...)") || len(got) > 120 {
		t.Errorf("of many: %q", got)
	}
}

// TestList: a disturbed answer is asked for again, not taken, and not for ever.
func TestList(t *testing.T) {
	asked := 0
	got, err := list(func() ([]int, error) {
		if asked++; asked < 3 {
			return []int{asked}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2, 3}, nil
	})
	if err != nil || len(got) != 3 || asked != 3 {
		t.Errorf("%v, %v after %d", got, err, asked)
	}
	_, err = list(func() ([]int, error) { return nil, netlink.ErrDumpInterrupted })
	if !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("always disturbed: %v", err)
	}
}
