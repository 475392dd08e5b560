// Command bench-gateway measures what the picker costs as an endpoint picker and as a proxy, beside Go's
// httputil.ReverseProxy in the same run. The load generator shares the machine. A row is one JSON line:
//
//	{"row": "...", "value": 0.31, "unit": "ms CPU", "limit": 0.5, ...}
//
// CPU is that of the process measured, user and system, by request: other work on the machine disturbs it less than the
// clock. Latencies are by the clock.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// row is a line of the result.
type row struct {
	Row   string  `json:"row"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Limit float64 `json:"limit,omitempty"`
	// Beside is what else was measured with it.
	Beside map[string]float64 `json:"beside,omitempty"`
	At     string             `json:"at"`
}

// bench is a run.
type bench struct {
	picker  string   // the program
	envoy   string   // the program; empty for none
	sidecar string   // llm-d's, the program; empty for none
	profile string   // file for a CPU profile, empty for none; of costs and envoy a directory
	beside  []string // further builds of this program, for costs and idle
	rows    string   // a part of the names of those to measure through Envoy; empty for all
	length  time.Duration
	out     io.Writer
	engine  *engine
}

func (b *bench) record(r row) {
	r.At = time.Now().UTC().Format(time.RFC3339)
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers and strings
	}
	fmt.Fprintf(b.out, "%s\n", line)
}

func main() {
	role := flag.String("role", "", "serve, reverse or sidecar: what a process of the run is; for its own use")
	engines := flag.String("engine", "", "port of the engines, for those")
	picker := flag.String("picker", "bin/picker", "`program` for the rows that need the whole picker")
	envoy := flag.String("envoy", "", "`program` for the rows through Envoy; empty leaves them out")
	llmd := flag.String("sidecar", "", "`program` of llm-d's sidecar, for sidecars; empty leaves it out")
	out := flag.String("out", "out/bench/gateway.jsonl", "`file` to write to")
	profile := flag.String("profile", "", "`file` for a CPU profile of the picker under the first row; a directory for costs and envoy, which profile each row")
	only := flag.String("only", "", "measure only these: prompts, events, open, proxied, secured, idle, costs, sidecars or envoy")
	beside := flag.String("beside", "", "further builds of this program and the picker to measure costs and idle of: `directories`, with commas between")
	rows := flag.String("rows", "", "of envoy, measure only the rows whose name has this `text`")
	length := flag.Duration("time", 5*time.Second, "how long each row takes")
	flag.Parse()
	var err error
	switch *role {
	case "serve":
		err = serve(*engines)
	case "reverse":
		err = reverse(*engines)
	case "sidecar":
		err = inFront(*engines)
	default:
		b := &bench{picker: *picker, envoy: *envoy, sidecar: *llmd, profile: *profile, rows: *rows, length: *length}
		if *beside != "" {
			b.beside = strings.Split(*beside, ",")
		}
		err = b.run(*out, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-gateway:", err)
		os.Exit(1)
	}
}

func (b *bench) run(out, only string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	e, err := startEngine()
	if err != nil {
		return err
	}
	b.out, b.engine = io.MultiWriter(f, os.Stdout), e
	for _, m := range []struct {
		name    string
		measure func() error
	}{
		{"prompts", b.prompts}, {"events", b.events}, {"open", b.open}, {"proxied", b.proxied}, {"secured", b.secured},
		{"idle", b.idle}, {"costs", b.costs}, {"sidecars", b.sidecars},
		{"envoy", b.throughEnvoy},
	} {
		if only != "" && only != m.name || only == "" && m.name == "envoy" && b.envoy == "" {
			continue
		}
		if err := m.measure(); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}
