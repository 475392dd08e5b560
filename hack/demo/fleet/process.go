//go:build unix

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// stopTimeout is how long a process can take to end after the signal.
	stopTimeout = 3 * time.Second
	// quotedOutput is how much of a process's last words an error repeats, in bytes.
	quotedOutput = 2000
)

// Process is a child in a process group of its own, its output in a file.
type Process struct {
	name   string
	cmd    *exec.Cmd
	output string        // file
	done   chan struct{} // closed when it has ended
	err    error         // of Wait, once done is closed
}

// start a process whose output goes to a file in dir. It is killed with its group when this process dies, where the
// system can do that. When it ends it is sent to died, which must have room.
func start(died chan<- *Process, name, dir, path string, env []string, args ...string) (*Process, error) {
	p := &Process{name: name, output: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	output, err := os.Create(p.output)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer output.Close()                // the child has its own descriptor
	p.cmd = exec.Command(path, args...) //nolint:noctx // stop ends it, and its group
	if len(env) > 0 {
		p.cmd.Env = append(os.Environ(), env...)
	}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = groupOfItsOwn()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		died <- p
	}()
	return p, nil
}

// signal the process's entire group.
func (p *Process) signal(s syscall.Signal) error {
	err := syscall.Kill(-p.cmd.Process.Pid, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process and its group at once, and returns when it has ended.
func (p *Process) Kill() error {
	err := p.signal(syscall.SIGKILL)
	<-p.done
	return err
}

// Stop ends the process as a user would, by force if it takes too long.
func (p *Process) Stop() error {
	_, err := stop([]*Process{p}, stopTimeout)
	return err
}

// stop ends processes: all get a signal, and those that still run after a timeout are killed. It returns when none is
// left, with their processor time.
func stop(list []*Process, timeout time.Duration) (time.Duration, error) {
	var errs []error
	for _, p := range list {
		errs = append(errs, p.signal(syscall.SIGTERM))
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	killed := false
	var used time.Duration
	for _, p := range list {
		if !killed {
			select {
			case <-p.done:
			case <-deadline.C:
				killed = true
			}
		}
		// What the process itself has left behind in its group goes too.
		errs = append(errs, p.signal(syscall.SIGKILL))
		<-p.done
		used += p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	}
	return used, errors.Join(errs...)
}

// lastWords is the end of what a process has printed.
func (p *Process) lastWords() string {
	f, err := os.Open(p.output)
	if err != nil {
		return ""
	}
	defer f.Close() // only read
	if info, err := f.Stat(); err == nil && info.Size() > quotedOutput {
		if _, err := f.Seek(-quotedOutput, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, quotedOutput))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// ended is the error of a process that should be running.
func (p *Process) ended() error {
	return fmt.Errorf("%s has ended (%v); it said last:\n%s", p.name, p.cmd.ProcessState, p.lastWords())
}

// Await polls until ready returns true, the process ends, or ctx does.
func (p *Process) Await(ctx context.Context, what string, ready func(context.Context) bool) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if ready(ctx) {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; it said last:\n%s", what, context.Cause(ctx), p.lastWords())
		}
	}
}
