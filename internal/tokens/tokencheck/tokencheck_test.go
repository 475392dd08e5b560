package tokencheck

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// chatml is a template with most of what templates have.
const chatml = `{%- if tools %}<s>tools{% for t in tools %}{{ t | tojson }}{% endfor %}</s>{% endif %}
{%- for m in messages %}<s>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}</s>
{% endfor %}{% if add_generation_prompt %}<s>assistant
{% endif %}`

// smallModel are the files of a small model, with a template.
func smallModel(t testing.TB, template string) modelfiles.Set {
	t.Helper()
	f, err := os.Open("../tokenizer/testdata/spm/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	set := modelfiles.Set{"tokenizer.json": vocabulary, "tokenizer_config.json": []byte(`{"tokenizer_class": "PreTrainedTokenizerFast"}`)}
	if template != "" {
		set["chat_template.jinja"] = []byte(template)
	}
	return set
}

// engines is a fleet whose engines make ids as their Prompters do.
type engines struct {
	mu       sync.Mutex
	identity map[string]Identity // by pod; absent ones do not answer
	prompts  map[string]*chatprompt.Prompter
	change   func(c openai.Route, ids []uint32) []uint32
	refuse   func(body []byte) error
	silent   func(pod string) error
	asked    map[string]int
	imaging
	// numbersOnly: they serve Messages requests without returning ids of their prompts.
	numbersOnly bool
}

// mute lets engines answer no questions for tokens.
func (e *engines) mute(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refuse = nil
	if on {
		e.refuse = func([]byte) error { return errors.New("busy") }
	}
}

func (e *engines) Identity(_ context.Context, ep *endpoint.Endpoint, model, apiKey string) (Identity, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, ok := e.identity[ep.Pod]
	if !ok || model != "m" || apiKey != "key" {
		return Identity{}, errors.New("connection refused")
	}
	return id, nil
}

func (e *engines) Tokens(ctx context.Context, ep *endpoint.Endpoint, route openai.Route, body []byte, apiKey string) (Tokens, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[ep.Pod]++
	if _, ok := e.identity[ep.Pod]; !ok || apiKey != "key" {
		return Tokens{}, errors.New("connection refused")
	}
	if e.silent != nil {
		if err := e.silent(ep.Pod); err != nil {
			return Tokens{}, err
		}
	}
	if e.refuse != nil {
		if err := e.refuse(body); err != nil {
			return Tokens{}, err
		}
	}
	var r openai.Request
	if err := openai.Parse(route, body, &r); err != nil {
		return Tokens{}, err
	}
	ids, err := e.prompts[ep.Pod].AppendTokens(ctx, nil, body, &r)
	if err != nil {
		return Tokens{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if e.change != nil {
		ids = e.change(route, ids)
	}
	if e.numbersOnly && route == openai.Messages {
		return Tokens{Number: len(ids)}, nil
	}
	return Tokens{IDs: ids}, nil
}

func (e *engines) engine(pod string, id Identity, files modelfiles.Set, s setting) {
	enc, err := tokenizer.LoadFS(files)
	if err != nil {
		panic(err)
	}
	if s.ofClass {
		enc = enc.OfClass()
	}
	chats, err := chatprompt.New(chatprompt.Options{Files: files, Release: id.Version, Encoder: enc, ContentFormat: s.format, ExcludeTools: s.excludeTools})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.identity[pod], e.prompts[pod] = id, chatprompt.NewPrompter(enc, nil, chats, err)
}

func (e *engines) forget(pod string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.identity, pod)
}

// house is a manager with its engines, in virtual time.
type house struct {
	*engines
	*Manager
	pool      Pool
	mu        sync.Mutex
	published *picker.Exact
	handed    modelfiles.Set
	proofs    map[string]modelfiles.Proof // of files that were handed over, by their hash
}

func newHouse(files Files, pods ...string) *house {
	h := &house{
		engines: &engines{identity: map[string]Identity{}, prompts: map[string]*chatprompt.Prompter{}, asked: map[string]int{}},
		pool:    Pool{Namespace: "n", Name: "p", Model: "m", APIKey: "key", Files: files},
		proofs:  map[string]modelfiles.Proof{},
	}
	h.pods(pods...)
	h.Manager = New(Config{
		Engine: h.engines, Log: logr.Discard(), CacheBytes: 1 << 20,
		Publish: func(_, _ string, e *picker.Exact) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.published = e
		},
		Holds: h.holds,
		Handed: func(string, string) Handed {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.handed == nil {
				return Handed{Note: "no reporter has any"}
			}
			return Handed{Set: h.handed, Hash: h.handed.Hash(), Note: "from a reporter"}
		},
		Proved: func(_, _, hash string, proof modelfiles.Proof) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.proofs[hash] = proof
		},
	})
	return h
}

