package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// program is a running process with a log.
type program struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // of its end
}

// launch starts a program that writes to a log.
func launch(path, log string, args ...string) (*program, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", filepath.Base(path), err)
	}
	defer func() { _ = out.Close() }() // the process has its own
	p := &program{name: filepath.Base(path), cmd: exec.CommandContext(context.Background(), path, args...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop ends the program, by force if it does not end in time. It is an error if the program had ended by itself.
func (p *program) stop() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended by itself: %w: %s", p.name, p.err, p.tail())
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return nil
}

// tailBytes of a log show why a program ended.
const tailBytes = 2000

func (p *program) tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-tailBytes):])
}
