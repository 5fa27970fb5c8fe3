// Command pktgen is a raw packet generator and sink for Linux: frames per
// second, loss and where it was lost, and latency, with the NIC left on its
// kernel driver.
//
// One file a command, each with its flags, its settings and its run; what they
// share: flags.go (flags of frames and load), txend.go and rxend.go (one
// sending, one receiving interface), session.go (both kinds run together),
// output.go (documents, live line), errors.go (hints and exit codes).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"pktgen/report"
)

// version is set by the linker (Makefile).
var version = "dev"

func main() {
	os.Exit(execute(os.Args, os.Stdout, os.Stderr))
}

// interrupted is why a context was cancelled: a signal.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted by " + i.signal.String() }

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	dropEmptyTwins()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		s, _ := (<-signals).(syscall.Signal)
		cancel(interrupted{s})
		insist(signals)
	}()
	// A pipe whose reader has gone is an error of the write, not the end: what was
	// changed on the host has to be given back.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	err := newApp(stdout, stderr).RunContext(ctx, args)
	var done *finished
	if errors.As(err, &done) {
		return done.code // the result was printed, and the error with it
	}
	if err == nil {
		return exitOK
	}
	code, hint := explain(err)
	fmt.Fprintf(stderr, "pktgen: error: %v\n", err)
	if hint != "" {
		fmt.Fprintf(stderr, "pktgen: hint: %s\n", hint)
	}
	if wantsJSON(args) {
		writeFailure(stdout, args, err, hint, code)
	}
	return code
}

// insist ends the process by a further signal, once the first has had its time:
// something hangs.
func insist(signals <-chan os.Signal) {
	for start := time.Now(); ; {
		s, _ := (<-signals).(syscall.Signal)
		if time.Since(start) > endsWithin {
			signal.Reset(s)
			_ = syscall.Kill(os.Getpid(), s) // the kernel delivers it to this very process
		}
	}
}

// endsWithin is how long a run may take to end when told to.
const endsWithin = 3 * time.Second

// dropEmptyTwins takes a flag's environment twin that is empty as not set.
func dropEmptyTwins() {
	for _, e := range os.Environ() {
		if name, value, _ := strings.Cut(e, "="); value == "" && strings.HasPrefix(name, "PKTGEN_") {
			_ = os.Unsetenv(name) // it fails for malformed names only
		}
	}
}

// wantsJSON looks at the raw arguments: the command line may be what is wrong.
func wantsJSON(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return a == "--json" || a == "-J" || a == "-json" || a == "--json-stream"
	})
}

func writeFailure(w io.Writer, args []string, err error, hint string, code int) {
	command := ""
	if len(args) > 1 {
		command = args[1]
	}
	_ = report.WriteJSON(w, &report.Result{ // stdout is all there is to tell it to
		Schema: report.Schema, Command: command, Error: err.Error(), Hint: hint, ExitCode: code,
	})
}

func newApp(stdout, stderr io.Writer) *cli.App {
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version"}
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintln(c.App.Writer, versionLine()) }
	app := &cli.App{
		Name:                 "pktgen",
		Usage:                "send, count and time frames, and say where they were lost",
		Version:              version,
		Writer:               stdout,
		ErrWriter:            stderr,
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {}, // execute prints and exits
		OnUsageError:         onUsageError,
		Action:               noCommand,
		Commands: []*cli.Command{
			txCommand(), rxCommand(), runCommand(), reflectCommand(), labCommand(), versionCommand(), completionCommand(),
		},
		CustomAppHelpTemplate: appHelp,
	}
	for _, c := range app.Commands {
		c.OnUsageError = onUsageError
		for _, s := range c.Subcommands {
			s.OnUsageError = onUsageError
		}
	}
	return app
}

func onUsageError(_ *cli.Context, err error, _ bool) error { return usageError{err} }

func noCommand(c *cli.Context) error {
	if c.NArg() > 0 {
		return usagef("no command %q (see pktgen help)", c.Args().First())
	}
	return cli.ShowAppHelp(c)
}

const appHelp = `pktgen - {{.Usage}}

Usage: pktgen COMMAND [flags]

Commands:{{range .VisibleCommands}}
  {{printf "%-11s" .Name}}{{.Usage}}{{end}}

Examples:
  pktgen lab wire -- run --rate 100kpps      a test bed on this machine, and a run in it
  pktgen tx --iface eth31 --size 64          send 64-octet frames at full speed
  pktgen rx --iface eth32                    count, check and time them
  pktgen run --tx eth31 --rx eth32 --json    both ends, one result

Sizes are frame sizes: destination MAC through FCS (64 = 60 octets in the socket).
Rates: max, 1500, 250kpps, 1.488Mpps, 10% (of link speed), 3Gbps (L2), 10GbpsL1.
Every flag has an environment twin: --iface is PKTGEN_IFACE.

Exit codes: 0 done; 1 the run failed here; 2 wrong usage; 3 a stated limit was
missed (--max-loss, --min-rate); 4 a privilege or kernel feature is missing;
130 interrupted (143 by SIGTERM, 129 by SIGHUP), the partial result is printed.
`
