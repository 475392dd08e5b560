package podtemplate

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Template adds the reporter, its proof, the engine's flags, keep-alive and preStop hook, and the grace to the template of
// another workload's pods, which a pool selects. It does not add what marks a pod as one of the pool's own, such as labels
// and gates. It returns what it has added, and what it could not add. A template that was injected before gets the newest
// reporter, and what it lacks. The error wraps ErrTemplate. Of the options the names of the pool, the deadline and the
// reporter count.
func Template(template *corev1.PodTemplateSpec, wiring *Wiring, o *Options) (done []string, skipped []Skipped, err error) {
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	engine := wiring.engine(&pod.Spec)
	if engine == nil {
		return nil, nil, fmt.Errorf("container %q: %w", wiring.Container, ErrTemplate)
	}
	before := strings.Fields(pod.Annotations[v1alpha1.AnnotationInjected])
	if len(before) > 0 {
		before = before[1:]
	}
	w := &work{pod: pod, engine: engine, wiring: wiring, options: o}
	if slices.Contains(before, Reporter) {
		w.renew()
	}
	w.reporter()
	w.flags()
	w.keepAlive()
	w.preStop()
	w.grace()
	if len(w.done) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationInjected,
			strings.Join(slices.Concat([]string{o.Version}, before, w.done), " "))
	}
	template.ObjectMeta, template.Spec = pod.ObjectMeta, pod.Spec
	return w.done, w.skipped, nil
}

// renew updates the image of a reporter that was injected before.
func (w *work) renew() {
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		if c.Name == v1alpha1.ReporterContainer {
			c.Image = w.options.ReporterImage
		}
	}
}

// publisher is where an engine publishes by a configuration that its user has given: whether it listens there itself,
// which it does at addresses with a * or ::, and connects to all others; the port of the events, and that of the replay
// socket. A port is empty where the configuration does not say. Without an address vLLM listens.
func publisher(c *corev1.Container) (listens bool, port, replay string) {
	text, ok := eventsConfigOf(c)
	var config events
	// Text behind the document, such as a quote, belongs to the shell.
	if !ok || json.NewDecoder(strings.NewReader(text)).Decode(&config) != nil {
		return false, "", ""
	}
	split := func(endpoint string) (host, port string) {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
		if err != nil {
			return "", ""
		}
		return host, port
	}
	host, port := split(config.Endpoint)
	_, replay = split(config.Replay)
	listens = strings.Contains(host, "*") || strings.Contains(host, "::") || config.Endpoint == "" && config.Publisher != "null"
	return listens, port, replay
}

// eventsConfigOf is the value of FlagEvents on a command line, or its text from there on in a shell's script.
func eventsConfigOf(c *corev1.Container) (string, bool) {
	line := slices.Concat(c.Command, c.Args)
	for i, arg := range line {
		name, value, inOne := strings.Cut(arg, "=")
		switch {
		case strings.ReplaceAll(name, "_", "-") == FlagEvents && inOne:
			return value, true
		case strings.ReplaceAll(name, "_", "-") == FlagEvents && i+1 < len(line):
			return line[i+1], true
		}
		if _, script, ok := strings.Cut(arg, FlagEvents); ok {
			return strings.TrimLeft(script, " =\t\"'"), true
		}
	}
	return "", false
}
