// Command krew makes the archives and the manifest with which krew installs the kubectl plugin, from the programs of a
// release.
//
//	go run ./hack/krew -version v1.2.3 -dist dist
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// prefix of the programs' names, before the platform.
const prefix = "kubectl-kvasir-"

func main() {
	version := flag.String("version", "", "release, as in v1.2.3")
	dist := flag.String("dist", "dist", "directory of the release, with bin/kubectl-kvasir-OS-ARCH")
	base := flag.String("url", "https://github.com/kvasir-dev/kvasir/releases/download", "where releases are; the archives are at URL/VERSION/NAME")
	flag.Parse()
	if err := write(*dist, *version, *base); err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

// The manifest, as krew.googlecontainertools.github.com/v1alpha2 defines it.
type (
	manifest struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       spec              `json:"spec"`
	}
	spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Platforms        []platform `json:"platforms"`
	}
	platform struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		URI    string `json:"uri"`
		Sha256 string `json:"sha256"`
		Bin    string `json:"bin"`
	}
)

// write makes an archive of each program, and the manifest that has their sums.
func write(dist, version, base string) error {
	programs, err := filepath.Glob(filepath.Join(dist, "bin", prefix+"*-*"))
	if err != nil || len(programs) == 0 {
		return fmt.Errorf("no program %s*-* in %s/bin: %w", prefix, dist, err)
	}
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	m := manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "kvasir"},
		Spec: spec{
			Version: version, Homepage: "https://github.com/kvasir-dev/kvasir", ShortDescription: "See and steer Kvasir in a cluster",
			Description: "Shows the pools of inference engines that Kvasir serves, explains where requests go and why,\n" +
				"checks the cluster end to end, and drains and restarts pods.\n",
		},
	}
	for _, path := range programs {
		name := filepath.Base(path)
		system, arch, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		program, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		archive, err := pack(map[string][]byte{"kubectl-kvasir": program, "LICENSE": licence})
		if err != nil {
			return err
		}
		name += ".tar.gz"
		if err := os.WriteFile(filepath.Join(dist, name), archive, 0o644); err != nil { // it is published
			return err
		}
		sum := sha256.Sum256(archive)
		p := platform{URI: base + "/" + version + "/" + name, Sha256: hex.EncodeToString(sum[:]), Bin: "kubectl-kvasir"}
		p.Selector.MatchLabels = map[string]string{"os": system, "arch": arch}
		m.Spec.Platforms = append(m.Spec.Platforms, p)
	}
	text, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, "krew.yaml"), text, 0o644) // it is published
}

// pack makes an archive with the same bytes for the same content.
func pack(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, name := range []string{"kubectl-kvasir", "LICENSE"} {
		header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
