package server

import (
	"cmp"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// plan divides what the process is allowed to use, once, at its start: the memory of its container and its file descriptors.
type plan struct {
	// limit is the container's memory in bytes; 0 where it has none.
	limit int64
	// clients is what clients can make the picker hold, index what the blocks of all pools can take, and responses what their response
	// caches can; 0 for as much as the pools set. tokens is what is remembered of the prompts of all pools, peers what other replicas can
	// make the picker assume, and events what engines can make it hold beside the index.
	clients, index, responses, tokens, peers, events int64
	// connections of clients to the proxy, gateways those of gateways, and reports those of reporters, replicas and operators.
	connections, gateways, reports int
	// requests of the proxy under way, which have a connection to an engine each, and its idle connections to engines.
	requests, idle int
	// copies of requests for mirrors that are under way, and mirrors what they hold in memory: it is a part of what is for clients, and not
	// in clients.
	copies  int
	mirrors int64
	// descriptors is how many the process can have.
	descriptors uint64
}

const (
	// clientShare, indexShare, tokenShare, peerShare, eventShare and responseShare of a container's limit are for clients, the index,
	// remembered prompts, assumptions of other replicas, messages of engines, and response caches. The rest is for the process itself,
	// tokenizers, and for garbage that is not collected yet.
	clientShare, indexShare, tokenShare, peerShare, eventShare, responseShare = 0.25, 0.25, 0.1, 0.05, 0.1, 0.05
	// unlimitedClients, unlimitedTokens, unlimitedPeers and unlimitedEvents are for them where there is no limit.
	unlimitedClients, unlimitedTokens, unlimitedPeers, unlimitedEvents = 1 << 30, 128 << 20, 128 << 20, 256 << 20
	// renderedShare of what prompts can take is for ids that engines have made.
	renderedShare = 8
	// mostTokens are about 20 million tokens. More are not worth the time of the garbage collector.
	mostTokens = 256 << 20
	// collectShare of the limit is where the collector begins to work harder, unless GOMEMLIMIT is set.
	collectShare = 0.8
	// keptDescriptors are for health checks, metrics, event streams, replicas and files. Of the others the proxy's clients
	// get three eighths, as engines do for their requests, gateways a sixteenth, and reporters as many. Idle connections to engines
	// get an eighth, in two halves: requests with large bodies have connections of their own.
	keptDescriptors = 512
	// mirrorShare of what is for clients, and of their requests, is for copies for mirrors, mostCopies at most. Each has room for a
	// connection, and for an idle one.
	mirrorShare, mostCopies = 16, 256
	// mostConnections, and mostGateways for each of gateways and reporters, are enough where descriptors are not scarce.
	mostConnections, mostGateways = 16 << 10, 1024
	// mostReports is in place of mostGateways for reporters where the picker is of a fleet: an operator has a connection for each pool.
	mostReports = 4096
)

// newPlan divides a limit of memory, 0 for none, and a number of descriptors.
func newPlan(limit int64, descriptors uint64) plan {
	p := plan{limit: limit, clients: unlimitedClients, tokens: unlimitedTokens, peers: unlimitedPeers, events: unlimitedEvents,
		descriptors: descriptors}
	if limit > 0 {
		of := func(share float64) int64 { return int64(share * float64(limit)) }
		p.clients, p.index, p.tokens, p.peers = of(clientShare), of(indexShare), min(of(tokenShare), mostTokens), of(peerShare)
		p.events, p.responses = of(eventShare), of(responseShare)
	}
	p.mirrors = p.clients / mirrorShare
	p.clients -= p.mirrors
	free := int(min(descriptors, math.MaxInt32)) - keptDescriptors
	p.connections = max(16, min(mostConnections, free*3/8))
	p.requests = p.connections
	p.idle = max(4, free/16)
	p.copies = min(mostCopies, p.requests/mirrorShare)
	p.requests -= max(0, 2*p.copies-max(0, free-p.connections-p.requests-4*p.idle)) // where descriptors are not scarce, some are left
	p.gateways = max(4, min(mostGateways, free/16))
	p.reports = max(4, min(mostGateways, free/16))
	return p
}

// ofFleet allows for the connections of operators to a picker that serves many pools.
func (p *plan) ofFleet() {
	p.reports = max(4, min(mostReports, (int(min(p.descriptors, math.MaxInt32))-keptDescriptors)/16))
}

// withIndex bounds what the indexes of all pools can take together, in bytes; 0 changes nothing. The container's limit stays a bound.
func (p *plan) withIndex(most int64) {
	if most > 0 && (p.index == 0 || most < p.index) {
		p.index = most
	}
}

// ownPlan is the plan of this process. It sets the garbage collector's limit.
func ownPlan() plan {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		files.Cur = 1024
	}
	p := newPlan(containerMemory("/"), files.Cur)
	if p.limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(collectShare * float64(p.limit)))
	}
	return p
}

// containerMemory is the memory limit of the process's cgroup in bytes, the lowest of it and those above it; 0 for none.
// Below root are /proc and /sys.
func containerMemory(root string) (limit int64) {
	groups, err := os.ReadFile(path.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		switch {
		case parts[1] == "" && parts[0] == "0":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			text, _ := os.ReadFile(path.Join(root, base, group, file))
			// Without a limit version 2 has "max", and version 1 a number near the largest.
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n < 1<<60 && (limit == 0 || n < limit) {
				limit = n
			}
			if group == "/" {
				break
			}
		}
	}
	return limit
}

// fit makes the indexes and the response caches of pools fit into the plan, where they could take more together. It reports whether the
// indexes fitted.
func (p *plan) fit(specs []picker.Spec) (fits bool) {
	share(p.responses, specs, func(s *picker.Spec) (*int64, float64) {
		n := &s.Policy.Responses.MaxBytes
		return n, float64(*n)
	})
	return share(p.index, specs, func(s *picker.Spec) (*int64, float64) {
		return &s.IndexMemory, float64(s.IndexMemory) * float64(len(s.Endpoints))
	})
}

// share divides a limit, 0 for none, among specs in the proportion of their weights; none gets more than it has set, and what it does
// not need is for the others. A spec of the weight 0 has nothing to store, such as a pool without endpoints: it is left as it is. share
// reports false if the specs have set more than the limit.
func share(limit int64, specs []picker.Spec, of func(*picker.Spec) (set *int64, weight float64)) (fits bool) {
	type claim struct {
		set    *int64
		weight float64
	}
	var claims []claim
	all, weights := int64(0), 0.0
	for i := range specs {
		if set, weight := of(&specs[i]); weight > 0 {
			claims = append(claims, claim{set, weight})
			all += *set
			weights += weight
		}
	}
	if limit == 0 || all <= limit {
		return true
	}
	// Those that need the least for their weight come first: what each of them leaves is divided among the rest.
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Compare(float64(*a.set)/a.weight, float64(*b.set)/b.weight)
	})
	left := float64(limit)
	for _, c := range claims {
		part := min(float64(*c.set), left*min(1, c.weight/weights))
		*c.set = max(1, int64(part)) // 0 would be no limit
		left, weights = left-part, weights-c.weight
	}
	return false
}
