package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"pktgen/report"
	"pktgen/units"
)

// output is where a run's intervals and result go: the document or text on
// stdout, a live line on a terminal's stderr.
type output struct {
	stdout, stderr io.Writer
	json, stream   bool
	file           string // result.json to keep; "" for none
	live           bool
	interval       time.Duration
	err            error // the first failed write of an interval
}

// minInterval keeps the reader of the counters rare beside the workers.
const minInterval = 100 * time.Millisecond

func newOutput(c *cli.Context) (*output, error) {
	p := parser{c: c}
	o := &output{
		stdout: c.App.Writer, stderr: c.App.ErrWriter,
		json: c.Bool("json"), stream: c.Bool("json-stream"),
		interval: p.duration("interval", minInterval),
	}
	if p.err != nil {
		return nil, p.err
	}
	if o.json && o.stream {
		return nil, usagef("--json and --json-stream both ask for stdout: give one of them")
	}
	if dir := c.String("out"); dir != "" {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		o.file = filepath.Join(dir, "result.json")
	}
	o.live = isTerminal(o.stderr) && os.Getenv("TERM") != "dumb"
	return o, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// begin says what goes on until the first interval ends.
func (o *output) begin(s *session) {
	if len(s.tx) == 0 { // also for a script that waits for it before it starts the sender
		fmt.Fprintf(o.stderr, "pktgen: receiving on %v\n", s.rx[0].info.Ref)
	}
	if !o.live {
		return
	}
	for _, e := range s.tx {
		for _, n := range e.notes {
			fmt.Fprintf(o.stderr, "pktgen: warning: %s\n", n)
		}
	}
}

// step takes an interval that has just ended.
func (o *output) step(iv *report.Interval, elapsed time.Duration) {
	if o.stream {
		if err := report.WriteLine(o.stdout, "interval", iv); err != nil && o.err == nil {
			o.err = err
		}
	}
	if o.live {
		fmt.Fprintf(o.stderr, "\r\x1b[K%s", report.LiveLine(iv, elapsed))
	}
}

// trial takes one trial of several that has just ended.
func (o *output) trial(n, of int, r *report.Result) {
	if of < 2 {
		return
	}
	if o.stream {
		if err := report.WriteLine(o.stdout, "trial", r); err != nil && o.err == nil {
			o.err = err
		}
	}
	if o.live {
		fmt.Fprintf(o.stderr, "\r\x1b[Ktrial %d of %d: received %s, lost %d, %s\n", n, of, units.FormatPPS(r.RX.PPS), r.RX.Lost, r.Verdict)
	}
}

// end clears the live line.
func (o *output) end() {
	if o.live {
		fmt.Fprint(o.stderr, "\r\x1b[K")
	}
}

// finish prints the result with the error that ended the run, and returns the
// exit code as an error. The file is written last: a full disk takes nothing
// from what is printed.
func (o *output) finish(r *report.Result, runErr error) error {
	code := exitOK
	if runErr != nil {
		var stop interrupted
		code, r.Hint = explain(runErr)
		if errors.As(runErr, &stop) && code >= exitSignal {
			r.Hint = ""
		} else {
			r.Error = runErr.Error()
		}
		if code == exitFailed {
			r.Verdict, r.Reason = verdictVoid, r.Error
		}
	}
	r.ExitCode = code
	write := errors.Join(o.err, o.print(r))
	if r.Error != "" {
		fmt.Fprintf(o.stderr, "pktgen: error: %s\n", r.Error)
		if r.Hint != "" {
			fmt.Fprintf(o.stderr, "pktgen: hint: %s\n", r.Hint)
		}
	}
	write = errors.Join(write, o.keep(r))
	if write != nil {
		fmt.Fprintf(o.stderr, "pktgen: error: the result could not be written: %v\n", write)
		if code == exitOK {
			code = exitFailed
		}
	}
	if code == exitOK {
		return nil
	}
	return &finished{code}
}

func (o *output) print(r *report.Result) error {
	switch {
	case o.stream:
		return report.WriteLine(o.stdout, "result", r)
	case o.json:
		return report.WriteJSON(o.stdout, r)
	}
	return report.WriteText(o.stdout, r)
}

// keep writes the result's file whole or not at all.
func (o *output) keep(r *report.Result) error {
	if o.file == "" {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(o.file), ".result-*.json")
	if err != nil {
		return err
	}
	err = errors.Join(report.WriteJSON(f, r), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), o.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
