// Package floors checks the layering: which package can import which.
package floors

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kvasir-dev/kvasir/"

// floors gives every package its floor. Imports point down, or sideways without a circle. A new package is entered
// here, or the test fails.
var floors = map[string]int{}

func init() {
	for floor, names := range [...][]string{
		{ // 0, the domain: no input or output, no clock of its own
			"internal/routinghistory",
			"internal/budget", "internal/overload",
			"internal/endpoint",
			"internal/sim/chat",
			"internal/sim/enginemodel",
			"internal/fault",
			"internal/hooks",
			"internal/kvblock",
			"internal/kvevent",
			"internal/kvindex",
			"internal/load",
			"internal/modelroute",
			"internal/monotonic",
			"internal/policy",
			"internal/respcache",
			"internal/spelling",
			"internal/tenant",
		},
		{ // 1, codecs: bytes to domain and back
			"internal/tokens/chatprompt",
			"internal/tokens/chattemplate",
			"internal/dashboard/api",
			"internal/decisionlog",
			"internal/tokens/images",
			"internal/coredump", "internal/linefile", "internal/logging", "internal/relay",
			"internal/tokens/modelfiles",
			"internal/openai",
			"internal/peerpb",
			"internal/protosize",
			"internal/reportpb",
			"internal/tokens/tokenizer",
			"internal/sim/trace",
			"internal/vllm",
		},
		{ // 2, use cases
			"internal/admission",
			"internal/tokens/tokencheck",
			"internal/events",
			"internal/operatorfeed",
			"internal/replicas",
			"internal/picker",
			"internal/picker/circuit",
			"internal/operator/placement",
			"internal/operator/lifecycle",
			"internal/cachesync",
			"internal/operator/scaling",
		},
		{ // 3, adapters to the world; what the cluster's users write belongs to them
			"api/v1alpha1",
			"config/crd",
			"internal/bench",
			"internal/certs",
			"internal/oidc",
			"internal/operator/resources",
			"docs",
			"internal/cli/command",
			"internal/cli/console",
			"internal/cli/doctor",
			"internal/cli/flags",
			"internal/cli/fleet",
			"internal/cli/live",
			"internal/cli/objects",
			"internal/cli/sysdump",
			"internal/cli/top",
			"internal/cli/view",
			"internal/cli/workload",
			"internal/operator/controller/autoscaling",
			"internal/operator/controller/objects",
			"internal/operator/controller/pickerfleet",
			"internal/operator/controller/pickers",
			"internal/operator/controller/inferencepool",
			"internal/operator/controller/modelroute",
			"internal/operator/controller/routingpolicy",
			"internal/dashboard",
			"internal/gateway/accept",
			"internal/gateway/extproc",
			"internal/gateway/h2stream",
			"internal/gateway/httpproxy",
			"internal/gateway/request",
			"internal/operator/podtemplate",
			"internal/operator/keda",
			"internal/freeport",
			"internal/sim/lab",
			"internal/metrics",
			"internal/engines/render",
			"internal/reporter", "internal/sidecar",
			"internal/engines/scrape",
			"internal/tracing",
			"internal/usagelog", "internal/usageotlp",
			"internal/rpc",
			"internal/version", "internal/hosts", "internal/callout", "internal/redisstore",
			"internal/sim/vllmsim",
			"internal/config",
			"internal/config/crdadmission",
			"internal/config/cluster",
			"internal/status",
			"internal/engines/transport",
			"internal/tokens/hub",
			"internal/zmtp",
		},
		{ // 4, programs
			"cmd/kubectl-kvasir",
			"cmd/kvasir-bench",
			"cmd/kvasir-lab",
			"cmd/manager",
			"cmd/picker",
			"cmd/reporter",
			"cmd/vllmsim",
			"internal/server",
		},
	} {
		for _, name := range names {
			floors[name] = floor
		}
	}
}

// worldly are imports that packages up to floor 2 must not reach, directly or through others: the same code runs in
// the picker, the simulator and the offline lab.
var worldly = []string{"net/http", "google.golang.org/grpc", "k8s.io/", "sigs.k8s.io/", module + "api/", "github.com/prometheus/"}