func (h *house) pods(pods ...string) {
	h.pool.Endpoints = nil
	for _, pod := range pods {
		h.pool.Endpoints = append(h.pool.Endpoints, endpoint.Endpoint{ID: endpoint.ID{Pod: pod}, Pod: pod, Address: pod + ":1", Ready: true})
	}
}

// apply hands the pool over and waits until all is done that can be.
func (h *house) apply() {
	pool := h.pool
	h.Set([]Pool{pool})
	synctest.Wait()
}

// expect checks state and what is published.
func (h *house) expect(t *testing.T, what string, state State, texts, chats bool) {
	t.Helper()
	synctest.Wait()
	s, ok := h.Status("n", "p")
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.published
	if e == nil {
		e = &picker.Exact{}
	}
	if !ok || s.State != state || s.Texts != texts || s.Chats != chats || (e.Texts != nil) != texts || (e.Chats != nil) != chats {
		t.Errorf("%s: %s (%s), texts %v, chats %v; published %v %v; want %s, %v, %v", what, s.State, s.Message, s.Texts, s.Chats, e.Texts != nil, e.Chats != nil, state, texts, chats)
	}
}

var v24 = Identity{Version: "0.24.0", Root: "/m"}

func TestWhatIsProvenIsTrusted(t *testing.T) {
	full := smallModel(t, chatml)
	classed := maps.Clone(full)
	classed["tokenizer_config.json"] = []byte(`{"tokenizer_class":"LlamaTokenizer","add_bos_token":false,"add_eos_token":true,"eos_token":"</s>"}`)
	other := maps.Clone(classed)
	other["chat_template.jinja"] = []byte(strings.Replace(chatml, "assistant", "model", 1))
	for name, tc := range map[string]struct {
		files        Files
		engine       modelfiles.Set
		setting      setting
		change       func(openai.Route, []uint32) []uint32
		refuse       func([]byte) error
		state        State
		texts, chats bool
		message      string
	}{
		"the same files":                      {Files{Set: full}, full, settings[0], nil, nil, Exact, true, true, "none differs"},
		"no files wanted":                     {Files{}, full, settings[0], nil, nil, NoFiles, false, false, ""},
		"files that are not there":            {Files{Missing: errors.New("ConfigMap n/c does not exist")}, full, settings[0], nil, nil, FilesMissing, false, false, "ConfigMap n/c"},
		"a directory that is not there":       {Files{Dir: "/nowhere"}, full, settings[0], nil, nil, FilesMissing, false, false, "no such file"},
		"reporters that say nothing":          {Files{Reporters: true}, full, settings[0], nil, nil, FilesMissing, false, false, "no reporter"},
		"files without a tokenizer":           {Files{Set: modelfiles.Set{"a": nil}}, full, settings[0], nil, nil, FilesMissing, false, false, "tokenizer.json is not among"},
		"a template that is not there":        {Files{Set: full, Template: "t.jinja"}, full, settings[0], nil, nil, FilesMissing, false, false, "t.jinja is not among"},
		"a tokenizer that is unknown":         {Files{Set: modelfiles.Set{"tokenizer.json": []byte(`{"model":{"type":"Unigram"}}`)}}, full, settings[0], nil, nil, TokenizerUnsupported, false, false, ""},
		"no template":                         {Files{Set: smallModel(t, "")}, full, settings[0], nil, nil, TextsOnly, true, false, "a model without a template"},
		"another template in the engine":      {Files{Set: full}, smallModel(t, strings.Replace(chatml, "assistant", "model", 1)), settings[0], nil, nil, Failed, true, false, "chats: case 28 (one message): token"},
		"an engine that drops unused tools":   {Files{Set: full}, full, setting{"auto", true, false}, nil, nil, Exact, true, true, ""},
		"a class that counts in the engine":   {Files{Set: classed}, classed, setting{"auto", false, true}, nil, nil, Exact, true, true, "none differs"},
		"a class that does not count in it":   {Files{Set: classed}, classed, settings[0], nil, nil, Exact, true, true, "none differs"},
		"a class, in an engine with a format": {Files{Set: classed}, classed, setting{"openai", false, true}, nil, nil, Exact, true, true, "none differs"},
		"a class, and another template in it": {Files{Set: classed}, other, settings[0], nil, nil, Failed, true, false, "chats: case 28 (one message): token"},
		"an engine that adds a token to texts": {Files{Set: full}, full, settings[0], func(r openai.Route, ids []uint32) []uint32 {
			if r == openai.Completions {
				return append([]uint32{1}, ids...)
			}
			return ids
		}, nil, Failed, false, true, "texts: case 0 (an empty text): token 1 differs"},
		"an engine that refuses tools": {Files{Set: full}, full, settings[0], nil, func(body []byte) error {
			if strings.Contains(string(body), `"tools"`) {
				return fmt.Errorf("%w: no tools", ErrRefused)
			}
			return nil
		}, Exact, true, true, ""},
		"an engine that refuses all": {Files{Set: full}, full, settings[0], nil, func([]byte) error {
			return ErrRefused
		}, Failed, false, false, "only 0 of 28 cases"},
		"an engine that cannot answer": {Files{Set: full}, full, settings[0], nil, func([]byte) error {
			return errors.New("no route")
		}, Unproven, false, false, "no engine has answered the probe: case 0 (an empty text): no route"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(tc.files, "a")
				defer h.Set(nil)
				h.change, h.refuse = tc.change, tc.refuse
				h.engine("a", v24, tc.engine, tc.setting)
				h.apply()
				h.expect(t, name, tc.state, tc.texts, tc.chats)
				if s, _ := h.Status("n", "p"); !strings.Contains(s.Message, tc.message) {
					t.Errorf("message %q lacks %q", s.Message, tc.message)
				}
			})
		})
	}
}

