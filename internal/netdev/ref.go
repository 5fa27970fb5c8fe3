package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
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
	const ifnamsiz = 16 // its zero octet included, linux/if.h
	if r.Name == "" || len(r.Name) >= ifnamsiz || r.Name == "." || r.Name == ".." || strings.ContainsAny(r.Name, ": \t\n\v\f\r") {
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
// goroutine, which then never unlocks it.
func (r Ref) Enter() error {
	if r.Netns == "" {
		return nil
	}
	ns, err := netns.GetFromPath(r.path())
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%v: %w", r, ErrNoNamespace)
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

// Do runs f on a thread in the interface's network namespace. What f opens
// there stays there; the thread is not used again.
func (r Ref) Do(f func() error) error {
	if r.Netns == "" {
		return f()
	}
	return onThread(func() error {
		if err := r.Enter(); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread that dies afterwards.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the runtime ends the thread
		result <- f()
	}()
	return <-result
}
