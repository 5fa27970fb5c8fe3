package netdev

import (
	"strings"
	"testing"
)

// TestDriverEvents: a name stands in one event, or else in events of different
// drivers, and in the form that a counter's name is brought into.
func TestDriverEvents(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range driverEvents {
		if len(e.names) == 0 {
			t.Errorf("an event without a name: %+v", e)
		}
		for _, name := range e.names {
			if key := name + " " + e.only; seen[key] || e.only != "" && seen[name+" "] {
				t.Errorf("%q stands twice", name)
			} else {
				seen[key] = true
			}
			if got := shape(strings.ReplaceAll(name, "#", "10")); got != name {
				t.Errorf("%q would never be found: its counters have the form %q", name, got)
			}
		}
	}
}
