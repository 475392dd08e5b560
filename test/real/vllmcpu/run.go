package vllmcpu

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Environment returns the variables with which a release serves a small model on a part of this machine.
func Environment(venv, release string, ranks int) []string {
	return []string{
		"VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1",
		"OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=" + threadBinding(release, ranks),
		"PATH=" + filepath.Join(venv, "bin") + ":" + os.Getenv("PATH"),
		// Without compiled files each of an engine's three processes compiles all that it imports, at every start.
		"PYTHONDONTWRITEBYTECODE=",
	}
}

// threadBinding leaves the threads of the CPU backend unbound. 0.20 to 0.23 cannot start so (list index out of range):
// their ranks are given all processors.
func threadBinding(release string, ranks int) string {
	if Compare(release, "0.20") < 0 || Compare(release, "0.24") >= 0 {
		return "nobind"
	}
	all := fmt.Sprintf("0-%d|", runtime.NumCPU()-1)
	return strings.TrimSuffix(strings.Repeat(all, ranks), "|")
}

// Compare compares versions such as 0.9.1 and 0.24.0; absent parts are 0.
func Compare(a, b string) int {
	var left, right [3]int
	_, _ = fmt.Sscanf(a, "%d.%d.%d", &left[0], &left[1], &left[2])
	_, _ = fmt.Sscanf(b, "%d.%d.%d", &right[0], &right[1], &right[2])
	for i := range left {
		if left[i] != right[i] {
			return left[i] - right[i]
		}
	}
	return 0
}
