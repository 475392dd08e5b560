package lifecycle

import (
	"fmt"
	"maps"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// image is that of a program in a version of Kvasir. All versions are the same program.
func image(program string, version int) string {
	if version == 0 {
		return program
	}
	return fmt.Sprintf("%s:%d", program, version)
}

// programs of all images, and of more engines.
func (w *world) programs(engines map[string]string) map[string]string {
	all := map[string]string{"vllmsim": w.file("vllmsim")}
	maps.Copy(all, engines)
	for version := range *upgrades + 1 {
		for _, program := range []string{"picker", "reporter"} {
			all[image(program, version)] = w.file(program)
		}
	}
	return all
}

// installation is the program of an operator, and the images that it gives pickers and reporters.
type installation struct{ operator, picker, reporter string }

// release is the installation of a version.
func (w *world) release(version int) installation {
	return installation{w.file("manager"), image("picker", version), image("reporter", version)}
}

// upgrade installs the next version.
func (w *world) upgrade() {
	w.Helper()
	w.version++
	w.install(w.release(w.version))
}

// install starts an operator before it ends the present one, as a Deployment does, and waits until all pickers and reporters have
// followed. The only engine that serves keeps its reporter.
func (w *world) install(next installation) {
	w.Helper()
	old := w.stopManager
	w.installed = next
	w.startManager()
	old()
	w.reaches("upgraded", func() error {
		for _, p := range w.podsOf("app.kubernetes.io/component=picker") {
			if p.Spec.Containers[0].Image != next.picker || !ready(&p) {
				return fmt.Errorf("picker %s has image %s, ready %v", p.Name, p.Spec.Containers[0].Image, ready(&p))
			}
		}
		engines := w.podsOf(v1alpha1.LabelSlot)
		for _, p := range engines {
			reporter := p.Spec.InitContainers[0]
			if len(engines) > 1 && (reporter.Image != next.reporter || !ready(&p)) {
				return fmt.Errorf("pod %s has image %s, ready %v", p.Name, reporter.Image, ready(&p))
			}
		}
		return nil
	})
}

// drain has kubectl drain a node, waits until that has nothing left to do, and gives the node back.
func (w *world) drain(node string) {
	w.Helper()
	w.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=10m")
	for _, p := range w.podsOf("") {
		if p.Spec.NodeName == node {
			w.Errorf("pod %s is on node %s, which was drained", p.Name, node)
		}
	}
	w.kubectl("uncordon", node)
}

// reaches waits until something holds. Some of what it waits for takes each pod 10 s and more, one after the other.
func (w *world) reaches(what string, holds func() error) {
	w.Helper()
	for end := time.Now().Add(3*patience + w.loads); ; time.Sleep(w.between(100 * time.Millisecond)) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("not %s: %v", what, err)
		}
	}
}

// answers waits for some more answers.
func (w *world) answers(l *load, n int64) {
	w.Helper()
	want := l.answered.Load() + n
	w.reaches("answering", func() error {
		if got := l.answered.Load(); got < want {
			return fmt.Errorf("%d answers, want %d", got, want)
		}
		return nil
	})
}
