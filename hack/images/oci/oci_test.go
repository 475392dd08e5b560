package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func image(arch string) Image {
	return Image{
		Architecture: arch, Entrypoint: []string{"/kvasir"}, Created: time.Unix(1700000000, 0),
		Labels: map[string]string{"org.opencontainers.image.title": "x", "a": "b"},
		Files: []File{
			{Path: "/etc/ssl/certs/ca-certificates.crt", Content: []byte("certs")},
			{Path: "/kvasir", Content: []byte("program of " + arch), Executable: true},
		},
	}
}

func write(t *testing.T, compressed bool, images ...Image) (raw []byte, digest string) {
	t.Helper()
	var out bytes.Buffer
	digest, err := Write(&out, "kvasir/picker:v1", compressed, images...)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), digest
}

// unpack reads a tar: content by name, and modes.
func unpack(t *testing.T, raw []byte) (files map[string][]byte, modes map[string]int64) {
	t.Helper()
	files, modes = map[string][]byte{}, map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s depends on the machine: %+v", h.Name, h)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		modes[h.Name] = h.Mode
	}
}

// blob is what a descriptor refers to; its digest and size must be right.
func blob(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	content, ok := files["blobs/sha256/"+d.Digest[len("sha256:"):]]
	sum := sha256.Sum256(content)
	if !ok || len(content) != d.Size || "sha256:"+hex.EncodeToString(sum[:]) != d.Digest {
		t.Fatalf("%s is not what its descriptor says", d.Digest)
	}
	return content
}

