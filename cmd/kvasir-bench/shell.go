package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/bench"
)

// shell runs the user's command for a turn; what it prints is kept in a file. Its end is awaited, with that of its children.
func (o *options) shell(ctx context.Context, way *bench.Way, turn int, seed uint64) error {
	path := filepath.Join(o.out, fmt.Sprintf("turn-%d-%s.log", turn, way.Name))
	output, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("keeping the output of --command: %w", err)
	}
	defer output.Close() // the child has its own descriptor
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", fill(o.command, way.URL, o.load.Model, seed))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = child()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endTimeout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("--command: %w; its output is in %s", err, path)
	}
	return nil
}

// fill puts the turn's address, model and seed into a command, quoted for the shell.
func fill(command, url, model string, seed uint64) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return strings.NewReplacer("{url}", quote(url), "{model}", quote(model), "{seed}", strconv.FormatUint(seed, 10)).Replace(command)
}

// startMeter returns a function that returns the mean use of all processors since, 0 to 1; negative where it is not known.
func startMeter() func() float64 {
	busy, all, ok := processors()
	start := time.Now()
	return func() float64 {
		busyNow, allNow, still := processors()
		if !ok || !still || allNow <= all || time.Since(start) < time.Second {
			return -1
		}
		return float64(busyNow-busy) / float64(allNow-all)
	}
}

// processors reads the first line of /proc/stat, in ticks of all processors.
func processors() (busy, all uint64, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, 0, false
	}
	for i, field := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		all += n
		if i != 3 && i != 4 { // neither idle nor waiting for a disk
			busy += n
		}
	}
	return busy, all, true
}
