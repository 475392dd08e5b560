package tokencheck

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// fakeHub has the files of some repositories.
type fakeHub struct {
	dirs map[string]string // by the repository's name

	mu     sync.Mutex
	asked  []string // names in order; empty for none
	tokens []string
}

func (h *fakeHub) want(_, _ string, r modelfiles.Repository) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.tokens = append(h.asked, r.Name), append(h.tokens, r.Token)
}

func (h *fakeHub) fetched(r modelfiles.Repository) (dir, note string, err error) {
	if h.dirs[r.Name] == "" {
		return "", "", errors.New(r.Name + ": it answers 404")
	}
	return h.dirs[r.Name], "from " + r.Name, nil
}

// wanted are the names that were asked for, in order.
func (h *fakeHub) wanted() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.asked, " ")
}

// saved writes files to a directory.
func saved(t *testing.T, files modelfiles.Set) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func hubHouse(files Files, hub *fakeHub, pods ...string) *house {
	h := newHouse(files, pods...)
	c := h.config
	c.Want, c.Fetched = hub.want, hub.fetched
	h.Manager = New(c)
	return h
}

// found are the files of a pool that names nothing.
func found(name string) Files {
	return Files{Optional: true, ByRoot: true, Repository: modelfiles.Repository{Name: name, Token: "t"}}
}

// TestAPoolFindsItsFiles: in the repository that the engines have the model from, or else in that of the model's name; and what is not
// found, or is wrong, is no fault.
func TestAPoolFindsItsFiles(t *testing.T) {
	full := smallModel(t, chatml)
	right, wrong := saved(t, full), saved(t, smallModel(t, "other "+chatml))
	unknown := saved(t, modelfiles.Set{"tokenizer.json": []byte(`{"model":{"type":"Unigram"}}`)})
	for name, tc := range map[string]struct {
		files        Files
		root         string
		wanted       string
		state        State
		texts, chats bool
		message      string
	}{
		"no hub":                         {Files{Optional: true, Missing: errors.New("no model hub")}, "a/right", "", NoFiles, false, false, "no model hub"},
		"by the engines' root":           {found(""), "a/right", "a/right", Exact, true, true, "none differs"},
		"the root comes first":           {found("a/wrong"), "a/right", "a/right", Exact, true, true, "none differs"},
		"by the name, without a root":    {found("a/right"), "", "a/right", Exact, true, true, "none differs"},
		"by the name, with a path":       {found("a/right"), "/models/x", "a/right", Exact, true, true, "none differs"},
		"the pool's own word":            {Files{Optional: true, Repository: modelfiles.Repository{Name: "a/right"}}, "a/wrong", "a/right", Exact, true, true, "none differs"},
		"a path and a name":              {found(""), "/models/right", "", NoFiles, false, false, `have the model from "/models/right"`},
		"a root without an organization": {found(""), "gpt2", "", NoFiles, false, false, `have the model from "gpt2"`},
		"no root":                        {found(""), "", "", NoFiles, false, false, "do not report where"},
		"a repository that is not there": {found(""), "a/none", "a/none", NoFiles, false, false, "a/none: it answers 404"},
		"files of another model":         {found(""), "a/wrong", "a/wrong", Failed, true, false, "chats: case"},
		"a tokenizer that is unknown":    {found(""), "a/unknown", "a/unknown", TokenizerUnsupported, false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := &fakeHub{dirs: map[string]string{"a/right": right, "a/wrong": wrong, "a/unknown": unknown}}
				h := hubHouse(tc.files, hub, "a")
				defer h.Set(nil)
				h.engine("a", Identity{Version: "0.24.0", Root: tc.root}, full, settings[0])
				h.apply()
				h.expect(t, name, tc.state, tc.texts, tc.chats)
				if s, _ := h.Status("n", "p"); !strings.Contains(s.Message, tc.message) {
					t.Errorf("message %q lacks %q", s.Message, tc.message)
				}
				if got := hub.wanted(); got != tc.wanted {
					t.Errorf("wanted %q, want %q", got, tc.wanted)
				}
			})
		})
	}
}

