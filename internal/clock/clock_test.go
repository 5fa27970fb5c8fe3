package clock

import (
	"testing"
	"time"
)

// TestScales: sleep and steps of the clock, as the kernel's clocks show them.
func TestScales(t *testing.T) {
	before := Scales{monoNs: 5e9, bootNs: 8e9, realNs: 1e18}
	for _, c := range []struct {
		name           string
		after          Scales
		slept, stepped time.Duration
	}{
		{"awake", Scales{15e9, 18e9, 1e18 + 10e9}, 0, 0},
		{"slewed", Scales{15e9, 18e9, 1e18 + 10e9 + 5e6}, 0, 0},
		{"slept", Scales{15e9, 28e9, 1e18 + 20e9}, 10 * time.Second, 0},
		{"set on", Scales{15e9, 18e9, 1e18 + 13e9}, 0, 3 * time.Second},
		{"set back", Scales{15e9, 18e9, 1e18 + 10e9 - 20e6}, 0, -20 * time.Millisecond},
	} {
		if got := c.after.Slept(before); got != c.slept {
			t.Errorf("%s: slept %v, want %v", c.name, got, c.slept)
		}
		if got := c.after.Stepped(before); got != c.stepped {
			t.Errorf("%s: stepped %v, want %v", c.name, got, c.stepped)
		}
	}
}

// TestBoth: the two scales are one instant, and the kernel's own clocks agree.
func TestBoth(t *testing.T) {
	mono, real := Both()
	if d := time.Duration(time.Now().UnixNano() - real); d < 0 || d > time.Minute {
		t.Errorf("real time is %v ago", d)
	}
	if later := Mono(); later < mono {
		t.Errorf("%d after %d", later, mono)
	}
	a := ReadScales()
	Sleep(int64(2 * time.Millisecond))
	b := ReadScales()
	if b.monoNs-a.monoNs < 2e6 || b.bootNs-a.bootNs < 2e6 || b.realNs <= a.realNs {
		t.Errorf("%+v, then %+v", a, b)
	}
}
