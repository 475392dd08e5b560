package chatprompt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kvasir-dev/kvasir/internal/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
)

// ErrUnsupported is wrapped by errors about models and requests for which only the engine knows the prompt.
var ErrUnsupported = errors.New("the prompt cannot be made here")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Encoder turns text into ids, as a *tokenizer.Tokenizer does.
type Encoder interface {
	EncodeContext(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error)
}

// Options say what a Renderer is for. Only Dir is needed.
type Options struct {
	// Dir holds the model's tokenizer_config.json, and its config.json and chat_template.jinja if it has them.
	Dir string
	// Template is a file with the template that the engine is told to use instead of the model's own
	// (--chat-template); none if empty.
	Template string
	// Release of vLLM, like "0.17.1". Without it, requests that releases treat differently are unsupported.
	Release string
	// Encoder encodes the text; nil loads the tokenizer in Dir.
	Encoder Encoder

	// TemplateKwargs is the JSON object of the engine's --default-chat-template-kwargs, if it has any.
	TemplateKwargs []byte
	// ContentFormat is the engine's --chat-template-content-format: "string", "openai", or "auto", which is the default.
	ContentFormat string
	// ExcludeTools: the engine runs with --exclude-tools-when-tool-choice-none.
	ExcludeTools bool

	// Now tells the time to templates that print it; nil is time.Now. Zone is the engine's time zone; nil is UTC.
	Now  func() time.Time
	Zone *time.Location
	// Limits bound each render.
	Limits chattemplate.Limits
}

// Renderer makes prompts of one model for one engine. It does not change and is safe for many goroutines.
type Renderer struct {
	options         Options
	release         release
	encoder         Encoder
	plain, withTool *model
	tokens          []chattemplate.Var
	defaults        *chattemplate.Dict
	arenas          sync.Pool // of *work
}

// model is a template and what depends on it alone.
type model struct {
	*chattemplate.Template
	format chattemplate.ContentFormat
}

// work is the memory of one request.
type work struct {
	arena chattemplate.Arena
	text  []byte
	vars  []chattemplate.Var
}

// keepText is the largest text buffer kept for the next request, bytes.
const keepText = 4 << 20

// New reads the files of a model. The error wraps ErrUnsupported when its prompts cannot be made here.
func New(options Options) (*Renderer, error) {
	r := &Renderer{options: options, release: parseRelease(options.Release), encoder: options.Encoder}
	if r.release != 0 && r.release < oldest {
		return nil, unsupported("vLLM %s", options.Release)
	}
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("preparing the chat template for %s: %w", options.Dir, asUnsupported(err))
	}
	if r.encoder == nil {
		t, err := tokenizer.Load(options.Dir)
		if err != nil {
			if errors.Is(err, tokenizer.ErrUnsupported) {
				err = fmt.Errorf("%w: %w", ErrUnsupported, err)
			}
			return nil, err
		}
		r.encoder = t
	}
	return r, nil
}

