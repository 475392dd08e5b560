package tokencheck

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// model is what was made of a model's files.
type model struct {
	stamp     string // of the directory they were read from, with its name
	origin    string // a note on where they are from; empty where the pool says so
	template  string
	hash      string
	files     modelfiles.Set // without the tokenizer, which is loaded
	tokenizer *tokenizer.Tokenizer
	cache     *tokenizer.Cache
	prompters map[making]*chatprompt.Prompter
	failure   finding // why there is no tokenizer
}

// making is what a Prompter depends on besides files.
type making struct {
	release string
	setting
}

// setting is how an engine was started, or what it was installed with, as far as that shows in prompts only.
type setting struct {
	format       string
	excludeTools bool
	ofClass      bool // see tokenizer.Tokenizer.OfClass
}

// settings in the order in which they are tried: the first is the engine's default.
var settings = []setting{
	{"auto", false, false}, {"auto", false, true}, {"auto", true, false}, {"auto", true, true},
	{"string", false, false}, {"string", false, true}, {"openai", false, false}, {"openai", false, true},
	{"string", true, false}, {"string", true, true}, {"openai", true, false}, {"openai", true, true},
}

// load reads the files of a pool, if they have changed. Not ok when there are none to work with.
func (m *model) load(c *Config, pool *Pool, f *Files) (failed finding, ok bool) {
	set, stamp, err := m.read(c, pool, f)
	if err != nil {
		m.forget()
		return finding{State: FilesMissing, message: err.Error()}, false
	}
	if set == nil { // unchanged
		return m.failure, m.tokenizer != nil
	}
	hash := set.Hash()
	if hash == m.hash && m.template == f.Template {
		m.stamp = stamp
		return m.failure, m.tokenizer != nil
	}
	origin := m.origin
	m.forget()
	m.stamp, m.hash, m.template, m.origin = stamp, hash, f.Template, origin
	t, err := tokenizer.LoadFS(set)
	if err != nil {
		m.failure = finding{State: FilesMissing, message: err.Error()}
		if errors.Is(err, tokenizer.ErrUnsupported) {
			m.failure.State = TokenizerUnsupported
		}
		return m.failure, false
	}
	m.files = modelfiles.Set{}
	for name, data := range set {
		if name != "tokenizer.json" {
			m.files[name] = data
		}
	}
	m.tokenizer, m.cache, m.prompters = t, c.cache(), map[making]*chatprompt.Prompter{}
	return finding{}, true
}

// read finds the files; nil when they are those of before.
func (m *model) read(c *Config, pool *Pool, f *Files) (set modelfiles.Set, stamp string, err error) {
	m.origin = ""
	switch {
	case f.Missing != nil:
		return nil, "", f.Missing
	case f.Dir != "":
		return m.readDir(f.Dir, f.Template)
	case f.Repository.Name != "":
		dir, note, err := c.Fetched(f.Repository)
		if err != nil {
			return nil, "", err
		}
		m.origin = note
		return m.readDir(dir, f.Template)
	case f.Set != nil:
		set = f.Set
	default:
		var hash string
		if set, hash = c.Handed(pool.Namespace, pool.Name); set == nil {
			return nil, "", errors.New("no reporter has handed the model's files over yet")
		}
		if hash == m.hash && m.template == f.Template {
			return nil, "", nil
		}
	}
	for _, name := range []string{"tokenizer.json", f.Template} {
		if _, ok := set[name]; !ok && name != "" {
			return nil, "", fmt.Errorf("%s is not among the model's files: %w", name, fs.ErrNotExist)
		}
	}
	return set, "", nil
}

// readDir reads the files of a directory; nil when they are those of before.
func (m *model) readDir(dir, template string) (set modelfiles.Set, stamp string, err error) {
	files := modelfiles.Stamp(dir, template)
	stamp = dir + "\n" + files
	if stamp == m.stamp && files != "" && m.template == template {
		return nil, stamp, nil
	}
	set, err = modelfiles.Read(dir, template)
	return set, stamp, err
}

func (m *model) forget() { *m = model{} }

// prompter makes prompts as engines of a release do that were started with a setting.
func (m *model) prompter(release string, s setting) *chatprompt.Prompter {
	key := making{release, s}
	if p := m.prompters[key]; p != nil {
		return p
	}
	t := m.tokenizer
	if s.ofClass {
		t = t.OfClass()
	}
	chats, err := chatprompt.New(chatprompt.Options{
		Files: m.files, Template: m.template, Release: release, Encoder: t,
		ContentFormat: s.format, ExcludeTools: s.excludeTools,
	})
	p := chatprompt.NewPrompter(t, m.cache, chats, err)
	m.prompters[key] = p
	return p
}
