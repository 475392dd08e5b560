package main

import (
	"archive/tar"
	"bytes"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// The images that hack/images makes of a program for two platforms arrive in a registry, from their own tar and from the tar of all, and can be
// pulled for each platform.
func TestImagesArriveInARegistry(t *testing.T) {
	out := t.TempDir()
	make := exec.CommandContext(t.Context(), "go", "run", "./hack/images", "-arch", "amd64,arm64", "-tag", "v9", "-trimpath=false", "-out", out, "vllmsim", "reporter")
	make.Dir = filepath.Join("..", "..", "..")
	if text, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	s := httptest.NewServer(registry.New())
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	for _, tc := range []struct {
		file, prefix string
		lines        int
	}{{"vllmsim.tar", "one", 1}, {"kvasir-v9.tar", "all", 2}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"-insecure", "-registry", host + "/" + tc.prefix + "/", filepath.Join(out, tc.file)}, &stdout, &stderr); code != 0 {
			t.Fatalf("status %d: %s", code, stderr.String())
		}
		if n := strings.Count(stdout.String(), "\n"); n != tc.lines {
			t.Errorf("%d lines, want %d:\n%s", n, tc.lines, stdout.String())
		}
		line, _, _ := strings.Cut(stdout.String(), "\n")
		tagged, digest, _ := strings.Cut(line, "@")
		ref, err := name.ParseReference(tagged, name.Insecure)
		if err != nil || tagged != host+"/"+tc.prefix+"/kvasir/vllmsim:v9" {
			t.Fatalf("it prints %q, error %v", line, err)
		}
		index, err := remote.Index(ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := index.Digest(); err != nil || got.String() != digest {
			t.Errorf("the registry has %s, pushed was %s, error %v", got, digest, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 2 {
			t.Fatalf("%d platforms, error %v", len(manifest.Manifests), err)
		}
		for _, m := range manifest.Manifests {
			image, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigFile()
			if err != nil || config.Architecture != m.Platform.Architecture || config.Config.Entrypoint[0] != "/kvasir" {
				t.Errorf("configuration %+v, error %v", config, err)
			}
		}
	}
}

func TestWhatCannotBePushedIsSaid(t *testing.T) {
	dir, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	tarOf := func(file string, files map[string]string) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for path, text := range files {
			if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(text))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, file)
	}
	const head = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`
	for title, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no registry":           {[]string{"x.tar"}, 2, "want -registry"},
		"no file":               {[]string{"-registry", "r.example"}, 2, "want -registry"},
		"a file that is not":    {[]string{"-registry", "r.example", filepath.Join(dir, "none")}, 1, "no such file"},
		"no layout":             {[]string{"-registry", "r.example", tarOf("a.tar", map[string]string{"x": "y"})}, 1, "reading the layout"},
		"no image":              {[]string{"-registry", "r.example", tarOf("b.tar", map[string]string{"index.json": head + "]}"})}, 1, "no image"},
		"a name that is none":   {[]string{"-registry", "r.example", tarOf("c.tar", map[string]string{"index.json": head + `{"mediaType":"a","size":1,"digest":"sha256:` + strings.Repeat("a", 64) + `"}]}`})}, 1, "has no name"},
		"a path that leads out": {[]string{"-registry", "r.example", tarOf("d.tar", map[string]string{"../x": "y"})}, 1, "../x"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), tc.args, &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s: status %d, %q, want %d and %q", title, code, stderr.String(), tc.code, tc.want)
		}
	}
	if _, err := os.Stat(filepath.Join(temporary, "x")); err == nil {
		t.Error("a file was written outside of the directory")
	}
}
