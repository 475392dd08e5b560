package server

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestTheContainersMemoryIsDividedOnce(t *testing.T) {
	for _, limit := range []int64{512 << 20, 1 << 30, 2 << 30} {
		p := newPlan(limit, 1<<20)
		if rest := limit - p.clients - p.mirrors - p.index - p.tokens - p.peers - p.responses; rest < limit*3/10-3 || rest-p.events < limit/5 || p.events < limit/12 || p.clients < limit/5 || p.mirrors < limit/80 || p.tokens < limit/12 {
			t.Errorf("of %d: %+v", limit, p)
		}
		specs := []picker.Spec{indexed(1<<30, 1), indexed(3<<30, 1)}
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
	if specs := []picker.Spec{indexed(1<<40, 1)}; !p.fit(specs) || specs[0].IndexMemory != 1<<40 || p.clients+p.mirrors != unlimitedClients || p.mirrors < 32<<20 {
		t.Errorf("without a limit: %+v", p)
	}
}

// indexed is a pool that has set a limit for its index.
func indexed(memory int64, endpoints int) picker.Spec {
	return picker.Spec{IndexMemory: memory, Endpoints: make([]endpoint.Endpoint, endpoints)}
}

// TestIndexesHaveABoundOfTheirOwn: the flag bounds what pools set, never above the container's limit.
func TestIndexesHaveABoundOfTheirOwn(t *testing.T) {
	for _, c := range []struct{ limit, flag, want int64 }{
		{0, 0, 0}, {0, 1 << 30, 1 << 30}, {2 << 30, 0, 512 << 20}, {2 << 30, 1 << 30, 512 << 20}, {8 << 30, 1 << 30, 1 << 30},
	} {
		p := newPlan(c.limit, 1<<20)
		if p.withIndex(c.flag); p.index != c.want {
			t.Errorf("limit %d, flag %d: %d bytes for indexes, want %d", c.limit, c.flag, p.index, c.want)
		}
		specs := []picker.Spec{indexed(4<<30, 1), indexed(4<<30, 1)}
		if fits := p.fit(specs); fits != (c.want == 0) || !fits && specs[0].IndexMemory+specs[1].IndexMemory > c.want {
			t.Errorf("limit %d, flag %d: pools get %d and %d bytes", c.limit, c.flag, specs[0].IndexMemory, specs[1].IndexMemory)
		}
	}
	if _, err := parse([]string{"--engines=http://127.0.0.1:1", "--model=m", "--index-memory=-1"}, io.Discard, io.Discard); err == nil {
		t.Error("a negative bound is accepted")
	}
}

// TestPoolsWithEndpointsShareTheIndex: all of the plan is given away, in the proportion of endpoints and settings; nothing to pools
// without endpoints, and to no pool more than it has set.
func TestPoolsWithEndpointsShareTheIndex(t *testing.T) {
	p := newPlan(2<<30, 1<<20)
	specs := make([]picker.Spec, 0, 1000)
	for i := range 1000 {
		specs = append(specs, indexed(1<<30, min(4, max(0, i-979)*4)))
	}
	if p.fit(specs) {
		t.Fatal("20 GiB of indexes fit into 512 MiB")
	}
	for i, s := range specs {
		if i < 980 && s.IndexMemory != 1<<30 || i >= 980 && (s.IndexMemory > p.index/20 || s.IndexMemory < p.index/20-1) {
			t.Fatalf("pool %d of %d endpoints has %d of %d bytes", i, len(s.Endpoints), s.IndexMemory, p.index)
		}
	}
	// What small pools leave is for large ones.
	specs = []picker.Spec{indexed(1<<30, 8), indexed(16<<20, 30), indexed(1<<30, 2)}
	p.fit(specs)
	if a, b, c := specs[0].IndexMemory, specs[1].IndexMemory, specs[2].IndexMemory; b != 16<<20 || a/c != 4 && a/(c+1) != 4 || a+b+c > p.index || a+b+c < p.index-2 {
		t.Errorf("%d, %d and %d of %d bytes", a, b, c, p.index)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		specs := make([]picker.Spec, 1+r.IntN(20))
		var set []int64
		asked := int64(0)
		for i := range specs {
			specs[i] = indexed(16<<20+r.Int64N(1<<r.IntN(34)), r.IntN(9))
			set = append(set, specs[i].IndexMemory)
			if len(specs[i].Endpoints) > 0 {
				asked += set[i]
			}
		}
		fits, given := p.fit(specs), int64(0)
		for i, s := range specs {
			if s.IndexMemory > set[i] || s.IndexMemory < 1 || (fits || len(s.Endpoints) == 0) && s.IndexMemory != set[i] {
				t.Fatalf("a pool that has set %d gets %d", set[i], s.IndexMemory)
			}
			if len(s.Endpoints) > 0 {
				given += s.IndexMemory
			}
		}
		if fits != (asked <= p.index) || given > p.index || given < min(asked, p.index)-int64(len(specs)) {
			t.Fatalf("%d of %d bytes given to pools that have set %d (fits: %t)", given, p.index, asked, fits)
		}
	}
}

// TestClientsLeaveDescriptorsForOthers: each connection of a client can need one to an engine.
func TestClientsLeaveDescriptorsForOthers(t *testing.T) {
	for _, descriptors := range []uint64{1024, 4096, 65536, 1 << 20, 1 << 40} {
		p := newPlan(0, descriptors)
		used := p.connections + p.requests + 2*p.copies + 2*p.idle + p.gateways + p.reports
		if uint64(used)+keptDescriptors > descriptors || p.connections < 100 || p.requests < 100 || p.idle < 16 || p.copies < 8 || p.copies > mostCopies {
			t.Errorf("of %d: %+v", descriptors, p)
		}
	}
}

// TestFleetsHaveRoomForTheConnectionsOfOperators: one for each of a thousand pools, and for reporters besides, where descriptors are not scarce.
func TestFleetsHaveRoomForTheConnectionsOfOperators(t *testing.T) {
	for descriptors, want := range map[uint64]int{1024: 32, 65536: 4064, 1 << 20: mostReports} {
		p := newPlan(0, descriptors)
		before := p.reports
		if p.ofFleet(); p.reports != want || p.reports < before {
			t.Errorf("of %d descriptors %d connections, %d before, want %d", descriptors, p.reports, before, want)
		}
	}
}

// TestTheProxyKeepsToThePlanOfDescriptors: its requests and idle connections are as many as descriptors allow.
func TestTheProxyKeepsToThePlanOfDescriptors(t *testing.T) {
	a := &app{}
	a.plan = newPlan(0, 4096)
	if o := a.proxyOptions(nil, nil); o.MaxRequests != a.plan.requests || o.MaxIdle != a.plan.idle || o.MaxRequests > 4096*3/8 {
		t.Errorf("%d requests and %d idle connections, planned %+v", o.MaxRequests, o.MaxIdle, a.plan)
	} else if o.Mirroring.Most != a.plan.copies || o.Mirroring.Budget != a.mirrors {
		t.Errorf("copies %+v, planned %+v", o.Mirroring, a.plan)
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
