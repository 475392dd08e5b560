package clients

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// settings are what scripts read.
func (h *house) settings() []string {
	env := []string{"KVASIR_URL=" + h.url, "KVASIR_MODEL=" + *model}
	if *engine != "" {
		env = append(env, "KVASIR_REAL=1")
	}
	if h.behind {
		env = append(env, "KVASIR_GATEWAY=1")
	}
	return env
}

// What SDKs do with an engine they do with the proxy, and what fails is an error of their own classes.
func TestSDKs(t *testing.T) { start(t).serves(t) }

// Behind a gateway it is the same.
func TestSDKsBehindEnvoy(t *testing.T) { start(t).behindEnvoy(t).serves(t) }

// serves runs all SDKs.
func (h *house) serves(t *testing.T) {
	for _, name := range []string{"openai", "anthropic", "langchain", "litellm"} {
		t.Run(name, func(t *testing.T) {
			python := filepath.Join(environment(t, name), "bin", "python")
			command(t, h.settings(), python, filepath.Join("scripts", name+"_client.py"))
		})
	}
	t.Run("node", func(t *testing.T) {
		dir := environment(t, "node")
		if _, err := exec.LookPath("node"); err != nil {
			t.Skip("node is not installed")
		}
		command(t, append(h.settings(), "KVASIR_NODE="+dir), "node", filepath.Join("scripts", "sdks.mjs"))
	})
}
