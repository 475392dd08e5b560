// Package composecheck reads the Compose file of the tutorial with the library of Docker Compose.
package composecheck

import (
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

func load(t *testing.T, env ...string) (services map[string][]string, gpus map[string][]string, err error) {
	t.Helper()
	o, err := cli.NewProjectOptions([]string{"../../config/samples/compose/compose.yaml"}, cli.WithEnv(env), cli.WithName("kvasir"))
	if err != nil {
		return nil, nil, err
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		return nil, nil, err
	}
	services, gpus = map[string][]string{}, map[string][]string{}
	for name, s := range p.Services {
		services[name] = s.Command
		if s.Deploy != nil && s.Deploy.Resources.Reservations != nil {
			for _, d := range s.Deploy.Resources.Reservations.Devices {
				gpus[name] = append(gpus[name], d.IDs...)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s opens port %s to other machines", name, port.Published)
			}
		}
	}
	return services, gpus, nil
}

func TestTheComposeFileIsValid(t *testing.T) {
	services, gpus, err := load(t, "MODEL=Qwen/Qwen3-8B")
	if err != nil {
		t.Fatal(err)
	}
	if len(services) != 3 || services["vllm-0"][0] != "Qwen/Qwen3-8B" || services["picker"][1] != "--model=Qwen/Qwen3-8B" {
		t.Errorf("services %q", services)
	}
	if len(gpus["vllm-0"]) != 1 || len(gpus["vllm-1"]) != 1 || gpus["vllm-0"][0] == gpus["vllm-1"][0] {
		t.Errorf("the engines have the GPUs %q", gpus)
	}
}

func TestAModelIsRequired(t *testing.T) {
	if _, _, err := load(t); err == nil {
		t.Error("the file is read without a model")
	}
}
