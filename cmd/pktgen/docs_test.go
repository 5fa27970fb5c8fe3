package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pktgen/internal/netdev"
	"pktgen/internal/testnet"
	"pktgen/lab"
)

// TestCommandsShown runs every pktgen command that the README, the pages of
// docs/ and the help show, where its interfaces are: eth31 and eth32 (33 and
// 34) joined in one namespace. One that would go on gets a SIGINT.
func TestCommandsShown(t *testing.T) {
	tx, rx := testnet.Wire(t, lab.Options{Queues: 2})
	other, far := testnet.Wire(t, lab.Options{Queues: 2})
	ip(t, rx, "link", "set", rx.Name, "netns", tx.Netns)
	ip(t, other, "link", "set", other.Name, "netns", tx.Netns, "name", "eth33")
	ip(t, far, "link", "set", far.Name, "netns", tx.Netns, "name", "eth34")
	for _, name := range []string{"eth31", "eth32", "eth33", "eth34"} {
		ip(t, tx, "link", "set", name, "up")
	}
	commands := shown(t)
	if len(commands) < 20 {
		t.Fatalf("only %d commands found: %q", len(commands), commands)
	}
	for _, line := range commands {
		t.Run(line, func(t *testing.T) { runShown(t, tx, line) })
	}
}

// shown lists the commands: lines of sh blocks that begin with pktgen, table
// cells that are one, and the examples of the help.
func shown(t *testing.T) (commands []string) {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md", "../../scripts/README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if lang, ok := strings.CutPrefix(line, "```"); ok {
				block = lang
				continue
			}
			if block == "sh" {
				commands = append(commands, line)
			}
			if i := strings.Index(line, "| `pktgen "); i >= 0 && block == "" {
				command, _, _ := strings.Cut(line[i+len("| `"):], "`")
				commands = append(commands, command)
			}
		}
	}
	for _, args := range [][]string{{"help"}, {"tx", "--help"}, {"rx", "--help"}, {"run", "--help"}, {"reflect", "--help"}, {"lab", "wire", "--help"}} {
		p := start(t, args...)
		p.wait(5 * time.Second)
		for line := range strings.Lines(p.stdout.String()) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "pktgen ") && !strings.ContainsAny(line, "[A") && !strings.Contains(line, " - ") {
				command, _, _ := strings.Cut(line, "  ") // what follows explains it
				commands = append(commands, command)
			}
		}
	}
	seen := map[string]bool{}
	out := commands[:0]
	for _, c := range commands {
		c, _, _ = strings.Cut(c, " #")
		c = strings.TrimSpace(c)
		if strings.HasPrefix(c, "pktgen ") && !strings.Contains(c, "COMMAND") && !seen[c] {
			seen[c] = true
			out = append(out, c)
		}
	}
	return out
}

func runShown(t *testing.T, ref netdev.Ref, line string) {
	// On a busy machine the first signal may come before the program takes any.
	for _, after := range []time.Duration{800 * time.Millisecond, 5 * time.Second} {
		code, out := interruptAfter(t, ref, line, after)
		if code == 0 || code == 130 {
			return
		}
		if code != -1 {
			t.Fatalf("exit code %d\n%s", code, out)
		}
	}
	t.Error("killed by SIGINT")
}

// interruptAfter runs a command for at most a time; code -1: a signal killed it.
func interruptAfter(t *testing.T, ref netdev.Ref, line string, after time.Duration) (code int, output string) {
	t.Helper()
	args := strings.Fields(line)
	for i, a := range args {
		if strings.HasPrefix(a, "scripts/") {
			args[i] = "../../" + a
		}
	}
	// ip netns exec shows the program a /sys of this namespace.
	cmd := exec.Command("ip", append([]string{"netns", "exec", ref.Netns, self(t)}, args[1:]...)...)
	// The scripts find the program here; those that end by time end soon.
	cmd.Env = append(os.Environ(), asPktgen+"=1", "PKTGEN="+self(t))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Signal(syscall.SIGINT) })
	defer timer.Stop()
	_ = cmd.Wait() // the code is looked at
	return cmd.ProcessState.ExitCode(), out.String()
}

// TestSamples runs every numbered script in the lab, and reads its result.
func TestSamples(t *testing.T) {
	testnet.Require(t)
	scripts, err := filepath.Glob("../../scripts/pktgen_sample*.sh")
	if err != nil || len(scripts) < 4 {
		t.Fatalf("%d samples, %v", len(scripts), err)
	}
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			p := &program{t: t, cmd: exec.Command(self(t), "lab", "wire", "--queues", "2", "--", script, "-T", "200ms", "-r", "5kpps", "-t", "2"), done: make(chan error, 1)}
			p.cmd.Env = append(os.Environ(), asPktgen+"=1", "PKTGEN="+self(t))
			p.run()
			if code := p.wait(60 * time.Second); code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, p.stdout.String(), p.stderr.String())
			}
			out := p.stdout.String()
			if strings.Contains(script, "sizes") { // a table: seven sizes of 1,000 frames each
				if n := strings.Count(out, " 1000 "); n != 7 {
					t.Errorf("%d sizes of 7 sent 1000 frames:\n%s", n, out)
				}
			} else if !strings.Contains(out, "verdict: ") || !strings.Contains(out, "lost        0 ") {
				t.Errorf("%s", out)
			}
		})
	}
}

// TestWithoutRoot: an ordinary user makes a test bed and runs in it, where the
// kernel allows user namespaces; without one, each command says what is missing.
func TestWithoutRoot(t *testing.T) {
	testnet.Require(t) // to become an ordinary user
	dir, err := os.MkdirTemp("/tmp", "pktgen-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "pktgen")
	if err := os.WriteFile(binary, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	nobody := func(args ...string) *program {
		p := &program{t: t, cmd: exec.Command(binary, args...), done: make(chan error, 1)}
		p.cmd.Dir = dir
		p.cmd.Env = append(os.Environ(), asPktgen+"=1")
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		p.run()
		return p
	}
	p := nobody("lab", "wire", "--", "run", "--count", "100", "--rate", "5kpps", "--json")
	switch code := p.wait(30 * time.Second); code {
	case 0:
		clean(t, p.document())
	case exitPrivilege:
		t.Logf("this kernel lets no ordinary user: %s", p.stderr.String())
		if !strings.Contains(p.stderr.String(), "sysctl") {
			t.Errorf("no way out is told: %s", p.stderr.String())
		}
	default:
		t.Errorf("exit code %d\n%s%s", code, p.stdout.String(), p.stderr.String())
	}
	_, rx := testnet.Wire(t, lab.Options{})
	for _, args := range [][]string{{"tx", "--iface", "lo", "--count", "1"}, {"rx", "--iface", rx.String()}} {
		p := nobody(args...)
		if code := p.wait(10 * time.Second); code != exitPrivilege && code != exitFailed {
			t.Errorf("%v: exit code %d", args, code)
		}
		if !strings.Contains(p.stderr.String(), "pktgen: hint:") {
			t.Errorf("%v: no way out is told: %s", args, p.stderr.String())
		}
	}
}
