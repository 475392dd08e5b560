package kube

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Process finds the process of a program of this control plane: etcd, kube-apiserver and so on. A program of another one that this
// process has started has other directories among its arguments.
func (c *Cluster) Process(name string) (pid int, err error) {
	own := c.kubeconfig
	switch name {
	case "etcd":
		own = c.env.ControlPlane.Etcd.DataDir
	case apiServer:
		own = c.env.ControlPlane.APIServer.CertDir
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("looking for %s: %w", name, err)
	}
	for _, file := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		// The name of a process is cut after 15 bytes.
		command, fields, err := stat(pid)
		if err != nil || fields[1] != strconv.Itoa(os.Getpid()) || command != name[:min(15, len(name))] {
			continue
		}
		if arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(arguments, []byte("="+own+"\x00")) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process %s of this program runs", name)
}

// Used is what a process has used so far: time of processors, and its resident memory in bytes, now and at most.
type Used struct {
	CPU          time.Duration
	Memory, Peak int64
}

// Usage of a process.
func Usage(pid int) (Used, error) {
	_, fields, err := stat(pid)
	if err != nil {
		return Used{}, err
	}
	var u Used
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return Used{}, fmt.Errorf("reading the time of process %d: %w", pid, err)
		}
		u.CPU += time.Duration(n) * (time.Second / 100)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Used{}, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kilobytes); n == 1 {
			u.Memory = kilobytes << 10
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); n == 1 {
			u.Peak = kilobytes << 10
		}
	}
	return u, nil
}

// stat reads a process's name, and the fields behind it: state, parent and so on (proc_pid_stat(5)).
func stat(pid int) (command string, fields []string, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", nil, fmt.Errorf("reading of process %d: %w", pid, err)
	}
	first, last := bytes.IndexByte(raw, '('), bytes.LastIndexByte(raw, ')')
	fields = strings.Fields(string(raw[last+1:]))
	if first < 0 || last < first || len(fields) < 20 {
		return "", nil, fmt.Errorf("reading of process %d: %q", pid, raw)
	}
	return string(raw[first+1 : last]), fields, nil
}
