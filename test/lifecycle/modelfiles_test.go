package lifecycle

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// poolWithModel says nothing about tokens: its engines have their model on a volume.
const poolWithModel = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 2
  picker: {replicas: 1, indexMemory: 64Mi}
  template:
    spec:
      serviceAccountName: default
      volumes: [{name: weights, emptyDir: {}}]
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --model, /weights/chat, --model-dir, DIRECTORY, --num-gpu-blocks, "4000"]
        volumeMounts: [{name: weights, mountPath: /weights}]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
`

// TestTokensAreFoundOnTheEnginesVolume: in a pool without a setting, the operator gives the reporters the volume on which the engines have
// their model, the reporters send its files over TLS, with the tokens of their pods, and the picker makes the engines' ids itself. It has
// no hub.
func TestTokensAreFoundOnTheEnginesVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	source := filepath.Join(kube.Root(), "internal", "tokens", "tokenizer", "testdata", "qwen2_5")
	files := map[string][]byte{}
	packed, err := os.Open(filepath.Join(source, "tokenizer.json.gz"))
	w.must(err)
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	w.must(err)
	files["tokenizer.json"], err = io.ReadAll(z)
	w.must(err)
	files["tokenizer_config.json"], err = os.ReadFile(filepath.Join(source, "tokenizer_config.json"))
	w.must(err)
	save := func(dir string) {
		w.must(os.MkdirAll(dir, 0o755))
		for name, data := range files {
			w.must(os.WriteFile(filepath.Join(dir, name), data, 0o600))
		}
	}
	save(w.file("engine"))
	w.apply(strings.Replace(poolWithModel, "DIRECTORY", w.file("engine"), 1))
	says := func(want string) func(p *v1alpha1.InferencePool) bool {
		return func(p *v1alpha1.InferencePool) bool {
			c := status.TokensExact.In(p.Status.Conditions)
			return c != nil && strings.Contains(c.Message, want)
		}
	}
	w.until("serving", settled(2))
	for _, p := range w.podsOf(v1alpha1.LabelSlot) {
		save(filepath.Join(w.file("pods"), string(p.UID), "volumes", "weights", "chat"))
	}
	w.until("with files of a reporter", says("files from the reporter of pod m-"))
	p := w.until("exact by itself", func(p *v1alpha1.InferencePool) bool {
		c := status.TokensExact.In(p.Status.Conditions)
		return c != nil && c.Status == "True" && c.Reason == "Exact"
	})
	t.Log(status.TokensExact.In(p.Status.Conditions).Message)
}
