//go:build linux

package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hidden are the machine's directories in whose place nodes have their own.
var hidden = []string{"/run", "/var/lib", "/var/log"}

// settings are what a kubelet sets in the kernel for the entire machine. Nodes show it a file in their place.
var settings = map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}

// restartPause is between the end of a node's program and its next start.
const restartPause = time.Second

// node is the first process of a node: it sets up the mounts and the network, starts the node's programs, starts those
// again that end, and takes the orphans. It ends when it is killed.
func (c *cluster) node(name string) error {
	i, err := nodeIndex(name)
	if err != nil {
		return err
	}
	n := nodes[i]
	if err := c.mounts(n); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.name)); err != nil {
		return fmt.Errorf("naming the node: %w", err)
	}
	s := &supervisor{logs: c.file(n.name, "log"), running: map[int]chan struct{}{}}
	go s.reap()
	if err := network(s, n); err != nil {
		return err
	}
	for _, p := range c.nodePrograms(n) {
		go s.keep(p)
	}
	select {}
}

// mounts gives the node its own view of the file system.
func (c *cluster) mounts(n nodeSpec) error {
	steps := []struct {
		source, target, kind string
		flags                uintptr
	}{
		// What is mounted from here on is not seen outside; what is mounted for pods is seen in pods.
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"", "/", "", unix.MS_REC | unix.MS_SHARED},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{c.file(n.name, "varlib"), "/var/lib", "", unix.MS_BIND},
		{c.file(n.name, "varlog"), "/var/log", "", unix.MS_BIND},
	}
	for _, s := range steps {
		if s.flags&unix.MS_BIND != 0 {
			if err := os.MkdirAll(s.source, 0o755); err != nil { // as /var has it
				return fmt.Errorf("making a directory to mount: %w", err)
			}
		}
		if err := unix.Mount(s.source, s.target, s.kind, s.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", s.target, err)
		}
	}
	for name, value := range settings {
		file := filepath.Join("/run", filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return fmt.Errorf("writing the setting %s: %w", name, err)
		}
		if err := unix.Mount(file, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hiding the setting %s: %w", name, err)
		}
	}
	return nil
}

// network waits for the way out, which up puts here, and sets up addresses and routes.
func network(s *supervisor, n nodeSpec) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := net.InterfaceByName("eth0"); err == nil {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s has no route to the outside", n.name)
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", n.address + "/30", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", n.gateway},
	} {
		if err := s.run(append([]string{"ip"}, args...)); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return fmt.Errorf("forwarding packets: %w", err)
	}
	return nil
}

// program is one of a node's, which runs as long as the node does.
type program struct {
	name string
	args []string // the first is its file
}

// supervisor starts processes and waits for them, and for all orphans: a first process has no other way.
type supervisor struct {
	logs string

	mu      sync.Mutex // guards running, and the time between a start and its entry there
	running map[int]chan struct{}
}

// reap waits for whatever ends.
func (s *supervisor) reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // there are no children now
			time.Sleep(10 * time.Millisecond)
		default:
			s.mu.Lock()
			if done, ok := s.running[pid]; ok {
				close(done)
				delete(s.running, pid)
			}
			s.mu.Unlock()
		}
	}
}

// start returns a channel that is closed at the process's end.
func (s *supervisor) start(args []string, out *os.File) (<-chan struct{}, error) {
	file, err := exec.LookPath(args[0])
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", args[0], err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(file, args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	done := make(chan struct{})
	s.running[pid] = done
	return done, nil
}

// run waits for a program that ends by itself. Its failure shows in what it prints.
func (s *supervisor) run(args []string) error {
	done, err := s.start(args, os.Stderr)
	if err == nil {
		<-done
	}
	return err
}

// keep starts a program again whenever it has ended.
func (s *supervisor) keep(p program) {
	out, err := os.OpenFile(filepath.Join(s.logs, p.name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatalf("making the log of %s: %v", p.name, err)
	}
	for {
		done, err := s.start(p.args, out)
		if err != nil {
			log.Print(err)
		} else {
			<-done
			log.Printf("%s has ended", p.name)
		}
		time.Sleep(restartPause)
	}
}
