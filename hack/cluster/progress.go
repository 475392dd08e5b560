//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// reportEvery is how often a build that takes longer reports how far it is.
const reportEvery = 15 * time.Second

// enough packages must be compiled before the time for the others can be estimated. Where Go's build cache has most, few are.
const enough = 15

// progress counts the packages that `go build -v` names as it compiles them, and reports how many there are and how long the
// rest takes at most. Packages that Go's build cache has are not compiled, so that a build often ends earlier. It is an
// io.Writer for the standard error of builds; other lines go to rest. It is safe for concurrent use.
type progress struct {
	rest io.Writer
	now  func() time.Time

	mu       sync.Mutex // guards what follows
	line     []byte
	begun    time.Time
	reported time.Time
	compiled int
	total    int // of all packages of the programs; 0 when it is not known
}

func newProgress(rest io.Writer, total int, now func() time.Time) *progress {
	return &progress{rest: rest, now: now, total: total, begun: now(), reported: now()}
}

// importPath is a line of `go build -v`.
var importPath = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~+/-]*$`)

// Write implements io.Writer.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = append(p.line, text...)
	for {
		at := bytes.IndexByte(p.line, '\n')
		if at < 0 {
			return len(text), nil
		}
		line := p.line[:at]
		if importPath.Match(line) {
			p.compiled++
			p.report()
		} else if _, err := fmt.Fprintf(p.rest, "%s\n", line); err != nil {
			return 0, fmt.Errorf("passing on what a build prints: %w", err)
		}
		p.line = p.line[at+1:]
	}
}

func (p *progress) report() {
	now := p.now()
	if now.Sub(p.reported) < reportEvery {
		return
	}
	p.reported = now
	took := now.Sub(p.begun)
	if p.total <= p.compiled {
		log.Printf("%d packages compiled in %s", p.compiled, took.Round(time.Second))
		return
	}
	if p.compiled < enough {
		log.Printf("%d packages compiled in %s, at most %d more", p.compiled, took.Round(time.Second), p.total-p.compiled)
		return
	}
	left := took * time.Duration(p.total-p.compiled) / time.Duration(p.compiled)
	log.Printf("%d packages compiled in %s, at most %d more: about %s at this rate, less with a warm build cache",
		p.compiled, took.Round(time.Second), p.total-p.compiled, left.Round(10*time.Second))
}

// packages counts those that programs are built from: of Kubernetes in hack/kube, the others in hack/cluster/node. Those that
// both have are counted once. 0 means that Go could not list them.
func (c *cluster) packages(ctx context.Context) int {
	seen := map[string]bool{}
	for dir, programs := range map[string][]string{
		filepath.Join("hack", "kube"):            kubePrograms,
		filepath.Join("hack", "cluster", "node"): pinned,
	} {
		list := exec.CommandContext(ctx, "go", append([]string{"list", "-deps"}, programs...)...)
		list.Dir = filepath.Join(c.root, dir)
		out, err := list.Output()
		if err != nil {
			return 0
		}
		for name := range strings.Lines(string(out)) {
			seen[strings.TrimSpace(name)] = true
		}
	}
	return len(seen)
}