func decode[T any](t *testing.T, raw []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

func TestEveryDescriptorLeadsToItsBlobAndTheLayerHoldsTheFiles(t *testing.T) {
	for name, compressed := range map[string]bool{"compressed": true, "not compressed": false} {
		t.Run(name, func(t *testing.T) {
			raw, digest := write(t, compressed, image("amd64"), image("arm64"))
			files, _ := unpack(t, raw)
			top := decode[index](t, files["index.json"]).Manifests[0]
			if top.Digest != digest || top.Annotations["io.containerd.image.name"] != "docker.io/kvasir/picker:v1" {
				t.Errorf("the index names %+v", top)
			}
			all := decode[index](t, blob(t, files, top)).Manifests
			for i, arch := range []string{"amd64", "arm64"} {
				m := decode[manifest](t, blob(t, files, all[i]))
				c := decode[config](t, blob(t, files, m.Config))
				if all[i].Platform.Architecture != arch || c.Architecture != arch || c.Config.User != "65532:65532" || c.Config.Entrypoint[0] != "/kvasir" {
					t.Errorf("%s: %+v", arch, c)
				}
				layer := blob(t, files, m.Layers[0])
				if compressed {
					z, err := gzip.NewReader(bytes.NewReader(layer))
					if err != nil {
						t.Fatal(err)
					}
					if layer, err = io.ReadAll(z); err != nil {
						t.Fatal(err)
					}
				}
				sum := sha256.Sum256(layer)
				if c.RootFS.DiffIDs[0] != "sha256:"+hex.EncodeToString(sum[:]) {
					t.Error("the configuration has another layer")
				}
				content, modes := unpack(t, layer)
				if string(content["kvasir"]) != "program of "+arch || modes["kvasir"] != 0o755 || modes["etc/passwd"] != 0o644 || modes["etc/ssl/certs/"] != 0o755 {
					t.Errorf("the layer has %v", modes)
				}
			}
		})
	}
}

// parts checks the list of `docker save` in a tar, and returns the names of its images: every entry has a configuration, and
// layers whose contents have the digests that the configuration states.
func parts(t *testing.T, files map[string][]byte) (names []string) {
	t.Helper()
	type entry struct { // as Docker reads it
		Config           string
		RepoTags, Layers []string
	}
	for _, e := range decode[[]entry](t, files["manifest.json"]) {
		c := decode[config](t, files[e.Config])
		if c.Architecture != "amd64" || c.OS != "linux" || len(e.Layers) != len(c.RootFS.DiffIDs) || len(e.Layers) == 0 {
			t.Errorf("%+v has the configuration %+v", e, c)
		}
		for i, layer := range e.Layers {
			z, err := gzip.NewReader(bytes.NewReader(files[layer]))
			if err != nil {
				t.Fatalf("%s: %v", layer, err)
			}
			content, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(content); c.RootFS.DiffIDs[i] != "sha256:"+hex.EncodeToString(sum[:]) {
				t.Errorf("%s is another layer", layer)
			}
		}
		names = append(names, e.RepoTags...)
	}
	return names
}

// TestDockerFindsTheImageOfTheFirstPlatform, without containerd's image store.
func TestDockerFindsTheImageOfTheFirstPlatform(t *testing.T) {
	raw, _ := write(t, true, image("amd64"), image("arm64"))
	files, _ := unpack(t, raw)
	if diff := cmp.Diff([]string{"kvasir/picker:v1"}, parts(t, files)); diff != "" {
		t.Error(diff)
	}
}

func TestTheSameInputMakesTheSameBytes(t *testing.T) {
	first, _ := write(t, true, image("amd64"))
	for range 20 { // maps are walked in another order each time
		again := image("amd64")
		again.Files[0], again.Files[1] = again.Files[1], again.Files[0]
		if raw, _ := write(t, true, again); !bytes.Equal(raw, first) {
			t.Fatal("the image differs")
		}
	}
	if other, _ := write(t, true, image("arm64")); bytes.Equal(other, first) {
		t.Error("another image is the same")
	}
}

func TestNamesAreThoseOfContainerRuntimes(t *testing.T) {
	got := map[string]string{}
	for _, name := range []string{"pause:1", "kvasir/picker:v1", "registry.example/kvasir/picker:v1", "localhost:5000/p:v1", "localhost/p:v1"} {
		got[name] = canonical(name)
	}
	want := map[string]string{
		"pause:1": "docker.io/library/pause:1", "kvasir/picker:v1": "docker.io/kvasir/picker:v1",
		"registry.example/kvasir/picker:v1": "registry.example/kvasir/picker:v1", "localhost:5000/p:v1": "localhost:5000/p:v1", "localhost/p:v1": "localhost/p:v1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMergedLayoutsHaveAllImagesOnce(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	want := map[string]string{}
	for _, name := range []string{"kvasir/picker:v1", "kvasir/reporter:v1"} {
		var out bytes.Buffer
		digest, err := Write(&out, name, true, image("amd64"), image("arm64")) // all blobs are the same
		if err != nil {
			t.Fatal(err)
		}
		want["docker.io/"+name] = digest
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "-")+".tar")
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	var merged, again bytes.Buffer
	if err := errors.Join(Merge(&merged, time.Unix(1700000000, 0), paths...), Merge(&again, time.Unix(1700000000, 0), paths...)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(merged.Bytes(), again.Bytes()) {
		t.Error("the same tars make other bytes")
	}
	files, _ := unpack(t, merged.Bytes())
	var all index
	if err := json.Unmarshal(files["index.json"], &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range all.Manifests {
		got[m.Annotations["io.containerd.image.name"]] = m.Digest
		blob(t, files, m)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"kvasir/picker:v1", "kvasir/reporter:v1"}, parts(t, files)); diff != "" {
		t.Error(diff)
	}
	if string(files["oci-layout"]) != layoutVersion {
		t.Errorf("the layout is marked by %q", files["oci-layout"])
	}
	if err := Merge(io.Discard, time.Time{}, filepath.Join(dir, "none.tar")); err == nil {
		t.Error("a tar that is not there is merged")
	}
	if err := os.WriteFile(paths[0], make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Merge(io.Discard, time.Time{}, paths...); err == nil {
		t.Error("a tar without an index is merged")
	}
}
