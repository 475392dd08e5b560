package tokencheck

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/images"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// model is what was made of a model's files.
type model struct {
	stamp     string // of the directory they were read from, with its name
	origin    string // a note on where they are from; empty where the pool says so
	handed    string // the hash that reporters offered them by; empty if they are not from reporters
	template  string
	hash      string
	files     modelfiles.Set // without the tokenizer, which is loaded
	tokenizer *tokenizer.Tokenizer
	cache     *tokenizer.Cache
	images    *images.Model // nil where images are not followed here
	prompters map[making]*chatprompt.Prompter
	compared  comparison // the last one
	failure   finding    // why there is no tokenizer
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

// load reads the files of a model, if they have changed. Not ok when there are none to work with.
func (m *model) load(c *Config, from contents, template string) (failed finding, ok bool) {
	set, stamp, err := m.read(&from, template)
	if err != nil {
		m.forget()
		m.handed = from.handed
		return finding{State: FilesMissing, message: err.Error()}, false
	}
	m.origin, m.handed = from.origin, from.handed
	if set == nil { // unchanged
		return m.failure, m.tokenizer != nil
	}
	hash := set.Hash()
	if hash == m.hash && m.template == template {
		m.stamp = stamp
		return m.failure, m.tokenizer != nil
	}
	m.forget()
	m.stamp, m.hash, m.template, m.origin, m.handed = stamp, hash, template, from.origin, from.handed
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
	m.images, _ = images.New(m.files, t) // else the engine reads them
	return finding{}, true
}

// read reads the files; nil when they are those of before.
func (m *model) read(from *contents, template string) (set modelfiles.Set, stamp string, err error) {
	if from.set == nil {
		return m.readDir(from.dir, template)
	}
	if from.handed != "" && from.handed == m.hash && m.template == template {
		return nil, "", nil
	}
	for _, name := range []string{"tokenizer.json", template} {
		if _, ok := from.set[name]; !ok && name != "" {
			return nil, "", fmt.Errorf("%s is not among the model's files: %w", name, fs.ErrNotExist)
		}
	}
	return from.set, "", nil
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
