//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// down ends what runs of the cluster and removes what it has left, except the built programs and images. What another
// cluster has made stays, though it has the same names.
func (c *cluster) down() error {
	owns := c.owns()
	var errs []error
	for i := len(nodes) - 1; i >= 0; i-- {
		errs = append(errs, c.end(nodes[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return err // what it uses stays
	}
	if _, err := net.InterfaceByName(hostLink); err == nil && owns {
		if out, err := exec.Command("ip", "link", "del", hostLink).CombinedOutput(); err != nil { //nolint:noctx // constants; it does not wait
			errs = append(errs, fmt.Errorf("removing %s: %w: %s", hostLink, err, out))
		}
	}
	if owns {
		errs = append(errs, c.removeGroups())
	}
	for _, dir := range []string{"pki", "etcd"} {
		errs = append(errs, os.RemoveAll(c.file(dir)))
	}
	for _, n := range nodes {
		errs = append(errs, os.RemoveAll(c.file(n.name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(c.file(claim))
}

// claim is the file that marks, by the machine's boot, interface and control groups of these names as this cluster's. They
// end with the boot.
const claim = "claim"

// boot is a name of the time since the machine was started.
func boot() ([]byte, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("asking when the machine was started: %w", err)
	}
	return raw, nil
}

// owns reports whether the objects with the cluster's names on the machine were made by this cluster.
func (c *cluster) owns() bool {
	for _, n := range nodes {
		if c.pid(n) != 0 {
			return true
		}
	}
	claimed, err := os.ReadFile(c.file(claim))
	now, unknown := boot()
	return err == nil && unknown == nil && bytes.Equal(claimed, now)
}

// checkOthers fails if something of the cluster's names is there that it has not made.
func (c *cluster) checkOthers() error {
	if c.owns() {
		return nil
	}
	var errs []error
	if _, err := net.InterfaceByName(hostLink); err == nil {
		errs = append(errs, fmt.Errorf("the interface %s is there already: end the cluster that it belongs to, in its own directory", hostLink))
	}
	roots, err := c.hierarchies()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, root := range roots {
		if dir := filepath.Join(root, group); exists(dir) {
			errs = append(errs, fmt.Errorf("the control group %s is there already: end the cluster that it belongs to, in its own directory, or remove it with rmdir, in all hierarchies", dir))
			break // the others will be there, too
		}
	}
	return errors.Join(errs...)
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// end kills a node's first process, and with it all others, and waits until they are gone.
func (c *cluster) end(n nodeSpec) error {
	pid := c.pid(n)
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("ending %s: %w", n.name, err)
	}
	for deadline := time.Now().Add(time.Minute); c.pid(n) != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not end", n.name)
		}
	}
	return nil
}

// pid of a node's first process; 0 when it does not run. A process of the same number that was born at another time is
// another.
func (c *cluster) pid(n nodeSpec) int {
	raw, err := os.ReadFile(c.file(n.name, "pid"))
	if err != nil {
		return 0
	}
	number, birth, _ := strings.Cut(string(raw), " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	if now, err := birthOf(pid); err != nil || now != birth {
		return 0
	}
	return pid
}

// birthOf is the time when a process was born, in clock ticks since the machine started. A process that has ended and is
// not waited for yet counts as gone.
func birthOf(pid int) (string, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", fmt.Errorf("looking at process %d: %w", pid, err)
	}
	// The name, in parentheses, can hold anything.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

// groupRoot is where control groups are.
const groupRoot = "/sys/fs/cgroup"

// hierarchies of control groups: one, or of version 1 one for each controller.
func (c *cluster) hierarchies() ([]string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(c.groups, &s); err != nil {
		return nil, fmt.Errorf("looking at the control groups: %w", err)
	}
	if s.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{c.groups}, nil
	}
	entries, err := os.ReadDir(c.groups)
	if err != nil {
		return nil, fmt.Errorf("listing the control groups: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		dir := filepath.Join(c.groups, e.Name())
		// Beside those of version 1 there might be one of version 2 without controllers, in which processes are grouped too.
		if err := unix.Statfs(dir, &s); err == nil && (s.Type == unix.CGROUP_SUPER_MAGIC || s.Type == unix.CGROUP2_SUPER_MAGIC) && e.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// makeGroups makes the control groups below which kubelets make those of pods.
func (c *cluster) makeGroups() error {
	roots, err := c.hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for _, n := range nodes {
			dir := filepath.Join(root, group, n.name)
			if err := os.MkdirAll(dir, 0o755); err != nil { // as the kernel makes them
				return fmt.Errorf("making a control group: %w", err)
			}
			if root != c.groups {
				continue
			}
			for _, at := range []string{root, filepath.Dir(dir), dir} { // version 2: a parent hands its controllers on
				if err := handOn(at); err != nil {
					return err
				}
			}
		}
		if err := weigh(filepath.Join(root, group)); err != nil {
			return err
		}
	}
	return nil
}

// weights are the files that hold a control group's weight, and what to write: that of eight processes. Without it all pods together
// get as much of a busy machine as one process, and the kubelets kill pods that do not answer their probes.
var weights = map[string]string{"cpu.weight": "800", "cpu.shares": "8192"}

func weigh(dir string) error {
	for name, weight := range weights {
		file := filepath.Join(dir, name)
		if !exists(file) {
			continue // another version, or a hierarchy of another controller
		}
		if err := os.WriteFile(file, []byte(weight), 0o600); err != nil {
			return fmt.Errorf("giving the pods their share of the processors: %w", err)
		}
	}
	return nil
}

// handOn lets the children of a control group of version 2 have all its controllers.
func handOn(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the controllers of %s: %w", dir, err)
	}
	for _, name := range strings.Fields(string(have)) {
		file := filepath.Join(dir, "cgroup.subtree_control")
		if now, err := os.ReadFile(file); err == nil && strings.Contains(" "+strings.TrimSpace(string(now))+" ", " "+name+" ") {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+name), 0o600); err != nil && name != "rdma" && name != "misc" && name != "dmem" {
			return fmt.Errorf("handing on the controller %s of %s: %w", name, dir, err)
		}
	}
	return nil
}

// removeGroups removes the control groups of the cluster, deepest first. The kernel might need a moment to see that they are
// empty.
func (c *cluster) removeGroups() error {
	roots, err := c.hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		top := filepath.Join(root, group)
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			var dirs []string
			_ = filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, name)
				}
				return nil
			})
			if len(dirs) == 0 {
				break
			}
			for i := len(dirs) - 1; i >= 0; i-- {
				_ = unix.Rmdir(dirs[i]) // looked at again
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the control group %s is not empty", top)
			}
		}
	}
	return nil
}
