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
	if h.ca != nil {
		env = append(env, "SSL_CERT_FILE="+h.caFile, "NODE_EXTRA_CA_CERTS="+h.caFile)
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

// Over TLS with an authority of one's own it is the same, by the variables that docs/tls.md names; so is HTTP/2 for clients that offer it.
func TestSDKsOverTLS(t *testing.T) {
	h := startOverTLS(t)
	h.run(t, "openai", "anthropic", "http2")
	h.runNode(t)
}

// serves runs all SDKs.
func (h *house) serves(t *testing.T) {
	h.run(t, "openai", "anthropic", "langchain", "litellm")
	h.runNode(t)
}

// run runs scripts in Python.
func (h *house) run(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			python := filepath.Join(environment(t, name), "bin", "python")
			command(t, h.settings(), python, filepath.Join("scripts", name+"_client.py"))
		})
	}
}

// runNode runs the SDKs for Node.
func (h *house) runNode(t *testing.T) {
	t.Run("node", func(t *testing.T) {
		dir := environment(t, "node")
		if _, err := exec.LookPath("node"); err != nil {
			t.Skip("node is not installed")
		}
		command(t, append(h.settings(), "KVASIR_NODE="+dir), "node", filepath.Join("scripts", "sdks.mjs"))
	})
}