// TestPoolsShareOneCache: more pools do not take more memory.
func TestPoolsShareOneCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(Files{Set: smallModel(t, chatml)}, "a")
		h.engine("a", v24, h.pool.Files.Set, setting{format: "auto"})
		other := h.pool
		other.Name = "other"
		h.Set([]Pool{h.pool, other})
		synctest.Wait()
		first, second := h.keeper("n", "p"), h.keeper("n", "other")
		if first.model.cache == nil || first.model.cache != second.model.cache {
			t.Errorf("caches %p and %p", first.model.cache, second.model.cache)
		}
		h.Set(nil)
	})
}

// TestTheProbeIsRepeated: whatever changes is proven again before it is trusted.
func TestTheProbeIsRepeated(t *testing.T) {
	full, other := smallModel(t, chatml), smallModel(t, "other "+chatml)
	const doubtful = openai.Kinds(1<<openai.KindText | 1<<openai.KindChat)
	probes := func(h *house) uint64 { s, _ := h.Status("n", "p"); return s.Probes }
	for name, tc := range map[string]struct {
		change       func(h *house)
		wait         time.Duration
		state        State
		texts, chats bool
		probes       uint64
	}{
		"nothing":               {func(*house) {}, 10 * time.Minute, Exact, true, true, 1},
		"an hour":               {func(*house) {}, 61 * time.Minute, Exact, true, true, 2},
		"another version":       {func(h *house) { h.engine("a", Identity{Version: "0.25.0", Root: "/m"}, full, settings[0]) }, time.Minute, Exact, true, true, 2},
		"another root":          {func(h *house) { h.engine("a", Identity{Version: "0.24.0", Root: "/n"}, other, settings[0]) }, time.Minute, Failed, true, false, 2},
		"another template":      {func(h *house) { h.pool.Files.Set = other; h.apply() }, time.Minute, Failed, true, false, 1},
		"files that go":         {func(h *house) { h.pool.Files.Set = modelfiles.Set{}; h.apply() }, time.Minute, FilesMissing, false, false, 1},
		"a doubt":               {func(h *house) { h.Doubt("n", "p", doubtful) }, time.Minute, Exact, true, true, 2},
		"a doubt that is right": {func(h *house) { h.engine("a", v24, other, settings[0]); h.Doubt("n", "p", doubtful) }, time.Minute, Failed, true, false, 2},
		"doubts again and again": {func(h *house) {
			for range doubtLimit {
				h.Doubt("n", "p", doubtful)
				synctest.Wait()
			}
		}, time.Minute, Failed, false, false, 4},
		"doubts of long ago": {func(h *house) {
			for range doubtLimit {
				h.Doubt("n", "p", doubtful)
				synctest.Wait()
			}
		}, 61 * time.Minute, Exact, true, true, 5},
		"an engine that goes away": {func(h *house) { h.pods(); h.apply() }, time.Minute, Exact, true, true, 1},
		"its successor is alike":   {func(h *house) { h.engine("b", v24, full, settings[0]); h.pods("b"); h.apply() }, time.Minute, Exact, true, true, 2},
		"its successor has another template": {func(h *house) {
			h.engine("b", v24, other, settings[0])
			h.pods("b")
			h.apply()
		}, time.Minute, Failed, true, false, 2},
		"its successor does not answer": {func(h *house) {
			h.engine("b", v24, other, settings[0])
			h.mute(true)
			h.pods("b")
			h.apply()
		}, time.Minute, Exact, true, true, 1},
		"one that was not asked goes": {func(h *house) {
			h.engine("b", v24, full, settings[0])
			h.pods("a", "b")
			h.apply()
			h.pods("a")
			h.apply()
		}, time.Minute, Exact, true, true, 1},
		"one more of the same": {func(h *house) { h.engine("b", v24, full, settings[0]); h.pods("a", "b"); h.apply() }, time.Minute, Exact, true, true, 1},
		"one more of another": {func(h *house) {
			h.engine("b", Identity{Version: "0.23.0"}, other, settings[0])
			h.pods("a", "b")
			h.apply()
		}, time.Minute, Failed, true, false, 2},
		"one that does not say what it is": {func(h *house) { h.forget("b"); h.pods("a", "b"); h.apply() }, time.Minute, Exact, true, true, 1},
		"a pool that goes":                 {func(h *house) { h.Set(nil); h.apply() }, time.Minute, Exact, true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(Files{Set: full}, "a")
				defer h.Set(nil)
				h.engine("a", v24, full, settings[0])
				h.apply()
				h.expect(t, "before", Exact, true, true)
				tc.change(h)
				time.Sleep(tc.wait)
				h.expect(t, name, tc.state, tc.texts, tc.chats)
				if n := probes(h); n != tc.probes {
					t.Errorf("%d probes, want %d", n, tc.probes)
				}
			})
		})
	}
}

