package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pktgen/internal/testnet"
	"pktgen/report"
)

// asPktgen in the environment makes the test binary the real program.
const asPktgen = "PKTGEN_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asPktgen) != "" {
		main()
	}
	if filepath.Base(os.Args[0]) != "pktgen" { // else a script runs the program
		testnet.Isolate()
	}
	testscript.Main(m, map[string]func(){"pktgen": main})
}

// TestScripts runs the command lines of testdata/script against the program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(cond string) (bool, error) {
			return cond == "root" && os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program and holds it to an exit code: exits CODE PROGRAM ARGS...
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("%v: exit code %d, want %d", args[1:], code, want)
	}
}

// program is a running pktgen.
type program struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr buffer
	done           chan error
}

// buffer is a bytes.Buffer that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs pktgen with arguments.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(self(t), args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), asPktgen+"=1")
	p.run()
	return p
}

func (p *program) run() {
	p.t.Helper()
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	p.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// wait returns the exit code; the program has to end within the time.
func (p *program) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		<-p.done
		p.t.Fatalf("%v did not end within %v\n%s%s", p.cmd.Args, within, p.stdout.String(), p.stderr.String())
		return 0
	}
}

// document is the one JSON document on stdout.
func (p *program) document() *report.Result {
	p.t.Helper()
	var r report.Result
	d := json.NewDecoder(strings.NewReader(p.stdout.String()))
	if err := d.Decode(&r); err != nil {
		p.t.Fatalf("%v: no JSON document: %v\n%s%s", p.cmd.Args, err, p.stdout.String(), p.stderr.String())
	}
	if d.More() {
		p.t.Fatalf("%v: more than one document:\n%s", p.cmd.Args, p.stdout.String())
	}
	if s := p.stderr.String(); strings.Contains(s, "goroutine ") || strings.Contains(s, "panic") {
		p.t.Fatalf("%v: a stack trace:\n%s", p.cmd.Args, s)
	}
	return &r
}

// run runs pktgen to its end and returns its document and exit code.
func run(t *testing.T, args ...string) (*report.Result, int) {
	t.Helper()
	p := start(t, args...)
	code := p.wait(60 * time.Second)
	return p.document(), code
}

// mustRun is run for a command that has to succeed.
func mustRun(t *testing.T, args ...string) *report.Result {
	t.Helper()
	p := start(t, args...)
	if code := p.wait(60 * time.Second); code != 0 {
		t.Fatalf("%v: exit code %d\n%s%s", args, code, p.stdout.String(), p.stderr.String())
	}
	return p.document()
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// namespaces are those of pktgen that stand.
func namespaces(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/run/netns/pktgen-*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}
