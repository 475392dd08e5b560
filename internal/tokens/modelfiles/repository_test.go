package modelfiles

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestNamesOfRepositories: a name can be a part of a URL and of a path, and leads nowhere else.
func TestNamesOfRepositories(t *testing.T) {
	long := strings.Repeat("a", 96)
	for name, tc := range map[string]struct {
		r  Repository
		ok bool
	}{
		"a name":            {Repository{Name: "gpt2"}, true},
		"an organization":   {Repository{Name: "Qwen/Qwen3-32B", Revision: "refs/pr/1", Template: "a/b.jinja"}, true},
		"a version":         {Repository{Name: "a_/b.c", Revision: "v1.0-rc_1"}, true},
		"the longest":       {Repository{Name: long + "/" + long}, true},
		"too long":          {Repository{Name: long + "a"}, false},
		"none":              {Repository{}, false},
		"a URL":             {Repository{Name: "https://h/a"}, false},
		"a host":            {Repository{Name: "//h/a"}, false},
		"a way up":          {Repository{Name: "../a"}, false},
		"a way up inside":   {Repository{Name: "a/.."}, false},
		"two points":        {Repository{Name: "a..b"}, false},
		"two hyphens":       {Repository{Name: "a--b"}, false},
		"three parts":       {Repository{Name: "a/b/c"}, false},
		"a root":            {Repository{Name: "/a"}, false},
		"a query":           {Repository{Name: "a?b"}, false},
		"an escape":         {Repository{Name: "a%2f..b"}, false},
		"a line":            {Repository{Name: "a\n"}, false},
		"a revision up":     {Repository{Name: "a", Revision: "../b"}, false},
		"a revision's root": {Repository{Name: "a", Revision: "/b"}, false},
		"an empty part":     {Repository{Name: "a", Revision: "b//c"}, false},
		"a point":           {Repository{Name: "a", Revision: "b/./c"}, false},
		"a template up":     {Repository{Name: "a", Template: "../b"}, false},
		"a template's root": {Repository{Name: "a", Template: "/b"}, false},
	} {
		if err := tc.r.Check(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestARepositorysTokenIsNotShown where it is printed as text.
func TestARepositorysTokenIsNotShown(t *testing.T) {
	r := &Repository{Name: "a/b", Token: "secret", Template: "config.json"}
	if text := fmt.Sprintf("%v %s", r, r); text != "a/b at main a/b at main" {
		t.Errorf("it is shown as %s", text)
	}
	wanted := r.Wanted()
	if wanted[0] != "tokenizer.json" || !r.Required("config.json") || r.Required("tekken.json") {
		t.Errorf("wanted: %q", wanted)
	}
	if slices.Sort(wanted); len(slices.Compact(slices.Clone(wanted))) != len(wanted) {
		t.Errorf("a file is wanted twice: %q", wanted)
	}
}
