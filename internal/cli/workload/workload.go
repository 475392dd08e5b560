// Package workload adds the reporter to existing manifests of workloads. Other documents stay unchanged, byte by byte.
package workload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// maxBytes bounds what is read.
const maxBytes = 64 << 20

// Options configure what is injected.
type Options struct {
	// Pool reads a pool that is not among the documents.
	Pool func(ctx context.Context, name types.NamespacedName) (*v1alpha1.InferencePool, error)
	// Name of the pool; empty where the documents have exactly one. Namespace of objects that name none.
	Name, Namespace string
	// Image of the reporter, and Version of what is injected.
	Image   func(ctx context.Context) (string, error)
	Version string
}

// Result is what was done to one workload.
type Result struct {
	// Object is kind and name, as kubectl writes them.
	Object string
	// Added to its pods, and Notes on what was not, and on what is not as it should be.
	Added, Notes []string
}

// document is one of a file.
type document struct {
	raw    []byte
	object *unstructured.Unstructured // nil for what is no object
}

// Inject reads manifests, YAML or JSON, and writes them with the reporter in every workload of the pool's pods.
func Inject(ctx context.Context, in io.Reader, out io.Writer, o Options) ([]Result, error) {
	documents, err := read(in)
	if err != nil {
		return nil, err
	}
	pool, err := o.pool(ctx, documents)
	if err != nil {
		return nil, err
	}
	wiring := podtemplate.ShapeOf(pool).Wiring
	switch source := pool.Spec.Engine.Events.Source; {
	case len(pool.Spec.Selector.MatchLabels) == 0:
		return nil, fmt.Errorf("the pool %s makes its pods itself, with their reporters: nothing is to be injected", pool.Name)
	case source != v1alpha1.EventsAuto && source != v1alpha1.EventsReporter:
		return nil, fmt.Errorf("pool %s does not accept reporters: its engine.events.source is %s, want Auto or Reporter", pool.Name, source)
	}
	image, err := o.Image(ctx)
	if err != nil {
		return nil, err
	}
	w := &work{pool: pool, wiring: &wiring, options: podtemplate.For(pool), namespace: o.Namespace}
	w.options.ReporterImage, w.options.Version, w.options.Warm = image, o.Version, false
	for i := range documents {
		d := &documents[i]
		if d.object == nil || !w.each(d.object) {
			continue
		}
		if w.err != nil {
			return nil, w.err
		}
		if d.raw, err = yaml.Marshal(d.object.Object); err != nil {
			return nil, fmt.Errorf("writing %s: %w", d.object.GetName(), err)
		}
	}
	if len(w.results) == 0 {
		return nil, errors.New("there is no workload: want a Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet or LeaderWorkerSet")
	}
	for i, d := range documents {
		if i > 0 {
			d.raw = append([]byte("---\n"), d.raw...)
		}
		if _, err := out.Write(d.raw); err != nil {
			return nil, fmt.Errorf("writing: %w", err)
		}
	}
	return w.results, nil
}

func read(in io.Reader) ([]document, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("the input is longer than %d MiB", maxBytes>>20)
	}
	var all []document
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		d := document{raw: raw}
		var object map[string]any
		if err := yaml.UnmarshalStrict(raw, &object); err != nil {
			return nil, fmt.Errorf("document %d: %w", len(all)+1, err)
		}
		if len(object) > 0 {
			d.object = &unstructured.Unstructured{Object: object}
		}
		all = append(all, d)
	}
}

