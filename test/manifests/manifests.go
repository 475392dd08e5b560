// Package manifests checks the manifests in docs, and the objects of other projects' kinds that the operator makes,
// against those projects' own definitions, without an API server.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// root of the repository.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

var (
	block = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$")
	// applied is a document that a command applies. The pages use two end marks.
	applied = regexp.MustCompile(`(?ms)^kubectl apply [^\n]*<<(?:END\n(.*?)^END|YAML\n(.*?)^YAML)$`)
)

// Of are the blocks of YAML of a page in docs, wherever they are indented, and the documents that its commands apply, an
// object each.
func Of(page string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root(), "docs", page))
	if err != nil {
		return nil, fmt.Errorf("reading a page: %w", err)
	}
	var all []string
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		body := regexp.MustCompile("(?m)^"+m[1]).ReplaceAllString(m[2], "")
		all = append(all, strings.Split(body, "\n---\n")...)
	}
	for _, m := range applied.FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.Split(m[1]+m[2], "\n---\n")...)
	}
	return all, nil
}

// Files are files of a module of hack/definitions, which is downloaded if it is not there.
func Files(ctx context.Context, module string, files ...string) ([]string, error) {
	modules := filepath.Join(root(), "hack", "definitions")
	if out, err := exec.CommandContext(ctx, "go", "-C", modules, "mod", "download", module).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("downloading %s: %w: %s", module, err, out)
	}
	dir, err := exec.CommandContext(ctx, "go", "-C", modules, "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", module, err)
	}
	var all []string
	for _, file := range files {
		all = append(all, filepath.Join(strings.TrimSpace(string(dir)), file))
	}
	return all, nil
}

// gateways are the definitions of gateways' kinds, by module.
var gateways = map[string][]string{
	"sigs.k8s.io/gateway-api": {
		"config/crd/standard/gateway.networking.k8s.io_gateways.yaml",
		"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
	},
	"sigs.k8s.io/gateway-api-inference-extension": {"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"},
	"istio.io/api": {"kubernetes/customresourcedefinitions.gen.yaml"},
	"github.com/envoyproxy/gateway": {
		"charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml",
		"charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_clienttrafficpolicies.yaml",
	},
}

// Gateways are the definitions of the kinds that gateways are configured with.
func Gateways(ctx context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	for module, files := range gateways {
		paths, err := Files(ctx, module, files...)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			defs, err := read(path)
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", path, err)
			}
			all = append(all, defs...)
		}
	}
	return all, nil
}

func read(path string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var all []*apiextensionsv1.CustomResourceDefinition
	for {
		def := &apiextensionsv1.CustomResourceDefinition{}
		switch err := documents.Decode(def); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case def.Kind == "CustomResourceDefinition":
			all = append(all, def)
		}
	}
}
