package pin

import (
	"runtime"
	"slices"
	"testing"
)

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{
		"0": {0}, "2-5,8": {2, 3, 4, 5, 8}, "8,2": {8, 2}, "3-3": {3}, " 1 , 2": {1, 2}, "8191": {8191},
	} {
		if got, err := ParseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ",", "a", "-1", "5-2", "1,1", "1-3,2", "1-", "1.5", "8192", "0-99999999999", "1--2"} {
		if got, err := ParseList(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestThread: a bound thread runs on its CPU, and is not allowed on others.
func TestThread(t *testing.T) {
	before, err := Allowed()
	if err != nil {
		t.Fatal(err)
	}
	last := before[len(before)-1]
	done := make(chan []int)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread dies bound
		if err := Thread(last); err != nil {
			t.Error(err)
		}
		now, err := Allowed()
		if err != nil {
			t.Error(err)
		}
		done <- now
	}()
	if now := <-done; !slices.Equal(now, []int{last}) {
		t.Errorf("bound to CPU %d, allowed on %v", last, now)
	}
	if err := Thread(maxCPUs - 1); err == nil {
		t.Error("bound to a CPU that is not there")
	}
	if after, _ := Allowed(); !slices.Equal(after, before) {
		t.Errorf("other threads may run on %v, before on %v", after, before)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("2-5,8")
	f.Fuzz(func(t *testing.T, s string) {
		cpus, err := ParseList(s)
		if err == nil && (len(cpus) == 0 || slices.Max(cpus) >= maxCPUs || slices.Min(cpus) < 0) {
			t.Errorf("%q: %v", s, cpus)
		}
	})
}
