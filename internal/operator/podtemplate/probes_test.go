package podtemplate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// describe a probe: where it asks, and for how long failures have no effect.
func describe(p *corev1.Probe) string {
	switch {
	case p == nil:
		return "none"
	case p.HTTPGet == nil:
		return "the user's"
	}
	return fmt.Sprintf("%s %s%s, %d s", p.HTTPGet.Scheme, p.HTTPGet.Port.String(), p.HTTPGet.Path, p.PeriodSeconds*p.FailureThreshold)
}

func TestEnginesWithoutProbesGetThem(t *testing.T) {
	none := []string{"none", "none", "none"}
	all := []string{"HTTP 8000/health, 7200 s", "HTTP 8000/health, 15 s", "HTTP 8000/health, 120 s"}
	for name, tc := range map[string]struct {
		engine     string // further fields of the container
		annotation string
		leaveOut   string
		wiring     func(*Wiring)
		want       []string // startup, readiness, liveness
		told       bool     // that the readiness probe is missing
	}{
		"nothing is set":            {want: all},
		"the user has a readiness":  {engine: "readinessProbe: {exec: {command: [ok]}}", want: []string{all[0], "the user's", all[2]}},
		"the user has all":          {engine: "readinessProbe: {exec: {command: [a]}}, livenessProbe: {exec: {command: [a]}}, startupProbe: {exec: {command: [a]}}", want: []string{"the user's", "the user's", "the user's"}},
		"TLS on another port":       {wiring: func(w *Wiring) { w.TLS, w.HTTP = &WiringTLS{}, 8443 }, want: []string{"HTTPS 8443/health, 7200 s", "HTTPS 8443/health, 15 s", "HTTPS 8443/health, 120 s"}},
		"client certificates":       {engine: "args: [--ssl-cert-reqs, '2']", want: none, told: true},
		"a unix socket":             {engine: "args: [--uds=/tmp/engine]", want: none, told: true},
		"by a shell":                {engine: "command: [sh, -c, vllm serve m]", want: all},
		"refused":                   {annotation: "Manual", want: none, told: true},
		"refused, and has one":      {annotation: "Manual", engine: "readinessProbe: {exec: {command: [ok]}}", want: []string{"none", "the user's", "none"}},
		"refused, starts with one":  {annotation: "Manual", engine: "startupProbe: {exec: {command: [ok]}}", want: []string{"the user's", "none", "none"}},
		"another annotation":        {annotation: "Inject", want: all},
		"the author sets the flags": {wiring: func(w *Wiring) { w.Flags = string(v1alpha1.FlagsManual) }, want: none, told: true},
		"another engine":            {wiring: func(w *Wiring) { w.Type = string(v1alpha1.EngineSGLang) }, want: none, told: true},
		"by name":                   {leaveOut: ReadinessProbe, wiring: func(w *Wiring) { w.Flags = string(v1alpha1.FlagsManual) }, want: none},
	} {
		t.Run(name, func(t *testing.T) {
			shape := &Shape{Wiring: defaulted(), Template: template(t, "spec: {containers: [{name: vllm, image: v, "+tc.engine+"}]}")}
			if tc.annotation != "" {
				shape.Template.Annotations = map[string]string{v1alpha1.AnnotationProbes: tc.annotation}
			}
			if tc.leaveOut != "" {
				shape.Template.Annotations = map[string]string{v1alpha1.AnnotationLeaveOut: tc.leaveOut}
			}
			if tc.wiring != nil {
				tc.wiring(&shape.Wiring)
			}
			pod, skipped, err := Pod(shape, options())
			if err != nil {
				t.Fatal(err)
			}
			c := &pod.Spec.Containers[0]
			got := []string{describe(c.StartupProbe), describe(c.ReadinessProbe), describe(c.LivenessProbe)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("probes (-want +got):\n%s", diff)
			}
			named := strings.Fields(pod.Annotations[v1alpha1.AnnotationInjected])
			for i, probe := range []string{StartupProbe, ReadinessProbe, LivenessProbe} {
				if injected := strings.HasPrefix(tc.want[i], "HTTP"); slices.Contains(named, probe) != injected {
					t.Errorf("%s is injected: %t; the annotation says %q", probe, injected, named)
				}
				if got := slices.ContainsFunc(skipped, func(s Skipped) bool { return s.What == probe }); got != (tc.told && probe == ReadinessProbe) {
					t.Errorf("%s is skipped: %t", probe, got)
				}
			}
		})
	}
}
