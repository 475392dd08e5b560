package server

import (
	"io"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The picker reads the command line that the Compose file of the tutorial gives it.
func TestTheComposeFileStartsAPicker(t *testing.T) {
	text, err := os.ReadFile("../../config/samples/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(string(text), "${MODEL}", "m")), &file); err != nil {
		t.Fatal(err)
	}
	o, err := parse(file.Services["picker"].Command, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.source.urls) != 2 || o.source.model != "m" || o.proxyAddress != ":8080" {
		t.Errorf("options %+v", o)
	}
}
