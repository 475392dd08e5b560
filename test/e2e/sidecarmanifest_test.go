package e2e

import (
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/relay"
	"github.com/kvasir-dev/kvasir/test/manifests"
)

// TestTheDocumentedPodThatDecodesHandsOver: the flags of the Deployment in docs/disaggregation.md, at addresses of this machine, hand requests over.
func TestTheDocumentedPodThatDecodesHandsOver(t *testing.T) {
	documents, err := manifests.Of("disaggregation.md")
	if err != nil {
		t.Fatal(err)
	}
	var pod appsv1.Deployment
	for _, text := range documents {
		if strings.Contains(text, "kind: Deployment") {
			if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	spec := pod.Spec.Template.Spec
	if len(spec.InitContainers) != 1 || len(spec.Containers) != 1 {
		t.Fatalf("%+v", spec)
	}
	a := newApart(t)
	p := a.pods[3]
	p.reporter.kill()
	p.engine.kill()
	engine := p.engine.args[3] // the port of it
	events, replay, reports := freeAddress(t), freeAddress(t), ""
	for i, arg := range p.reporter.args {
		if arg == "--picker-service" {
			reports = p.reporter.args[i+1]
		}
	}
	here := strings.NewReplacer("127.0.0.1:5557", events, "127.0.0.1:5657", replay, "127.0.0.1:8200", "127.0.0.1:"+engine, "--port=8200", "--port="+engine,
		"--serve-address=:8000", "--serve-address="+p.http, "chat-picker-peers.llm.svc:9004", reports, "/var/lib/kvasir", t.TempDir(), ":9445", freeAddress(t))
	p.reporter.args = []string{"--insecure", "--status-address", a.status[3], "--pod", p.uid()}
	for _, arg := range spec.InitContainers[0].Args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--picker-name", "--picker-ca", "--token-file": // of TLS
		default:
			p.reporter.args = append(p.reporter.args, here.Replace(arg))
		}
	}
	p.engine.args = []string{"--served-model-name", "m", "--num-gpu-blocks", "2000", "--speed-up", "20"}
	for _, arg := range spec.Containers[0].Args {
		if !strings.HasPrefix(arg, "--model=") {
			p.engine.args = append(p.engine.args, here.Replace(arg))
		}
	}
	p.reporter.start()
	p.engine.start()
	a.untilServing(p)
	a.untilTickets()
	probe := spec.Containers[0].ReadinessProbe.HTTPGet
	if status, _ := a.get("http://" + p.http + probe.Path); status != http.StatusOK || probe.Port.String() != "8000" {
		t.Errorf("the readiness probe gets %d", status)
	}
	a.until("it hands over", func() bool {
		if wrong := a.next(); wrong != "" {
			t.Fatal(wrong)
		}
		_, page := a.get("http://" + a.status[3] + "/metrics")
		return strings.Contains(page, `kvasir_sidecar_handoffs_total{outcome="`+string(relay.HandedOver)+`"} `) &&
			!strings.Contains(page, `kvasir_sidecar_handoffs_total{outcome="`+string(relay.HandedOver)+`"} 0`)
	})
	a.rests()
}
