// Package chart tests what the chart renders, and that kustomize renders the same.
package chart

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var update = flag.Bool("update", false, "write the golden files")

// system is the namespace of the release.
const system = "kvasir-system"

var (
	root  = kube.Root()
	chart = filepath.Join(root, "charts", "kvasir")
	// without leaves the definitions out, which are large and have a test of their own.
	without = []string{"--set", "crds.install=false"}
)

// template runs helm template, with a registry, which the chart requires, unless the arguments name one.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program := filepath.Join(root, "bin", "helm")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run `make helm`", err)
	}
	return run(t.Context(), program, append([]string{"template", "kvasir", chart, "--namespace", system, "--values", "testdata/registry.yaml"}, args...)...)
}

func run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		return stderr.String(), err
	}
	return stdout.String(), nil
}

func rendered(t *testing.T, args ...string) string {
	t.Helper()
	out, err := template(t, args...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", args, err, out)
	}
	return out
}

// kustomized renders a directory of config.
func kustomized(t *testing.T, dir string) string {
	t.Helper()
	assets, err := kube.Assets()
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), filepath.Join(assets, "kubectl"), "kustomize", filepath.Join(root, "config", dir))
	if err != nil {
		t.Fatalf("kustomize of config/%s: %v\n%s", dir, err, out)
	}
	return out
}

// objects reads a stream of objects, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		if len(u.Object) == 0 {
			continue
		}
		name := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = u
	}
}
