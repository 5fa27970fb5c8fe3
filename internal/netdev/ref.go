package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NamedNamespaces is where namespaces have names, as for ip-netns(8).
const NamedNamespaces = "/run/netns"

// Errors, wrapped with what they are about.
var (
	ErrNotFound    = errors.New("no such interface")
	ErrNoNamespace = errors.New("no such network namespace")
)

// Ref names an interface: in the caller's network namespace, in a named one, or
// in one given by a path such as /proc/PID/ns/net.
type Ref struct {
	Netns string // "": the caller's; without a slash a name; else a path
	Name  string
}

// ParseRef reads "eth31", "NAMESPACE/eth31" or "/path/to/namespace/eth31". The
// last slash splits: an interface name holds none.
func ParseRef(text string) (Ref, error) {
	r := Ref{Name: text}
	if i := strings.LastIndexByte(text, '/'); i >= 0 {
		r = Ref{Netns: text[:i], Name: text[i+1:]}
		if r.Netns == "" {
			return Ref{}, fmt.Errorf("interface %q: want NAME, or NAMESPACE/NAME", text)
		}
	}
	// Linux dev_valid_name, net/core/dev.c.
	const ifnamsiz = 16 // its zero octet included, linux/if.h
	if r.Name == "" || len(r.Name) >= ifnamsiz || r.Name == "." || r.Name == ".." || strings.ContainsAny(r.Name, ": \t\n\v\f\r\x00") || strings.Contains(r.Netns, "\x00") {
		return Ref{}, fmt.Errorf("interface %q: not an interface's name: 1 to 15 octets, no space, no colon", text)
	}
	return r, nil
}

// String is the text that ParseRef reads.
func (r Ref) String() string {
	if r.Netns == "" {
		return r.Name
	}
	return r.Netns + "/" + r.Name
}

func (r Ref) path() string {
	if strings.Contains(r.Netns, "/") {
		return r.Netns
	}
	return filepath.Join(NamedNamespaces, r.Netns)
}

// Enter moves the calling thread, which the caller has locked, into the
// interface's network namespace for good: the thread must die with its
// goroutine, which then never unlocks it. Errors: ErrNoNamespace, EPERM without
// CAP_SYS_ADMIN (setns(2)).
func (r Ref) Enter() error {
	if r.Netns == "" {
		return nil
	}
	ns, err := netns.GetFromPath(r.path())
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%v: %w%s", r, ErrNoNamespace, r.otherNamespaces())
	}
	if err != nil {
		return fmt.Errorf("%v: open network namespace: %w", r, err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("%v: enter network namespace: %w", r, err)
	}
	return nil
}

// otherNamespaces names the namespaces that are there, to be picked from.
func (r Ref) otherNamespaces() string {
	if strings.Contains(r.Netns, "/") {
		return ""
	}
	entries, err := os.ReadDir(NamedNamespaces)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return nearest(r.Netns, names)
}

// nearest lists the names that begin most like the one that was not found, as
// the end of an error message.
func nearest(name string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	slices.SortStableFunc(names, func(a, b string) int { return common(name, b) - common(name, a) })
	const few = 8
	more := ""
	if len(names) > few {
		names, more = names[:few], ", ..."
	}
	return " (there are: " + strings.Join(names, ", ") + more + ")"
}

// common counts the octets with which both begin.
func common(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Do runs f in the interface's network namespace, on another thread unless that
// is the caller's own namespace. What f opens there stays there. Errors: Enter's
// and f's.
func (r Ref) Do(f func() error) error {
	if r.Netns == "" {
		return f()
	}
	return OnThread(func() error {
		if err := r.Enter(); err != nil {
			return err
		}
		return f()
	})
}

// errGoexit is OnThread's when f does not return, as after t.Fatal.
var errGoexit = errors.New("runtime.Goexit was called")

// OnThread runs f on a thread that dies afterwards, so that f may change what
// belongs to a thread (namespaces, capabilities) and need not change it back.
func OnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { result <- err }()
		runtime.LockOSThread() // and never unlock: the runtime ends the thread
		if unix.Gettid() == unix.Getpid() {
			// The runtime cannot end this one, and /proc/PID/ns shows its namespaces
			// as those of the process. Hold it while another thread does the work.
			defer runtime.UnlockOSThread()
			err = OnThread(f)
			return
		}
		err = f()
	}()
	return <-result
}