// pool finds the pool among the documents, or asks for it.
func (o *Options) pool(ctx context.Context, documents []document) (*v1alpha1.InferencePool, error) {
	var found []*v1alpha1.InferencePool
	for _, d := range documents {
		if d.object == nil || d.object.GroupVersionKind().GroupKind() != (v1alpha1.GroupVersion.WithKind("InferencePool").GroupKind()) {
			continue
		}
		if o.Name != "" && d.object.GetName() != o.Name {
			continue
		}
		pool, err := admitted(ctx, d)
		if err != nil {
			return nil, err
		}
		found = append(found, pool)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, errors.New("there is more than one InferencePool: select one with --pool")
	case o.Name == "":
		return nil, errors.New("name the reporter's pool by --pool, or put its InferencePool into the file")
	}
	return o.Pool(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
}

// admitted is a pool with the defaults that the API server would give it.
func admitted(ctx context.Context, d document) (*v1alpha1.InferencePool, error) {
	admitter, err := crdadmission.New()
	if err != nil {
		return nil, err
	}
	object, err := admitter.Admit(ctx, d.raw, nil)
	if err != nil {
		return nil, err
	}
	return crdadmission.Pool(object)
}

// work on one input.
type work struct {
	pool      *v1alpha1.InferencePool
	wiring    *podtemplate.Wiring
	options   podtemplate.Options
	namespace string

	results []Result
	err     error
}

// templates are the paths of the pod templates of workloads.
var templates = map[string][]string{
	"Pod": {}, "Deployment.apps": {"spec", "template"}, "StatefulSet.apps": {"spec", "template"}, "DaemonSet.apps": {"spec", "template"},
	"ReplicaSet.apps": {"spec", "template"}, "LeaderWorkerSet.leaderworkerset.x-k8s.io": {"spec", "leaderWorkerTemplate", "leaderTemplate"},
}

// each injects into an object, or into those of a list, and reports whether any was a workload.
func (w *work) each(object *unstructured.Unstructured) (changed bool) {
	gvk := object.GroupVersionKind()
	if items, ok := object.Object["items"].([]any); ok && strings.HasSuffix(gvk.Kind, "List") {
		for _, item := range items {
			if m, ok := item.(map[string]any); ok && w.err == nil {
				changed = w.each(&unstructured.Unstructured{Object: m}) || changed
			}
		}
		return changed
	}
	path, ok := templates[gvk.GroupKind().String()]
	if !ok {
		return false
	}
	if err := w.inject(object, path); err != nil {
		w.err = fmt.Errorf("%s: %w", w.name(object), err)
	}
	return true
}

func (w *work) name(object *unstructured.Unstructured) string {
	return strings.ToLower(object.GetKind()) + "/" + object.GetName()
}

func (w *work) inject(object *unstructured.Unstructured, path []string) error {
	result := Result{Object: w.name(object)}
	if ns := object.GetNamespace(); ns != w.pool.Namespace && (ns != "" || w.namespace != w.pool.Namespace) {
		return fmt.Errorf("it is in the namespace %q, the pool %s in %q", ns, w.pool.Name, w.pool.Namespace)
	}
	if object.GetKind() == "LeaderWorkerSet" {
		// Only leaders are the pool's. Without a template of their own they have the workers'.
		if _, ok, _ := unstructured.NestedMap(object.Object, path...); !ok {
			worker, ok, err := unstructured.NestedMap(object.Object, "spec", "leaderWorkerTemplate", "workerTemplate")
			if err != nil || !ok {
				return errors.New("it has no template")
			}
			if err := unstructured.SetNestedMap(object.Object, worker, path...); err != nil {
				return err
			}
		}
	}
	raw := object.Object
	if len(path) > 0 {
		var ok bool
		var err error
		if raw, ok, err = unstructured.NestedMap(object.Object, path...); err != nil || !ok {
			return errors.New("it has no template")
		}
	}
	changed, err := w.template(raw, &result)
	if err != nil {
		return err
	}
	w.results = append(w.results, result)
	if len(path) > 0 {
		return unstructured.SetNestedMap(object.Object, changed, path...)
	}
	object.Object["metadata"], object.Object["spec"] = changed["metadata"], changed["spec"]
	return nil
}

// template injects into metadata and spec of a pod or template.
func (w *work) template(raw map[string]any, result *Result) (map[string]any, error) {
	part := map[string]any{"metadata": raw["metadata"], "spec": raw["spec"]}
	var typed corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(part, &typed, true); err != nil {
		return nil, fmt.Errorf("its pods are not understood: %w", err)
	}
	added, skipped, err := podtemplate.Template(&typed, w.wiring, &w.options)
	if err != nil {
		return nil, err
	}
	result.Added = added
	for _, s := range skipped {
		note := fmt.Sprintf("%s was not added: %s", s.What, s.Why)
		if s.Container != "" {
			note = fmt.Sprintf("container %s: %s", s.Container, note)
		}
		result.Notes = append(result.Notes, note)
	}
	want := labels.Set{}
	for k, v := range w.pool.Spec.Selector.MatchLabels {
		want[k] = string(v)
	}
	if !labels.SelectorFromSet(want).Matches(labels.Set(typed.Labels)) {
		result.Notes = append(result.Notes, fmt.Sprintf("the pool %s selects %s, which these pods are not labelled with: their reporter will be refused", w.pool.Name, want))
	}
	if slices.Contains(added, podtemplate.Reporter) && typed.Spec.HostNetwork {
		result.Notes = append(result.Notes, "the pods use the node's network: a second one on a node finds its ports taken")
	}
	typed.CreationTimestamp = metav1.Time{}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
	if err != nil {
		return nil, err
	}
	return clean(out, raw), nil
}

// clean removes zero values that Go's types write although the original does not have them, and keeps what the original has
// beside metadata and spec.
func clean(out, original map[string]any) map[string]any {
	if meta, ok := out["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
		if len(meta) == 0 {
			delete(out, "metadata")
		}
	}
	if spec, ok := out["spec"].(map[string]any); ok {
		for _, kind := range []string{"containers", "initContainers"} {
			list, _ := spec[kind].([]any)
			for _, c := range list {
				if m, ok := c.(map[string]any); ok {
					if r, ok := m["resources"].(map[string]any); ok && len(r) == 0 {
						delete(m, "resources")
					}
				}
			}
		}
	}
	for k, v := range original {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out
}
