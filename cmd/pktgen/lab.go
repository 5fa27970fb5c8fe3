package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"pktgen/lab"
)

func labCommand() *cli.Command {
	labFlags := env(
		&cli.IntFlag{Name: "mtu", Value: 1500, Usage: "MTU of every port, `OCTETS`"},
		&cli.IntFlag{Name: "queues", Value: 1, Usage: "`N` queues a port"},
		&cli.IntFlag{Name: "pairs", Value: 1, Usage: "`N` pairs of ports"},
	)
	for _, f := range labFlags { // --queues of lab is not --queues of the run in it
		f.(*cli.IntFlag).EnvVars = nil
	}
	return &cli.Command{
		Name:  "lab",
		Usage: "a test bed of network namespaces on this machine, and a run in it",
		Description: `Makes network namespaces and the path between them, runs a command with the ends
filled in, and takes everything down again. Without root it does so in a user
namespace, where the kernel allows that.`,
		Subcommands: []*cli.Command{
			{
				Name:      "wire",
				Usage:     "two ports joined directly",
				UsageText: "pktgen lab wire [--mtu N] [--queues N] [--pairs N] [-- COMMAND ...]",
				Description: `COMMAND is a pktgen command (run, tx, rx) or any program, which finds the ends
in PKTGEN_TX and PKTGEN_RX. Without COMMAND the test bed stands until Ctrl-C.

Examples:
  pktgen lab wire -- run --size 64 --rate 100kpps --duration 5s
  pktgen lab wire --mtu 9000 -- run --size 9018 --json
  pktgen lab wire -- scripts/pktgen_sample01_one_queue.sh`,
				Flags:  labFlags,
				Action: labWire,
			},
			{
				Name:   "clean",
				Usage:  "remove what killed runs have left",
				Action: labClean,
			},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("no test bed %q: want wire, or clean", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func labWire(c *cli.Context) (err error) {
	p := parser{c: c}
	o := lab.Options{
		MTU:    int(p.number("mtu", int64(c.Int("mtu")), 68, 65535)),
		Queues: int(p.number("queues", int64(c.Int("queues")), 1, maxQueues)),
		Pairs:  int(p.number("pairs", int64(c.Int("pairs")), 1, 64)),
	}
	if p.err != nil {
		return p.err
	}
	if code, did, err := lab.Reexec(c.Context, func() syscall.Signal { return cause(c.Context) }); err != nil {
		return err
	} else if did {
		if code == 0 {
			return nil
		}
		return &finished{code}
	}
	l, err := lab.Wire(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var txs, rxs []string
	for _, pair := range l.Pairs {
		txs, rxs = append(txs, pair.TX.String()), append(rxs, pair.RX.String())
	}
	ends := map[string]string{"PKTGEN_TX": strings.Join(txs, ","), "PKTGEN_RX": strings.Join(rxs, ",")}
	args := c.Args().Slice()
	switch {
	case len(args) == 0:
		fmt.Fprintf(c.App.ErrWriter, "pktgen: the test bed stands until Ctrl-C:\n  export PKTGEN_TX=%s PKTGEN_RX=%s\n",
			ends["PKTGEN_TX"], ends["PKTGEN_RX"])
		<-c.Context.Done()
		return nil
	case c.App.Command(args[0]) != nil:
		for name, value := range ends {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		return newApp(c.App.Writer, c.App.ErrWriter).RunContext(c.Context, append([]string{"pktgen"}, args...))
	}
	return runProgram(c, args, ends)
}

// runProgram runs a program in the test bed, and ends it when we are told to end.
func runProgram(c *cli.Context, args []string, ends map[string]string) error {
	cmd := exec.CommandContext(c.Context, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.App.Writer, c.App.ErrWriter
	cmd.Env = os.Environ()
	for name, value := range ends {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// A script passes no signal on to what it waits for, and may leave something
	// behind; the kernel makes what has lost its parent a child of ours.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	defer endDescendants()
	cmd.Cancel = func() error { signalDescendants(cause(c.Context)); return nil }
	cmd.WaitDelay = programEnds
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return &finished{exitSignal + int(ws.Signal())}
		}
		return &finished{exit.ExitCode()}
	}
	var stop interrupted
	if errors.As(context.Cause(c.Context), &stop) {
		return stop
	}
	return withHint(fmt.Errorf("%s: %w", args[0], err), "after -- stands a pktgen command (run, tx, rx) or a program")
}

// programEnds is how long a program that was told to end may take.
const programEnds = 2 * time.Second

// endDescendants ends what a program has left running.
func endDescendants() {
	for end := time.Now().Add(programEnds); signalDescendants(syscall.SIGTERM) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			signalDescendants(syscall.SIGKILL)
			return
		}
	}
}

// signalDescendants signals all that this process has started, and what they
// have, and returns how many those are.
func signalDescendants(sig syscall.Signal) (n int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0
	}
	children := map[int][]int{}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// proc_pid_stat(5): pid (name) state ppid ...; the name may hold anything.
		i := bytes.LastIndexByte(b, ')')
		var child, parent int
		var state string
		if _, err := fmt.Sscan(string(b), &child); err != nil || i < 0 {
			continue
		}
		if _, err := fmt.Sscan(string(b[i+1:]), &state, &parent); err != nil || state == "Z" {
			continue
		}
		children[parent] = append(children[parent], child)
	}
	for tree := children[os.Getpid()]; len(tree) > 0; tree = tree[1:] {
		n++
		_ = syscall.Kill(tree[0], sig) // it may have ended
		tree = append(tree, children[tree[0]]...)
	}
	return n
}

// cause is the signal that ended a context.
func cause(ctx context.Context) syscall.Signal {
	var stop interrupted
	if errors.As(context.Cause(ctx), &stop) {
		return stop.signal
	}
	return syscall.SIGTERM
}

func labClean(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	removed, err := lab.Clean()
	for _, name := range removed {
		fmt.Fprintf(c.App.Writer, "removed %s\n", name)
	}
	return err
}
