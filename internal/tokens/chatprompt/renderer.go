package chatprompt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// ErrUnsupported is wrapped by errors about models and requests for which only the engine knows the prompt.
var ErrUnsupported = errors.New("rendering the prompt in process is not possible")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Encoder turns text into ids, as a *tokenizer.Tokenizer does.
type Encoder interface {
	EncodeContext(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error)
}

// Options configure a Renderer. Only Dir or Files is needed.
type Options struct {
	// Dir holds the model's tokenizer_config.json, and its config.json and chat_template.jinja if it has them.
	Dir string
	// Files are those of a model where they are in no directory.
	Files fs.FS
	// Template is a file with the template that the engine uses instead of the model's own
	// (--chat-template), one of Files if there are any; none if empty.
	Template string
	// Release of vLLM, like "0.17.1". Without it, requests that releases treat differently are unsupported.
	Release string
	// Encoder encodes the text; nil loads the tokenizer in Dir.
	Encoder Encoder

	// ContentFormat is the engine's --chat-template-content-format: "string", "openai", or "auto", which is the default.
	ContentFormat string
	// ExcludeTools: the engine runs with --exclude-tools-when-tool-choice-none.
	ExcludeTools bool

	// Now returns the time for templates that print it; nil is time.Now. Zone is the engine's time zone; nil is UTC.
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
	merged          answer // system messages amid the turns of Messages requests are merged into the first
	unthinking      func() (effort string, err error)
	prompts         sync.Pool // of *Prompt
}

// model is a template and what depends on it alone.
type model struct {
	*chattemplate.Template
	format chattemplate.ContentFormat
	// developers: the template mentions the role developer.
	developers bool
	// systemFirst: the engine takes the template for one that refuses system messages amid the turns.
	systemFirst answer
}

// Prompt is the prompt of one chat request, until it is released.
type Prompt struct {
	// Text of the prompt. It must not be used after Release.
	Text string
	// Special reports whether the engine adds special tokens around the text.
	Special bool

	owner *Renderer
	work
}

// work is the memory of one request.
type work struct {
	arena chattemplate.Arena
	text  []byte
	vars  []chattemplate.Var
	// images of the prompt, in the order of their placeholders, if takesImages.
	images      []imagePart
	takesImages bool
}

// keepText is the largest text buffer kept for the next request, bytes.
const keepText = 4 << 20

// New reads the files of a model. The error wraps ErrUnsupported when its prompts cannot be made here.
func New(options Options) (*Renderer, error) {
	r := &Renderer{options: options, release: parseRelease(options.Release), encoder: options.Encoder}
	r.unthinking = sync.OnceValues(r.disabledEffort)
	if r.release != 0 && r.release < oldest {
		return nil, unsupported("vLLM %s", options.Release)
	}
	files := options.Files
	if files == nil {
		files = os.DirFS(options.Dir)
	}
	if err := r.load(files); err != nil {
		return nil, fmt.Errorf("preparing the chat template: %w", asUnsupported(err))
	}
	if r.encoder == nil {
		t, err := tokenizer.LoadFS(files)
		if err != nil {
			if errors.Is(err, tokenizer.ErrUnsupported) {
				err = fmt.Errorf("%w: %w", ErrUnsupported, err)
			}
			return nil, err
		}
		r.encoder = TokenizerOf(t, options.Release)
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

func (r *Renderer) load(files fs.FS) error {
	c, err := readConfig(files)
	if err != nil {
		return err
	}
	var plain, withTools string
	if r.options.Template != "" {
		read := os.ReadFile
		if r.options.Files != nil {
			read = func(name string) ([]byte, error) { return fs.ReadFile(files, name) }
		}
		data, err := read(r.options.Template)
		if err != nil {
			return err
		}
		plain, withTools = string(data), string(data)
	} else if plain, withTools, err = c.source(files); err != nil {
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
	r.merged = r.mergesSystem()
	r.tokens, err = c.variables(r.plain.Template, r.withTool.Template)
	return err
}

func (r *Renderer) model(source string) (*model, error) {
	t, err := chattemplate.Parse(source)
	if err != nil {
		return nil, err
	}
	if t.UsesClock() && printsTimeOfDay(source) {
		return nil, unsupported("templates that print the time of day")
	}
	m := &model{
		Template: t, format: t.ContentFormat(),
		developers: strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`),
	}
	m.systemFirst = m.refusesSystem(source)
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

// printsTimeOfDay reports whether a template can print more of the time than the date.
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
	p, err := r.Render(ctx, body, req)
	if err != nil {
		return dst, err
	}
	defer p.Release()
	out, err := r.encoder.EncodeContext(ctx, dst, p.Text, p.Special)
	switch {
	case errors.Is(err, tokenizer.ErrText):
		return dst, fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return dst, err
	}
	return out, nil
}

// Render makes the text of a chat request's prompt, for callers that encode it themselves. They must release it. Errors
// are as those of Tokens.
func (r *Renderer) Render(ctx context.Context, body []byte, req *openai.Request) (*Prompt, error) {
	return r.renderWith(ctx, body, req, false)
}

// renderWith is Render, also for requests with images if takesImages.
func (r *Renderer) renderWith(ctx context.Context, body []byte, req *openai.Request, takesImages bool) (*Prompt, error) {
	p, _ := r.prompts.Get().(*Prompt)
	if p == nil {
		p = &Prompt{owner: r}
	}
	p.takesImages = takesImages
	var err error
	if p.Special, err = r.prompt(ctx, &p.work, body, req); err != nil {
		p.Release()
		return nil, err
	}
	p.Text = unsafe.String(unsafe.SliceData(p.text), len(p.text))
	return p, nil
}

// Release frees the prompt's memory.
func (p *Prompt) Release() {
	p.Text = ""
	p.arena.Reset()
	clear(p.vars)
	clear(p.images)
	p.vars, p.text, p.images = p.vars[:0], p.text[:0], p.images[:0]
	if cap(p.text) > keepText {
		p.text = nil
	}
	p.owner.prompts.Put(p)
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

// clockSkew is how far the engine's clock, and the moment at which it reads it, can differ from the picker's.
const clockSkew = 5 * time.Second
