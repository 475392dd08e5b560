// Package sysdump gathers what a bug report needs in one archive: objects, states, decisions, metrics and logs of Kvasir's
// own programs, without prompts, tokens or keys.
package sysdump

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// Dump says what to gather.
type Dump struct {
	Source *view.Source
	// Namespace of the pools, empty for all.
	Namespace string
	// Report of the doctor.
	Report *doctor.Report
	// Logs returns the end of a container's log; nil gathers none.
	Logs func(ctx context.Context, namespace, pod, container string, previous bool) ([]byte, error)
	Now  time.Time
}

// about is the first file of an archive.
const about = `This archive was made by "kubectl kvasir sysdump" for a bug report.

It has: versions, InferencePools and RoutingPolicies, a summary of the pods of pools, pickers and the operator, events of
their namespaces, the report of the doctor, and of each picker its state, last decisions, hottest prefixes (as hashes),
metrics and log; the operator's and the reporters' logs.

It does not have: Secrets, ConfigMaps, prompts, answers, values of environment variables, values of flags whose names
speak of keys or tokens, scripts, annotations, and logs of engines, which can hold prompts.

Names of pools, pods, nodes, models, tenants and namespaces are in it. Read it before you publish it.
`

// archive is a tar file under one directory.
type archive struct {
	tar    *tar.Writer
	dir    string
	now    time.Time
	failed []string // what could not be gathered
	err    error    // of the writer; after it nothing is written
}

// Write gathers all that can be had, and notes in errors.txt what cannot. An error is one of the writer.
func (d *Dump) Write(ctx context.Context, w io.Writer) (failed []string, err error) {
	zip := gzip.NewWriter(w)
	a := &archive{tar: tar.NewWriter(zip), dir: Name(d.Now), now: d.Now}
	a.add("README.txt", []byte(about))
	a.document("version.yaml", version.Get(), nil)
	if d.Report != nil {
		a.document("doctor.yaml", d.Report, nil)
	}
	pools, err := d.Source.Pools(ctx, d.Namespace, nil)
	a.document("pools.yaml", pools, err)
	if d.Source.Picker != nil {
		d.picker(ctx, a, "pickers/"+strings.ReplaceAll(d.Source.Picker.Name, ":", "-"), d.Source.Picker)
	} else {
		d.cluster(ctx, a)
	}
	if len(a.failed) > 0 {
		a.add("errors.txt", []byte(strings.Join(a.failed, "\n")+"\n"))
	}
	return a.failed, errors.Join(a.err, a.tar.Close(), zip.Close())
}

// Name of an archive's directory.
func Name(now time.Time) string { return "kvasir-sysdump-" + now.UTC().Format("20060102-150405") }

// picker gathers what a picker reports of itself.
func (d *Dump) picker(ctx context.Context, a *archive, dir string, p *live.Picker) {
	state, err := p.Status(ctx)
	a.document(dir+"/state.yaml", state, err)
	hot, err := p.Prefixes(ctx, api.MaxPrefixes)
	a.document(dir+"/prefixes.yaml", hot, err)
	var lines strings.Builder
	encoder := json.NewEncoder(&lines)
	err = p.Decisions(ctx, api.MaxDecisions, false, true, func(one *api.Decision) error { return encoder.Encode(one) })
	a.text(dir+"/decisions.jsonl", []byte(lines.String()), err)
	metrics, err := p.Metrics(ctx)
	a.text(dir+"/metrics.txt", metrics, err)
}

// document adds a value as YAML, or notes the error for which there is none.
func (a *archive) document(name string, v any, err error) {
	var text []byte
	if err == nil {
		text, err = yaml.Marshal(v)
	}
	a.text(name, text, err)
}

// text adds a file, or notes why it is not there.
func (a *archive) text(name string, content []byte, err error) {
	if err != nil {
		a.failed = append(a.failed, string(scrub([]byte(name+": "+err.Error()))))
		return
	}
	a.add(name, content)
}

func (a *archive) add(name string, content []byte) {
	if a.err != nil {
		return
	}
	content = scrub(content)
	header := &tar.Header{Name: a.dir + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.now, Format: tar.FormatPAX}
	if a.err = a.tar.WriteHeader(header); a.err == nil {
		_, a.err = a.tar.Write(content)
	}
	if a.err != nil {
		a.err = fmt.Errorf("writing %s: %w", name, a.err)
	}
}
