package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestTheVersionIsFoundInEveryKindOfBuild(t *testing.T) {
	setting := func(pairs ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	for name, tc := range map[string]struct {
		release, revision string
		build             *debug.BuildInfo
		want, at          string
	}{
		"a release":       {"v1.2.3", "abc", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "v1.2.3", "abc"},
		"a working tree":  {"", "", &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-2026"}, Settings: setting("vcs", "git", "vcs.revision", "abc", "vcs.modified", "false")}, "dev", "abc"},
		"a changed tree":  {"", "", &debug.BuildInfo{Settings: setting("vcs", "git", "vcs.revision", "abc", "vcs.modified", "true")}, "dev", "abc-dirty"},
		"go install":      {"", "", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3", "unknown"},
		"nothing known":   {"", "", nil, "dev", "unknown"},
		"nothing of Git":  {"", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "dev", "unknown"},
		"a tagged image":  {"nightly", "", &debug.BuildInfo{}, "nightly", "unknown"},
		"revision of Git": {"v1.2.3", "", &debug.BuildInfo{Settings: setting("vcs", "git", "vcs.revision", "abc")}, "v1.2.3", "abc"},
	} {
		got := of(tc.release, tc.revision, tc.build)
		if got.Version != tc.want || got.Revision != tc.at || got.Go != runtime.Version() {
			t.Errorf("%s: %+v, want %s at %s", name, got, tc.want, tc.at)
		}
		if text := got.String(); !strings.HasPrefix(text, tc.want+" (revision "+tc.at+", go") || strings.Contains(text, "\n") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestTheVersionIsAskedFor(t *testing.T) {
	for args, want := range map[string]bool{
		"--version": true, "-version": true, "version": true, "--pool a/b --version": true,
		"": false, "--pool version": false, "-- --version": false, "version --pool a": false, "--versions": false,
	} {
		if got := Requested(strings.Fields(args)); got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}