// strangers must not know the packages they are there to check: the simulated engine agrees with the wire, not with
// our decoder. What the tokenizer needs for its cache of keys is not looked at: it makes no difference to its ids.
var strangers = map[string][]string{
	"internal/sim/vllmsim":     {"internal/kvblock", "internal/kvindex", "internal/kvevent", "internal/vllm"},
	"internal/sim/enginemodel": {"internal/kvblock", "internal/kvindex", "internal/kvevent", "internal/vllm"},
	"cmd/vllmsim":              {"internal/kvblock", "internal/kvindex", "internal/kvevent", "internal/vllm"},
}

// lean programs stand beside every engine, or run where there is no Kubernetes: they must not reach these, which cost
// memory or promise what is not there.
var lean = map[string][]string{
	"cmd/reporter": {"k8s.io/", "sigs.k8s.io/", "github.com/prometheus/", module + "api/"},
	"cmd/vllmsim":  {"k8s.io/", "sigs.k8s.io/", module + "api/"},

	"cmd/kvasir-bench": {"k8s.io/", "sigs.k8s.io/", module + "api/"},
}

// TestThePageHasEveryPackage: the table of docs/architecture.md has a row for each of internal and cmd, on its floor.
func TestThePageHasEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, floor := map[string]string{}, ""
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		floor = cmp.Or(strings.TrimSpace(cells[1]), floor)
		rows[strings.Trim(cells[2], " `")] = floor
	}
	for name, floor := range floors {
		if dir, _, _ := strings.Cut(name, "/"); dir != "internal" && dir != "cmd" {
			continue
		}
		if on := rows[name]; !strings.HasPrefix(on, strconv.Itoa(floor)+" ") {
			t.Errorf("%s is on floor %d, and on the page on %q", name, floor, on)
		}
	}
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsPointDown(t *testing.T) {
	packages := list(t)
	if len(packages) < 10 {
		t.Fatalf("only %d packages are listed", len(packages))
	}
	byPath := map[string]listed{}
	for _, p := range packages {
		byPath[p.ImportPath] = p
	}
	for _, p := range packages {
		name := strings.TrimPrefix(p.ImportPath, module)
		if outside(name) {
			continue
		}
		floor, ok := floors[name]
		if !ok {
			t.Errorf("%s has no floor: enter it in the table", name)
			continue
		}
		for _, imported := range p.Imports {
			other, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if of, ok := floors[other]; !ok {
				t.Errorf("%s imports %s, which has no floor", name, other)
			} else if of > floor {
				t.Errorf("%s (floor %d) imports %s (floor %d): imports point down", name, floor, other, of)
			}
		}
		for _, dep := range p.Deps {
			if floor <= 2 && is(dep, worldly) {
				t.Errorf("%s (floor %d) reaches %s", name, floor, dep)
			}
			if is(dep, lean[name]) {
				t.Errorf("%s reaches %s, which it must do without", name, dep)
			}
		}
		for _, stranger := range strangers[name] {
			if reaches(byPath, p.ImportPath, module+stranger, map[string]bool{module + "internal/tokens/tokenizer": true, module + "internal/tokens/chatprompt": true}) {
				t.Errorf("%s reaches %s, which it is there to check", name, stranger)
			}
		}
	}
}

// reaches reports whether one package imports another, directly or through others of ours that are not in seen.
func reaches(packages map[string]listed, from, to string, seen map[string]bool) bool {
	seen[from] = true
	for _, imported := range packages[from].Imports {
		if imported == to {
			return true
		}
		if _, ours := packages[imported]; ours && !seen[imported] && reaches(packages, imported, to, seen) {
			return true
		}
	}
	return false
}

// outside reports whether a package is not part of the layers: tools, and packages that span several.
func outside(name string) bool {
	return strings.HasPrefix(name, "hack/") || strings.HasPrefix(name, "test/")
}

// is reports whether a package is one of some, or below one.
func is(dep string, some []string) bool {
	for _, prefix := range some {
		if dep == prefix || strings.HasSuffix(prefix, "/") && strings.HasPrefix(dep, prefix) || strings.HasPrefix(dep, prefix+"/") {
			return true
		}
	}
	return false
}

// list asks the go command for all packages of the module, without their tests.
func list(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Imports,Deps", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading the package list: %v", err)
		}
		packages = append(packages, p)
	}
}