// asUnsupported marks what the template renderer refuses: it is for the engine to deal with it. Exceptions and
// errors of contexts stay what they are.
func asUnsupported(err error) error {
	var syntax *chattemplate.SyntaxError
	if errors.Is(err, chattemplate.ErrUnsupported) || errors.Is(err, chattemplate.ErrLimit) || errors.As(err, &syntax) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

func (r *Renderer) load() error {
	c, err := readConfig(r.options.Dir)
	if err != nil {
		return err
	}
	var plain, withTools string
	if r.options.Template != "" {
		data, err := os.ReadFile(r.options.Template)
		if err != nil {
			return err
		}
		plain, withTools = string(data), string(data)
	} else if plain, withTools, err = c.source(r.options.Dir); err != nil {
		return err
	}
	if r.plain, err = r.model(plain); err != nil {
		return err
	}
	r.withTool = r.plain
	if withTools != plain {
		if r.withTool, err = r.model(withTools); err != nil {
			return err
		}
	}
	if r.tokens, err = c.variables(r.plain.Template, r.withTool.Template); err != nil {
		return err
	}
	if len(r.options.TemplateKwargs) > 0 {
		v, err := new(chattemplate.Arena).DecodeJSON(r.options.TemplateKwargs)
		if err != nil {
			return fmt.Errorf("reading the template's default arguments: %w", err)
		}
		if r.defaults = v.Dict(); r.defaults == nil {
			return errors.New("the template's default arguments must be an object")
		}
	}
	return nil
}

func (r *Renderer) model(source string) (*model, error) {
	t, err := chattemplate.Parse(source)
	if err != nil {
		return nil, err
	}
	if t.UsesClock() && printsTimeOfDay(source) {
		return nil, unsupported("templates that print the time of day")
	}
	m := &model{Template: t, format: t.ContentFormat()}
	switch r.options.ContentFormat {
	case "", "auto":
	case "string":
		m.format = chattemplate.ContentString
	case "openai":
		m.format = chattemplate.ContentParts
	default:
		return nil, fmt.Errorf("unknown content format %q", r.options.ContentFormat)
	}
	return m, nil
}

// printsTimeOfDay tells whether a template may print more of the time than the date.
func printsTimeOfDay(source string) bool {
	for _, conversion := range []string{"%H", "%I", "%M", "%S", "%T", "%R", "%p", "%-H", "%-I", "%-M", "%-S"} {
		if strings.Contains(source, conversion) {
			return true
		}
	}
	return false
}

// Tokens appends the ids of a chat request's prompt to dst. body is the request and req what openai.Parse found in it.
// The error wraps ErrUnsupported when only the engine knows the prompt; it is a *chattemplate.RaisedError when the
// template refuses the request, as it will in the engine; or it is that of ctx.
//
// truncate_prompt_tokens is left to the caller.
func (r *Renderer) Tokens(ctx context.Context, dst []uint32, body []byte, req *openai.Request) ([]uint32, error) {
	w := r.work()
	defer r.done(w)
	special, err := r.prompt(ctx, w, body, req)
	if err != nil {
		return dst, err
	}
	text := unsafe.String(unsafe.SliceData(w.text), len(w.text)) // the encoder keeps none of it
	out, err := r.encoder.EncodeContext(ctx, dst, text, special)
	switch {
	case errors.Is(err, tokenizer.ErrText):
		return dst, fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return dst, err
	}
	return out, nil
}

// Prompt appends the text of a chat request's prompt to dst. special tells whether special tokens are added around it.
// Errors are as those of Tokens.
func (r *Renderer) Prompt(ctx context.Context, dst, body []byte, req *openai.Request) (text []byte, special bool, err error) {
	w := r.work()
	defer r.done(w)
	if special, err = r.prompt(ctx, w, body, req); err != nil {
		return dst, false, err
	}
	return append(dst, w.text...), special, nil
}

func (r *Renderer) work() *work {
	w, _ := r.arenas.Get().(*work)
	if w == nil {
		w = &work{}
	}
	return w
}

func (r *Renderer) done(w *work) {
	w.arena.Reset()
	clear(w.vars)
	w.vars, w.text = w.vars[:0], w.text[:0]
	if cap(w.text) > keepText {
		w.text = nil
	}
	r.arenas.Put(w)
}

// now is the engine's time. Near midnight its day is not sure.
func (r *Renderer) now() (time.Time, error) {
	now := time.Now
	if r.options.Now != nil {
		now = r.options.Now
	}
	zone := r.options.Zone
	if zone == nil {
		zone = time.UTC
	}
	t := now().In(zone)
	if t.Add(-clockSkew).Day() != t.Add(clockSkew).Day() {
		return t, unsupported("the date, at midnight")
	}
	return t, nil
}

// clockSkew is how far the engine's clock, and the moment at which it looks at it, may be from ours.
const clockSkew = 5 * time.Second