// TestTheWantedRepositoryFollowsTheEngines: most of them decide, not often, and a pool that goes wants nothing.
func TestTheWantedRepositoryFollowsTheEngines(t *testing.T) {
	full := smallModel(t, chatml)
	dir := saved(t, full)
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{dirs: map[string]string{"a/one": dir, "a/two": dir}}
		h := hubHouse(found(""), hub, "a", "b", "c")
		h.apply()
		h.expect(t, "before an engine answers", Unproven, false, false)
		for _, pod := range []string{"a", "b", "c"} {
			h.engine(pod, Identity{}, full, settings[0])
			h.forget(pod)
		}
		root := func(pod, root string) {
			h.engines.mu.Lock()
			defer h.engines.mu.Unlock()
			h.identity[pod] = Identity{Version: "0.24.0", Root: root}
		}
		root("a", "a/one")
		root("b", "a/one")
		root("c", "a/liar")
		time.Sleep(lookEvery)
		h.expect(t, "with engines", Exact, true, true)
		for range 4 { // in another order each time it would be another one
			root("c", "a/liar"+time.Now().Format("1504"))
			time.Sleep(rechooseEvery)
		}
		if got := hub.wanted(); got != "a/one" {
			t.Errorf("one engine of three makes the picker ask for %q", got)
		}
		h.pods()
		h.apply()
		time.Sleep(2 * rechooseEvery)
		h.expect(t, "without engines", Exact, true, true)
		for _, pod := range []string{"a", "b", "c"} {
			root(pod, "a/two")
		}
		h.pods("a", "b", "c")
		h.apply()
		h.expect(t, "with another model", Exact, true, true)
		for range 8 {
			for _, pod := range []string{"a", "b", "c"} {
				root(pod, "a/x"+time.Now().Format("1504"))
			}
			time.Sleep(rechooseEvery / 4)
		}
		if n := len(strings.Fields(hub.wanted())); n > 2+8/4 {
			t.Errorf("engines with ever new roots make the picker ask for %q", hub.wanted())
		}
		h.Set(nil)
		if got := hub.asked[len(hub.asked)-1]; got != "" {
			t.Errorf("a pool that is gone still wants %q", got)
		}
	})
}

// TestATokenThatChangesReachesTheHub, at once and for the same repository.
func TestATokenThatChangesReachesTheHub(t *testing.T) {
	full := smallModel(t, chatml)
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{dirs: map[string]string{"a/b": saved(t, full)}}
		h := hubHouse(found(""), hub, "a")
		defer h.Set(nil)
		h.engine("a", Identity{Version: "0.24.0", Root: "a/b"}, full, settings[0])
		h.apply()
		h.pool.Files.Repository.Token = "new"
		h.apply()
		h.expect(t, "with another token", Exact, true, true)
		if got := hub.wanted() + ": " + strings.Join(hub.tokens, " "); got != "a/b a/b: t new" {
			t.Errorf("wanted %s", got)
		}
	})
}

// TestFilesOfAHubThatGo: what a hub no longer has does not stay in use, and that is no fault either.
func TestFilesOfAHubThatGo(t *testing.T) {
	full := smallModel(t, chatml)
	dir := saved(t, full)
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{dirs: map[string]string{"a/b": dir}}
		h := hubHouse(found("a/b"), hub, "a")
		defer h.Set(nil)
		h.engine("a", Identity{Version: "0.24.0"}, full, settings[0])
		h.apply()
		h.expect(t, "at first", Exact, true, true)
		if err := os.Remove(filepath.Join(dir, "chat_template.jinja")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		h.expect(t, "without a template", TextsOnly, true, false)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		h.expect(t, "without files", NoFiles, false, false)
	})
}

