package podrunner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// KillChildren ends by SIGKILL all processes of a container but the first, as if they had crashed.
func (r *Runner) KillChildren(uid types.UID, name string) error {
	c, err := r.container(uid, name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil || closed(c.ended) {
		return fmt.Errorf("container %s does not run", name)
	}
	below, err := descendants(c.process.Process.Pid)
	if err != nil {
		return err
	}
	if len(below) == 0 {
		return fmt.Errorf("container %s has one process", name)
	}
	for _, pid := range below {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it can have ended with its parent
	}
	return nil
}

// descendants of a process.
func descendants(of int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name is in brackets and can have blanks; the state and the parent follow.
		if fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); len(fields) > 1 {
			if parent, err := strconv.Atoi(fields[1]); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	all := children[of]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}