// TestAnEngineThatComesLateIsAsked: what fails is tried again, and a pool that is gone is not trusted any more.
func TestAnEngineThatComesLateIsAsked(t *testing.T) {
	full := smallModel(t, chatml)
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(Files{Reporters: true}, "a")
		h.apply()
		h.expect(t, "without files", FilesMissing, false, false)
		h.mu.Lock()
		h.handed = full
		h.mu.Unlock()
		h.Look("n", "p")
		h.expect(t, "without an engine", Unproven, false, false)
		h.engine("a", v24, full, settings[0])
		time.Sleep(lastRetry)
		h.expect(t, "with an engine", Exact, true, true)
		h.Set(nil)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.published != nil || len(h.All()) != 0 {
			t.Error("a pool that has gone is trusted")
		}
	})
}

// TestOldEnginesDoNotTell: releases whose events lack adapters or salts, or that are not asked about images, are known.
func TestOldEnginesDoNotTell(t *testing.T) {
	full := smallModel(t, chatml)
	for version, want := range map[string]picker.Exact{
		"":              {ItemsUnreported: true},
		"0.13.2":        {AdaptersUnreported: true, SaltsUnreported: true, ItemsUnreported: true},
		"0.14.0":        {SaltsUnreported: true, ItemsUnreported: true},
		"0.16.0rc1":     {SaltsUnreported: true, ItemsUnreported: true},
		"0.17.0":        {ItemsUnreported: true},
		"0.29.0":        {ItemsUnreported: true},
		"0.30.0":        {},
		"1.0.0":         {},
		"not a version": {ItemsUnreported: true},
	} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(Files{}, "a", "b")
				defer h.Set(nil)
				h.engine("a", Identity{Version: version}, full, settings[0])
				h.engine("b", Identity{Version: "0.30.0", Root: "/m"}, full, settings[0])
				h.apply()
				h.mu.Lock()
				defer h.mu.Unlock()
				releases := *h.published.Releases
				h.published.Releases = nil
				if minor, _ := chatprompt.ParseRelease(version); len(releases) != 2 || !slices.Contains(slices.Collect(maps.Values(releases)), minor) {
					t.Errorf("the releases %v of %q", releases, version)
				}
				if *h.published != want {
					t.Errorf("%+v, want %+v", *h.published, want)
				}
			})
		})
	}
}

