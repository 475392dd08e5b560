// Package oci writes container images without a container daemon: an OCI image layout in a tar, of files alone. The same
// input makes the same bytes: nothing of the machine, the user or the clock goes in.
//
// What it writes is the image specification 1.1 (github.com/opencontainers/image-spec): one layer, one configuration and
// one manifest for each platform, and an index of them. containerd (`ctr images import`), skopeo and crane read it. Beside it is
// the list of `docker save`, for `docker load` of a Docker without containerd's image store.
package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Media types.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
	typeLayerZip = typeLayer + "+gzip"
)

// layoutVersion is the content of the file that marks a layout.
const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// User is the user that runs the program: the user of distroless images that is not root.
const User = "65532:65532"

// File is one of an image.
type File struct {
	Path       string // absolute
	Content    []byte
	Executable bool
}

// Image is what a container of it is given, on one platform.
type Image struct {
	Architecture string // as Go names it; the system is linux
	Entrypoint   []string
	Labels       map[string]string
	Files        []File
	// Created is written as the time of the image and of its files.
	Created time.Time
	// User is the user that runs the program; default User.
	User string
}

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string            `json:"User"`
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// saved is an entry of the list that `docker save` writes: an image of one platform, and where the tar has its parts.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// layout is a set of blobs, by digest in hexadecimal.
type layout map[string][]byte

// Write writes images, one for each platform, under one name such as kvasir/picker:dev. Compressed layers are smaller and
// slower to write and load. It returns the digest by which the name is known: of the only manifest, or of the index.
func Write(w io.Writer, name string, compressed bool, images ...Image) (digest string, err error) {
	if len(images) == 0 {
		return "", fmt.Errorf("%s: an image needs a platform", name)
	}
	blobs := layout{}
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for i := range images {
		d, err := blobs.image(&images[i], compressed)
		if err != nil {
			return "", fmt.Errorf("%s for %s: %w", name, images[i].Architecture, err)
		}
		all.Manifests = append(all.Manifests, d)
	}
	top := all.Manifests[0]
	if len(images) > 1 {
		if top, err = blobs.json(typeIndex, all); err != nil {
			return "", err
		}
	}
	_, tag, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
	top.Annotations = map[string]string{
		"io.containerd.image.name": canonical(name), "org.opencontainers.image.ref.name": tag,
	}
	entry, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{top}})
	if err != nil {
		return "", fmt.Errorf("writing the index of %s: %w", name, err)
	}
	list, err := blobs.saved(name, all.Manifests[0])
	if err != nil {
		return "", err
	}
	files := []File{
		{Path: "oci-layout", Content: []byte(layoutVersion)}, {Path: indexFile, Content: entry}, {Path: savedFile, Content: list},
	}
	for _, digest := range slices.Sorted(maps.Keys(blobs)) {
		files = append(files, File{Path: blobsDir + digest, Content: blobs[digest]})
	}
	return top.Digest, writeTar(w, files, images[0].Created)
}

// saved is the list of `docker save` with the image of a manifest. Docker gives a name to one platform only: the first.
func (l layout) saved(name string, of descriptor) ([]byte, error) {
	var m manifest
	if err := json.Unmarshal(l[of.Digest[len(algorithm):]], &m); err != nil {
		return nil, fmt.Errorf("reading the manifest of %s: %w", name, err)
	}
	at := func(d descriptor) string { return blobsDir + d.Digest[len(algorithm):] }
	one := saved{Config: at(m.Config), RepoTags: []string{name}}
	for _, layer := range m.Layers {
		one.Layers = append(one.Layers, at(layer))
	}
	list, err := json.Marshal([]saved{one})
	if err != nil {
		return nil, fmt.Errorf("writing the list of %s: %w", name, err)
	}
	return list, nil
}

// algorithm of digests, as they begin.
const algorithm = "sha256:"

// canonical is the name that a container runtime gives an image without a registry.
func canonical(name string) string {
	first, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return first + "/" + rest
	}
	return "docker.io/" + name
}

func (l layout) add(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	l[digest] = content
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
}

func (l layout) json(mediaType string, v any) (descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, fmt.Errorf("writing a %s: %w", mediaType, err)
	}
	return l.add(mediaType, raw), nil
}

func (l layout) image(i *Image, compressed bool) (descriptor, error) {
	var raw bytes.Buffer
	if err := writeTar(&raw, append(slices.Clone(i.Files), Users()...), i.Created); err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(raw.Bytes())
	mediaType, content := typeLayer, raw.Bytes()
	if compressed {
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		if _, err := z.Write(content); err != nil {
			return descriptor{}, fmt.Errorf("compressing the layer: %w", err)
		}
		if err := z.Close(); err != nil {
			return descriptor{}, fmt.Errorf("compressing the layer: %w", err)
		}
		mediaType, content = typeLayerZip, zipped.Bytes()
	}
	c := config{platform: platform{Architecture: i.Architecture, OS: "linux"}, Created: i.Created.UTC()}
	c.Config.User = i.User
	if c.Config.User == "" {
		c.Config.User = User
	}
	c.Config.Env = []string{"PATH=/"}
	c.Config.Entrypoint, c.Config.WorkingDir, c.Config.Labels = i.Entrypoint, "/", i.Labels
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + hex.EncodeToString(sum[:])}
	of, err := l.json(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	m, err := l.json(typeManifest, manifest{
		SchemaVersion: 2, MediaType: typeManifest, Config: of, Layers: []descriptor{l.add(mediaType, content)}, Annotations: i.Labels,
	})
	m.Platform = &c.platform
	return m, err
}

// Users are the files in which programs look up users; every image has them.
func Users() []File {
	return []File{
		{Path: "/etc/group", Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/:\nnonroot:x:65532:65532:nonroot:/:\n")},
	}
}

// writeTar writes files, each behind its directories.
func writeTar(w io.Writer, files []File, at time.Time) error {
	t := tar.NewWriter(w)
	made := map[string]bool{".": true, "/": true}
	var dir func(name string) error
	dir = func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		if err := dir(path.Dir(name)); err != nil {
			return err
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: at, Format: tar.FormatUSTAR})
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range files {
		name := strings.TrimPrefix(path.Clean(f.Path), "/")
		mode := int64(0o644)
		if f.Executable {
			mode = 0o755
		}
		if err := dir(path.Dir(name)); err != nil {
			return fmt.Errorf("writing the directory of %s: %w", name, err)
		}
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(f.Content)), ModTime: at,
			Format: tar.FormatUSTAR}); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		if _, err := t.Write(f.Content); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return t.Close()
}
