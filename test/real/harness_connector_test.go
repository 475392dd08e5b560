package real

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// Connectors of engines that transfer blocks. They run without a GPU: NIXL by UCX and Mooncake by TCP.
const (
	nixl     = "nixl"
	mooncake = "mooncake"
)

// attentive is the model whose answers depend on every token of the prompt.
const attentive = "attentive"

// connectorEnvironment is the environment that an engine needs for its connector.
func (e *engine) connectorEnvironment() ([]string, error) {
	truth := "PYTHONPATH=" + filepath.Join(run.dir, "truth")
	if e.config.connector == "" {
		return []string{truth}, nil
	}
	install := vllmcpu.NIXL
	if e.config.connector == mooncake {
		install = vllmcpu.Mooncake
	}
	c, err := install(run.root, run.venv)
	if err != nil {
		return nil, fmt.Errorf("installing the connector of an engine: %w", err)
	}
	return []string{
		truth + ":" + c.Dir, "LD_LIBRARY_PATH=" + strings.Join(c.Libraries, ":"), "VLLM_HOST_IP=127.0.0.1",
		"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", fmt.Sprintf("VLLM_NIXL_SIDE_CHANNEL_PORT=%d", e.side),
		fmt.Sprintf("VLLM_MOONCAKE_BOOTSTRAP_PORT=%d", e.side), "KVASIR_NO_ACCELERATOR=1",
	}, nil
}

// connectorFlags are the flags of an engine's connector.
func (e *engine) connectorFlags() []string {
	config := object{"kv_role": "kv_both", "kv_buffer_device": "cpu"}
	switch e.config.connector {
	case "":
		return nil
	case nixl:
		config["kv_connector"] = "NixlConnector"
	case mooncake:
		config["kv_connector"] = "MooncakeConnector"
		config["kv_connector_extra_config"] = object{"mooncake_protocol": "tcp"}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		panic(err) // strings
	}
	return []string{"--kv-transfer-config", string(raw)}
}
