package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestTheContainersMemoryIsDividedOnce(t *testing.T) {
	for _, limit := range []int64{512 << 20, 1 << 30, 2 << 30} {
		p := newPlan(limit, 1<<20)
		if rest := limit - p.clients - p.index - p.tokens - p.peers - p.responses; rest < limit*3/10-3 || rest-p.events < limit/5 || p.events < limit/12 || p.clients < limit/5 || p.tokens < limit/12 {
			t.Errorf("of %d: %+v", limit, p)
		}
		specs := []picker.Spec{{IndexMemory: 1 << 30}, {IndexMemory: 3 << 30}}
		specs[0].Policy.Responses.MaxBytes, specs[1].Policy.Responses.MaxBytes = 1<<30, 1<<30
		if p.fit(specs) {
			t.Errorf("4 GiB of index fit into %d bytes", limit)
		}
		if one, other := specs[0].Policy.Responses.MaxBytes, specs[1].Policy.Responses.MaxBytes; one != other || one+other > p.responses || one < limit/50 {
			t.Errorf("of %d: response caches of %d and %d bytes", limit, one, other)
		}
		if all := specs[0].IndexMemory + specs[1].IndexMemory; all > p.index || specs[1].IndexMemory < 2*specs[0].IndexMemory {
			t.Errorf("of %d: %d and %d", limit, specs[0].IndexMemory, specs[1].IndexMemory)
		}
	}
	p := newPlan(0, 1<<20)
	if specs := []picker.Spec{{IndexMemory: 1 << 40}}; !p.fit(specs) || specs[0].IndexMemory != 1<<40 || p.clients != unlimitedClients {
		t.Errorf("without a limit: %+v", p)
	}
}

// TestClientsLeaveDescriptorsForOthers: each connection of a client can need one to an engine.
func TestClientsLeaveDescriptorsForOthers(t *testing.T) {
	for _, descriptors := range []uint64{1024, 4096, 65536, 1 << 20, 1 << 40} {
		p := newPlan(0, descriptors)
		used := p.connections + p.requests + 2*p.idle + p.gateways + p.reports
		if uint64(used)+keptDescriptors > descriptors || p.connections < 100 || p.requests < 100 || p.idle < 16 {
			t.Errorf("of %d: %+v", descriptors, p)
		}
	}
}

// TestTheProxyKeepsToThePlanOfDescriptors: its requests and idle connections are as many as descriptors allow.
func TestTheProxyKeepsToThePlanOfDescriptors(t *testing.T) {
	a := &app{}
	a.plan = newPlan(0, 4096)
	if o := a.proxyOptions(nil, nil); o.MaxRequests != a.plan.requests || o.MaxIdle != a.plan.idle || o.MaxRequests > 4096*3/8 {
		t.Errorf("%d requests and %d idle connections, planned %+v", o.MaxRequests, o.MaxIdle, a.plan)
	}
}

func TestTheLimitOfTheContainerIsFound(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":              {nil, 0},
		"version 2":         {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 536870912},
		"version 2, no max": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"a group above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n",
		}, 1000},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu,memory:/docker/x\n4:pids:/y\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "9223372036854771712\n",
		}, 2000},
		"nonsense": {map[string]string{"proc/self/cgroup": "x\n0::/../..\n", "sys/fs/cgroup/memory.max": "many\n"}, 0},
	} {
		root := t.TempDir()
		for file, text := range tc.files {
			at := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := containerMemory(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
