package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// document is a list of packages in SPDX 2.3, as far as a Go binary contains it.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []pkg          `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo,omitempty"`
	Download  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Purpose   string      `json:"primaryPackagePurpose,omitempty"`
	Checksums []checksum  `json:"checksums,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
	Comment   string      `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// spdx lists the modules that a binary was linked from, and the Go that did it. The binary itself does not know its version.
func spdx(image, version, arch, binary string, created time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("reading the build information: %w", err)
	}
	raw, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("reading the binary: %w", err)
	}
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:])
	const program = "SPDXRef-program"
	d := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: image + " linux/" + arch,
		Namespace: "https://kvasir.dev/spdx/" + hash,
		Creation:  creation{Created: created.UTC().Format(time.RFC3339), Creators: []string{"Tool: kvasir-hack-images"}},
		Packages: []pkg{{
			ID: program, Name: info.Path, Version: version, Download: noAssertion, Purpose: "APPLICATION",
			Checksums: []checksum{{"SHA256", hash}},
		}, {
			ID: "SPDXRef-go", Name: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go"), Download: "https://go.dev/dl/",
			Refs: purl("stdlib", strings.TrimPrefix(info.GoVersion, "go")),
		}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", program}, {program, "DEPENDS_ON", "SPDXRef-go"}},
	}
	deps := slices.SortedFunc(slices.Values(info.Deps), func(a, b *debug.Module) int { return cmp.Compare(a.Path, b.Path) })
	for i, m := range deps {
		if m.Replace != nil {
			m = m.Replace
		}
		p := pkg{ID: fmt.Sprintf("SPDXRef-module-%d", i+1), Name: m.Path, Version: m.Version, Download: noAssertion,
			Refs: purl(m.Path, m.Version)}
		if m.Sum != "" { // of the module's tree, so it is no checksum of a file
			p.Comment = "go.sum " + m.Sum
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{program, "DEPENDS_ON", p.ID})
	}
	out, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return nil, fmt.Errorf("writing the list: %w", err)
	}
	return append(out, '\n'), nil
}

// purl names a Go module to scanners.
func purl(module, version string) []reference {
	return []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module + "@" + version}}
}
