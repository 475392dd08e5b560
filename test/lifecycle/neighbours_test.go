package lifecycle

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var oldCommit = flag.String("lifecycle.old", "", "`commit` whose programs TestNeighbouringReleases has beside those of the working tree; none without it")

// TestNeighbouringReleases changes operator, pickers and reporters one by one from those of an older commit to those of the working
// tree and back, and mixes them at last, under load: no request fails, no engine is replaced, replicas of both releases are connected,
// and in each combination the pickers follow the events of all engines.
func TestNeighbouringReleases(t *testing.T) {
	t.Parallel()
	if *oldCommit == "" {
		t.Skip("no -lifecycle.old")
	}
	source, programs := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", `git archive "$1" | tar -x -C "$2"
		go -C "$2" build -trimpath -o "$3/" ./cmd/manager ./cmd/picker ./cmd/reporter`, "-", *oldCommit, source, programs)
	build.Dir = kube.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", *oldCommit, err, out)
	}
	images := map[string]string{}
	for _, name := range []string{"picker", "reporter"} {
		images[name+":old"], images[name+":mixed"] = filepath.Join(programs, name), filepath.Join(programs, name+".mixed")
	}
	w := newWorldOf(t, 0, images)
	for _, name := range []string{"picker", "reporter"} { // the first pod has the old program, others have the new one
		script := fmt.Sprintf("#!/bin/sh\nif mkdir '%[1]s.first' 2>/dev/null; then exec '%[1]s' \"$@\"; fi\nexec '%[2]s' \"$@\"\n",
			images[name+":old"], w.file(name))
		w.must(os.WriteFile(images[name+":mixed"], []byte(script), 0o700))
	}
	define := func(root string) {
		w.kubectl("apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, "config", "default"))
	}
	now, old := w.installed, installation{filepath.Join(programs, "manager"), "picker:old", "reporter:old"}
	define(source)
	w.install(old)
	w.apply(pool)
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(3)(p) && len(w.proxies()) == 2 })
	w.createReader()
	w.connected()
	before := w.podsOf(v1alpha1.LabelSlot)
	l := startLoad(w, *clients, *longest)
	took := func(what string, do func()) {
		began, asked := time.Now(), l.asked.Load()
		do()
		w.connected()
		w.answers(l, 20)
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Logf("%s: %s, %d requests, %d failed so far", what, time.Since(began).Round(time.Second), l.asked.Load()-asked, len(l.failures))
	}
	for _, step := range []struct {
		name string
		installation
	}{
		{"new pickers", installation{old.operator, now.picker, old.reporter}},
		{"new pickers and reporters", installation{old.operator, now.picker, now.reporter}},
		{"new reporters", installation{old.operator, old.picker, now.reporter}},
		{"all old", old},
		{"all new", now},
		{"old reporters", installation{now.operator, now.picker, old.reporter}},
		{"old pickers and reporters", installation{now.operator, old.picker, old.reporter}},
		{"old pickers", installation{now.operator, old.picker, now.reporter}},
		{"all old again", old},
		{"old operator, the others mixed", installation{old.operator, "picker:mixed", "reporter:mixed"}},
		{"new operator, the others mixed", installation{now.operator, "picker:mixed", "reporter:mixed"}},
	} {
		took(step.name, func() {
			if step.operator == now.operator {
				define(kube.Root())
			} else {
				define(source)
			}
			w.install(step.installation)
		})
	}
	after := w.podsOf(v1alpha1.LabelSlot)
	for _, p := range before {
		if !slices.ContainsFunc(after, func(q corev1.Pod) bool { return q.UID == p.UID }) {
			t.Errorf("pod %s was replaced", p.Name)
		}
	}
	took("scaled down while mixed", func() { w.scale(1) })
	took("scaled up again", func() { w.scale(3) })
	failures := l.end()
	t.Logf("%d requests, %d failed", l.asked.Load(), len(failures))
	for _, f := range failures[:min(10, len(failures))] {
		t.Error(f)
	}
}

// connected waits until the pickers are connected to each other and follow the events of all engines.
func (w *world) connected() {
	w.Helper()
	w.reaches("connected", func() error {
		for _, kind := range []status.Type{status.Accepted, status.PickerAvailable, status.EventsSynced} {
			if c := kind.In(w.pool().Status.Conditions); c == nil || c.Status != metav1.ConditionTrue {
				return fmt.Errorf("%s: %+v", kind, c)
			}
		}
		pickers := w.pickerPods()
		if len(pickers) != 2 {
			return fmt.Errorf("%d pickers", len(pickers))
		}
		for _, p := range pickers {
			code, metrics := w.observe(p, "/metrics", true)
			for _, want := range []string{"\nkvasir_peers_heard 1\n", "\nkvasir_peers_told 1\n"} {
				if code != http.StatusOK || !strings.Contains(metrics, want) {
					return fmt.Errorf("picker %s: status %d, no%q", p.Name, code, want)
				}
			}
		}
		return nil
	})
}
