package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestTheManifestNamesArchivesThatExist, with their sums, and each has the program of its platform.
func TestTheManifestNamesArchivesThatExist(t *testing.T) {
	t.Chdir("../..") // where the licence is
	dist := t.TempDir()
	if err := os.Mkdir(filepath.Join(dist, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := write(dist, "v1.2.3", "https://example.com"); err == nil {
		t.Error("a release without programs has a manifest")
	}
	for _, name := range []string{"kubectl-kvasir-linux-amd64", "kubectl-kvasir-darwin-arm64", "picker-linux-amd64"} {
		if err := os.WriteFile(filepath.Join(dist, "bin", name), []byte("program "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dist, "v1.2.3", "https://example.com"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dist, "krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil || len(m.Spec.Platforms) != 2 || m.Spec.Version != "v1.2.3" || m.Metadata["name"] != "kvasir" {
		t.Fatalf("%v: %s", err, text)
	}
	if len(m.Spec.ShortDescription) > 50 || strings.HasSuffix(m.Spec.ShortDescription, ".") {
		t.Errorf("krew refuses the description %q", m.Spec.ShortDescription)
	}
	for _, p := range m.Spec.Platforms {
		name, ok := strings.CutPrefix(p.URI, "https://example.com/v1.2.3/")
		archive, err := os.ReadFile(filepath.Join(dist, name))
		if err != nil || !ok {
			t.Fatalf("%s: %v", p.URI, err)
		}
		sum := sha256.Sum256(archive)
		if hex.EncodeToString(sum[:]) != p.Sha256 {
			t.Errorf("%s has another sum than %s", name, p.Sha256)
		}
		zip, err := gzip.NewReader(bytes.NewReader(archive))
		if err != nil {
			t.Fatal(err)
		}
		in := tar.NewReader(zip)
		header, err := in.Next()
		if err != nil || header.Name != p.Bin || header.Mode&0o111 == 0 {
			t.Fatalf("%v: %+v", err, header)
		}
		program, err := io.ReadAll(in)
		if want := "program kubectl-kvasir-" + p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]; err != nil || string(program) != want {
			t.Errorf("%s has %q, want %q: %v", name, program, want, err)
		}
	}
}
