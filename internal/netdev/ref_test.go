package netdev_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func TestParseRef(t *testing.T) {
	for text, want := range map[string]netdev.Ref{
		"eth31":                 {Name: "eth31"},
		"eth0.100":              {Name: "eth0.100"},
		"eth0@if3":              {Name: "eth0@if3"},
		"123456789012345":       {Name: "123456789012345"},
		"blue/eth31":            {Netns: "blue", Name: "eth31"},
		"/proc/123/fd/7/eth31":  {Netns: "/proc/123/fd/7", Name: "eth31"},
		"/proc/1/ns/net/eth0":   {Netns: "/proc/1/ns/net", Name: "eth0"},
		"with space/eth0":       {Netns: "with space", Name: "eth0"},
		"./relative/space/eth0": {Netns: "./relative/space", Name: "eth0"},
	} {
		got, err := netdev.ParseRef(text)
		if err != nil || got != want {
			t.Errorf("ParseRef(%q) = %+v, %v; want %+v", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("ParseRef(%q).String() = %q", text, got)
		}
	}
	for _, text := range []string{
		"", "/", "/eth0", "blue/", ".", "..", "blue/..", "a b", "eth0:1", "eth0\n", "1234567890123456", "eth0\x00", "bl\x00ue/eth0",
	} {
		if got, err := netdev.ParseRef(text); err == nil {
			t.Errorf("ParseRef(%q) = %+v, want an error", text, got)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("ParseRef(%q): %q does not show what was given", text, err)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"eth0", "a/b", "/p/q/eth0", "//", "", "a//b", "/a", "a/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := netdev.ParseRef(text)
		if err != nil {
			if r != (netdev.Ref{}) {
				t.Fatalf("%q: %+v beside an error", text, r)
			}
			return
		}
		if r.String() != text {
			t.Fatalf("%q became %q", text, r)
		}
		if r.Name == "" || len(r.Name) > 15 || strings.Contains(r.Name, "/") {
			t.Fatalf("%q: name %q", text, r.Name)
		}
	})
}

// space is the network namespace of the calling thread.
func space() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

// named is the network namespace that a path stands for.
func named(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("net:[%d]", st.Ino)
}

// TestDo: f runs in the namespace, by its name and by a path; whatever becomes
// of f, the process stays where it was, its first thread (which /proc/PID/ns
// shows) included.
func TestDo(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{})
	home, err := space()
	if err != nil {
		t.Fatal(err)
	}
	byName := named(t, netdev.NamedNamespaces+"/"+tx.Netns)
	if byName == home || byName == named(t, netdev.NamedNamespaces+"/"+rx.Netns) {
		t.Fatal("the namespaces are one")
	}
	failed := errors.New("f failed")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := tx
			if i%2 == 1 {
				r.Netns = netdev.NamedNamespaces + "/" + tx.Netns
			}
			err := r.Do(func() error {
				runtime.Gosched()
				if got, err := space(); err != nil || got != byName {
					return fmt.Errorf("f ran in %s, want %s (%v)", got, byName, err)
				}
				return failed
			})
			if err != failed {
				t.Error(err)
			}
			if got, _ := space(); got != home {
				t.Errorf("after Do a thread is in %s", got)
			}
		}()
	}
	wg.Wait()
	if got, err := os.Readlink("/proc/self/ns/net"); err != nil || got != home {
		t.Errorf("the process is in %s, want %s (%v)", got, home, err)
	}
	if err := (netdev.Ref{Name: "any"}).Do(func() error { return failed }); err != failed {
		t.Errorf("in the caller's namespace: %v", err)
	}
}

// TestGoexit: t.Fatal within Do ends f, and does not hang who called it.
func TestGoexit(t *testing.T) {
	if err := netdev.OnThread(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("no error of a function that did not return")
	}
}

// TestEnter: a thread that has entered stays, and takes no other thread along.
func TestEnter(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	home, _ := space()
	want := named(t, netdev.NamedNamespaces+"/"+tx.Netns)
	err := netdev.OnThread(func() error {
		if err := tx.Enter(); err != nil {
			return err
		}
		if got, _ := space(); got != want {
			return fmt.Errorf("entered %s, want %s", got, want)
		}
		started := make(chan string)
		go func() { // may need a new thread, which must not begin here
			runtime.LockOSThread()
			s, _ := space()
			started <- s
			runtime.UnlockOSThread()
		}()
		if got := <-started; got != home {
			return fmt.Errorf("another goroutine runs in %s, want %s", got, home)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEnterErrors(t *testing.T) {
	tx, _ := testnet.Wire(t, lab.Options{})
	enter := func(r netdev.Ref) error { return r.Do(func() error { return nil }) }

	err := enter(netdev.Ref{Netns: tx.Netns + "x", Name: "eth31"})
	if !errors.Is(err, netdev.ErrNoNamespace) || !strings.Contains(err.Error(), tx.Netns+",") {
		t.Errorf("a wrong name: %v; want ErrNoNamespace and the right one", err)
	}
	err = enter(netdev.Ref{Netns: "/proc/self/ns/nothing", Name: "eth31"})
	if !errors.Is(err, netdev.ErrNoNamespace) {
		t.Errorf("a wrong path: %v", err)
	}
	err = enter(netdev.Ref{Netns: "/dev/null", Name: "eth31"})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "/dev/null/eth31: enter") {
		t.Errorf("not a namespace: %v", err)
	}
	err = netdev.OnThread(func() error {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil { // this thread's alone
			return fmt.Errorf("capset: %v", err)
		}
		return tx.Enter()
	})
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("without privilege: %v, want EPERM", err)
	}
}
