package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// group is a memory cgroup, which the kernel holds to its limit as it does a container.
type group struct {
	t      *testing.T
	dir    string
	second bool // version 2
}

var groups atomic.Int32

// newGroup makes a memory cgroup below the one of this process, without swap. The test is skipped where that is not possible.
func newGroup(t *testing.T, limit int64) *group {
	t.Helper()
	parent, second := ownGroup()
	if parent == "" {
		t.Skip("NOT RUN: there is no memory cgroup")
	}
	g := &group{t: t, dir: filepath.Join(parent, fmt.Sprintf("kvasir-attack-%d-%d", os.Getpid(), groups.Add(1))), second: second}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skip("NOT RUN: a memory cgroup needs root: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(g.dir) }) // its processes have ended
	files := map[string]int64{"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
	if second {
		files = map[string]int64{"memory.max": limit, "memory.swap.max": 0}
	}
	for _, name := range []string{"memory.max", "memory.limit_in_bytes", "memory.swap.max", "memory.memsw.limit_in_bytes"} {
		value, wanted := files[name]
		if !wanted {
			continue
		}
		err := os.WriteFile(filepath.Join(g.dir, name), []byte(strconv.FormatInt(value, 10)), 0o600)
		if err != nil && !strings.Contains(name, "sw") { // swap is not accounted for everywhere
			t.Skip("NOT RUN: the memory cgroup takes no limit: ", err)
		}
	}
	if second && !g.has("memory.peak") {
		t.Skip("NOT RUN: the memory cgroup does not tell its peak (Linux 5.19)")
	}
	return g
}

// ownGroup is the directory of the memory cgroup that this process is in.
func ownGroup() (dir string, second bool) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		base, file := "/sys/fs/cgroup", "memory.max"
		switch {
		case strings.Contains(","+parts[1]+",", ",memory,"):
			base, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[0] != "0":
			continue
		default:
			second = true
		}
		at := filepath.Join(base, parts[2])
		if !second {
			if _, err := os.Stat(filepath.Join(at, file)); err == nil {
				return at, false
			}
			continue
		}
		// Processes and children that have controllers exclude each other below the root: try the parent.
		for ; strings.HasPrefix(at, base); at = filepath.Dir(at) {
			controllers, err := os.ReadFile(filepath.Join(at, "cgroup.subtree_control"))
			if err == nil && strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " memory ") {
				return at, true
			}
		}
		second = false
	}
	return "", false
}

// command makes a command of the group.
func (g *group) command(program string, args ...string) *exec.Cmd {
	script := []string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir, program}
	return exec.Command("sh", append(script, args...)...)
}

func (g *group) has(name string) bool {
	_, err := os.Stat(filepath.Join(g.dir, name))
	return err == nil
}

// read reads a number; one that cannot be read fails the test, because nothing could exceed a limit then.
func (g *group) read(name string) int64 {
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		g.t.Error(err)
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		g.t.Error(err)
	}
	return n
}

// peak is the most memory that the group has had, in bytes. Version 1 counts the buffers of sockets apart, version 2 with the rest.
func (g *group) peak() int64 {
	if g.second {
		return g.read("memory.peak")
	}
	peak := g.read("memory.max_usage_in_bytes")
	if buffers := "memory.kmem.tcp.max_usage_in_bytes"; g.has(buffers) {
		peak += g.read(buffers)
	}
	return peak
}

// killed is how many processes were killed for their memory.
func (g *group) killed() int64 {
	file := "memory.oom_control"
	if g.second {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		g.t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
			count, _ := strconv.ParseInt(n, 10, 64)
			return count
		}
	}
	return 0
}