// TestDirectoriesAreLookedAt: files that change in place are read again.
func TestDirectoriesAreLookedAt(t *testing.T) {
	full := smallModel(t, chatml)
	dir := t.TempDir()
	for name, data := range full {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(Files{Dir: dir}, "a")
		defer h.Set(nil)
		h.engine("a", v24, full, settings[0])
		h.apply()
		h.expect(t, "at first", Exact, true, true)
		if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("x"+chatml), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		h.expect(t, "with another template", Failed, true, false)
		if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		h.expect(t, "without a tokenizer", FilesMissing, false, false)
	})
}

// TestCases: there are about fifty cases. All can be read and have different names; they never change by themselves.
func TestCases(t *testing.T) {
	cases := Cases("m")
	texts, names := 0, []string{}
	for i := range cases {
		c := &cases[i]
		var r openai.Request
		if err := openai.Parse(c.Route, c.Body, &r); err != nil || r.Model != "m" {
			t.Errorf("case %d (%s): %v", i, c.Name, err)
		}
		if c.Route == openai.Completions {
			texts++
		}
		names = append(names, c.Name)
	}
	if len(cases) < 50 || texts < enoughTexts+5 || len(cases)-texts < 2*enoughChats {
		t.Errorf("%d cases, %d of them texts", len(cases), texts)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != len(cases) {
		t.Error("two cases have one name")
	}
	again := Cases("m")
	for i := range cases {
		if string(again[i].Body) != string(cases[i].Body) {
			t.Errorf("case %d is another one each time", i)
		}
	}
}