// TestFilesOfReportersComeFirst: a pool that names nothing takes what the engines' pods have, and asks the hub only if that is wrong.
func TestFilesOfReportersComeFirst(t *testing.T) {
	full := smallModel(t, chatml)
	other := smallModel(t, "other "+chatml)
	right, wrong := saved(t, full), saved(t, other)
	unknown := modelfiles.Set{"tokenizer.json": []byte(`{"model":{"type":"Unigram"}}`)}
	noHub := Files{Optional: true, Reporters: true, Missing: errors.New("no model hub")}
	auto := func(name string) Files {
		f := found(name)
		f.Reporters = true
		return f
	}
	named := Files{Optional: true, Reporters: true, Repository: modelfiles.Repository{Name: "a/right"}}
	for name, tc := range map[string]struct {
		files        Files
		handed       modelfiles.Set
		wanted       string // repositories of the hub, in order
		state        State
		texts, chats bool
		origin       string
		proof        modelfiles.Proof
	}{
		"right, no hub":                {noHub, full, "", Exact, true, true, "from a reporter", 1},
		"wrong, no hub":                {noHub, other, "", Failed, true, false, "from a reporter", -1},
		"unknown, no hub":              {noHub, unknown, "", TokenizerUnsupported, false, false, "from a reporter", -2},
		"right, with a hub":            {auto(""), full, "", Exact, true, true, "from a reporter", 1},
		"wrong, right in the hub":      {auto(""), other, "a/right", Exact, true, true, "from a/right", -1},
		"unknown, right in the hub":    {auto(""), unknown, "a/right", Exact, true, true, "from a/right", -2},
		"none, right in the hub":       {auto(""), nil, "a/right", Exact, true, true, "from a/right", 0},
		"wrong, nothing in the hub":    {auto("a/none"), other, "a/none", Failed, true, false, "from a reporter", -1},
		"right, wrong in the hub":      {auto("a/wrong"), full, "", Exact, true, true, "from a reporter", 1},
		"the pool names a repository":  {named, other, "a/right", Exact, true, true, "from a/right", 0},
		"and the hub does not have it": {Files{Optional: true, Reporters: true, Repository: modelfiles.Repository{Name: "a/none"}}, full, "a/none", Exact, true, true, "from a reporter", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := &fakeHub{dirs: map[string]string{"a/right": right, "a/wrong": wrong}}
				h := hubHouse(tc.files, hub, "a")
				defer h.Set(nil)
				root := "a/right"
				if tc.files.Repository.Name != "" {
					root = ""
				}
				h.engine("a", Identity{Version: "0.24.0", Root: root}, full, settings[0])
				h.mu.Lock()
				h.handed = tc.handed
				h.mu.Unlock()
				h.apply()
				for range 4 { // it stays so
					time.Sleep(lookEvery)
					synctest.Wait()
					h.expect(t, name, tc.state, tc.texts, tc.chats)
				}
				if s, _ := h.Status("n", "p"); s.Origin != tc.origin {
					t.Errorf("origin %q, want %q", s.Origin, tc.origin)
				}
				if got := hub.wanted(); got != tc.wanted {
					t.Errorf("wanted %q, want %q", got, tc.wanted)
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if got := h.proofs[tc.handed.Hash()]; got != tc.proof {
					t.Errorf("proof %d, want %d", got, tc.proof)
				}
			})
		})
	}
}

// TestReportersFilesReplaceWrongOnes: when a pool's reporters have other files than those that were found wrong, these are tried, and the
// hub is not asked any more.
func TestReportersFilesReplaceWrongOnes(t *testing.T) {
	full := smallModel(t, chatml)
	wrong := saved(t, smallModel(t, "another "+chatml))
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{dirs: map[string]string{"a/wrong": wrong}}
		files := found("a/wrong")
		files.Reporters = true
		h := hubHouse(files, hub, "a")
		defer h.Set(nil)
		h.engine("a", Identity{Version: "0.24.0"}, full, settings[0])
		h.handed = smallModel(t, "other "+chatml)
		h.apply()
		time.Sleep(lookEvery)
		synctest.Wait()
		h.expect(t, "wrong everywhere", Failed, true, false)
		h.mu.Lock()
		h.handed = full
		h.mu.Unlock()
		h.Look("n", "p")
		synctest.Wait()
		h.expect(t, "with other files", Exact, true, true)
		if got := hub.wanted(); got != "a/wrong " {
			t.Errorf("wanted %q", got)
		}
	})
}
