// Package version says which build a program is: by its flags, its log, its metrics and its page.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Set by the linker in images and releases: -X github.com/kvasir-dev/kvasir/internal/version.release=v1.2.3.
var release, revision string

// unknown stands for a release or revision that the build does not know.
const unknown = "unknown"

// Info is what a program knows about its build.
type Info struct {
	// Version is the release or tag, "dev" for a build from a working tree.
	Version string
	// Revision is the commit, with "-dirty" behind it when files were changed; "unknown" without version control.
	Revision string
	// Go is the version of Go, Platform the operating system and architecture.
	Go, Platform string
}

// Get returns the build of this program.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return of(release, revision, build)
}

// of completes what the linker has set with what Go has recorded; build can be nil.
func of(release, revision string, build *debug.BuildInfo) Info {
	i := Info{Version: release, Revision: revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build != nil {
		recorded := map[string]string{}
		for _, s := range build.Settings {
			recorded[s.Key] = s.Value
		}
		if i.Revision == "" && recorded["vcs.revision"] != "" {
			i.Revision = recorded["vcs.revision"]
			if recorded["vcs.modified"] == "true" {
				i.Revision += "-dirty"
			}
		}
		// go install MODULE@VERSION records the version of the module; a working tree has a made-up one.
		if v := build.Main.Version; i.Version == "" && recorded["vcs"] == "" && strings.HasPrefix(v, "v") {
			i.Version = v
		}
	}
	if i.Version == "" {
		i.Version = "dev"
	}
	if i.Revision == "" {
		i.Revision = unknown
	}
	return i
}

// String is one line for people.
func (i Info) String() string {
	return fmt.Sprintf("%s (revision %s, %s, %s)", i.Version, i.Revision, i.Go, i.Platform)
}

// Usage describes the flag --version.
const Usage = "print the version and exit"

// Requested reports whether arguments ask for the version: --version before "--", or the single word "version".
func Requested(args []string) bool {
	if len(args) == 1 && args[0] == "version" {
		return true
	}
	for _, a := range args {
		switch a {
		case "--":
			return false
		case "--version", "-version":
			return true
		}
	}
	return false
}
