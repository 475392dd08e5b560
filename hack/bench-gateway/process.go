package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one that is measured.
type process struct {
	cmd       *exec.Cmd
	addresses []string
}

// child starts this program in a role and reads its addresses.
func (b *bench) child(role string) (*process, error) { return b.childOf("", role) }

// childOf starts the program of a directory, or this one if it is empty.
func (b *bench) childOf(dir, role string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if dir != "" {
		self = filepath.Join(dir, filepath.Base(self))
	}
	p := &process{cmd: exec.Command(self, "-role", role, "-engine", b.engine.port)} //nolint:noctx // itself
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s has not started: %w", role, err)
	}
	p.addresses = strings.Fields(line)
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// cpu is the CPU time used so far, of all its threads, also of those that have ended. Linux numbers the clock of a process
// by its id (clock_getcpuclockid).
func (p *process) cpu() time.Duration {
	const sched = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid)<<3|sched, &used); err != nil {
		return 0
	}
	return time.Duration(used.Nano())
}

// memory is what is resident, in bytes.
func (p *process) memory() int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	n, _ := strconv.Atoi(strings.Fields(rest)[0])
	return n << 10
}

// stats asks the process what it holds, after it has given back what it can.
func (p *process) stats() (map[string]int, error) {
	answer, err := http.Get("http://" + p.addresses[3]) //nolint:noctx // here
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var s map[string]int
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

// profileTo writes a CPU profile of the process.
func (p *process) profileTo(file string, length time.Duration) {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.addresses[3], int(length.Seconds()))
	answer, err := http.Get(url) //nolint:noctx // ends
	if err != nil {
		return
	}
	defer func() { _ = answer.Body.Close() }()
	out, err := os.Create(file)
	if err != nil {
		return
	}
	_, _ = io.Copy(out, answer.Body)
	_ = out.Close()
}
