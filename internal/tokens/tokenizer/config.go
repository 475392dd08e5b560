package tokenizer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

func (l *loader) normalizer(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	var n struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
		Prepend     string            `json:"prepend"`
		Pattern     pattern           `json:"pattern"`
		Content     string            `json:"content"`
	}
	if err := decode(raw, &n); err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	switch n.Type {
	case "NFC":
		l.norm = append(l.norm, normalization{kind: normNFC})
		return nil
	case "Prepend":
		l.norm = append(l.norm, normalization{kind: normPrepend, to: n.Prepend})
		return nil
	case "Replace":
		from, ok := n.Pattern.literal()
		if !ok || from == "" {
			return fmt.Errorf("%w: normalizer %s", ErrUnsupported, raw)
		}
		l.norm = append(l.norm, normalization{kind: normReplace, from: from, to: n.Content})
		return nil
	case "Sequence":
		for _, raw := range n.Normalizers {
			if err := l.normalizer(raw); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%w: normalizer %q", ErrUnsupported, n.Type)
}

// pattern is what is searched for: a text or a regular expression.
type pattern struct {
	Regex  *string
	String *string
}

// literal is the text that the pattern matches, if it is but one.
func (p pattern) literal() (string, bool) {
	switch {
	case p.String != nil && p.Regex == nil:
		return *p.String, true
	case p.Regex != nil && p.String == nil && regexp.QuoteMeta(*p.Regex) == *p.Regex:
		return *p.Regex, true
	}
	return "", false
}

// preTokenization is one step of a pre-tokenizer in the file.
type preTokenization struct {
	Type           string            `json:"type"`
	Pretokenizers  []json.RawMessage `json:"pretokenizers"` // of Sequence
	Pattern        pattern           `json:"pattern"`       // of Split, as are the next two
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	AddPrefixSpace *bool             `json:"add_prefix_space"` // of ByteLevel and Metaspace
	TrimOffsets    bool              `json:"trim_offsets"`     // does not touch ids
	UseRegex       *bool             `json:"use_regex"`        // of ByteLevel

	IndividualDigits bool `json:"individual_digits"` // of Digits

	Replacement   string `json:"replacement"` // of Metaspace, as are the next
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool  `json:"split"`
	StrRep        string `json:"str_rep"` // the replacement again, in old files
}

func (l *loader) preTokenizer(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	var p preTokenization
	if err := decode(raw, &p); err != nil {
		return fmt.Errorf("pre-tokenizer: %w", err)
	}
	if l.byteLevel || l.marked {
		return fmt.Errorf("%w: pre-tokenizer %q behind the last one", ErrUnsupported, p.Type)
	}
	switch p.Type {
	case "Sequence":
		for _, raw := range p.Pretokenizers {
			if err := l.preTokenizer(raw); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		if p.AddPrefixSpace == nil || *p.AddPrefixSpace {
			break
		}
		l.byteLevel = true
		if p.UseRegex == nil || *p.UseRegex {
			l.splits = append(l.splits, splitGPT2)
		}
		return nil
	case "Digits":
		s := splitNumber
		if p.IndividualDigits {
			s = splitDigits
		}
		l.splits = append(l.splits, s)
		return nil
	case "Metaspace":
		return l.metaspace(&p)
	case "Split":
		return l.split(&p)
	}
	return fmt.Errorf("%w: pre-tokenizer %s", ErrUnsupported, raw)
}

func (l *loader) split(p *preTokenization) error {
	if text, ok := p.Pattern.literal(); ok && text == " " && p.Behavior == "MergedWithPrevious" && !p.Invert && len(l.splits) == 0 {
		l.marked, l.afterSpaces = true, true
		return nil
	}
	if p.Pattern.Regex == nil || p.Pattern.String != nil {
		return fmt.Errorf("%w: split by a text", ErrUnsupported)
	}
	known, ok := splitByRegex[*p.Pattern.Regex]
	switch {
	case ok && p.Behavior == "Isolated" && !p.Invert:
		l.splits = append(l.splits, known)
		return nil
	case ok && p.Behavior == "Removed" && p.Invert && known.all: // what does not match would be removed, and all does
		l.splits = append(l.splits, known)
		return nil
	case *p.Pattern.Regex == patternLines && p.Behavior == "MergedWithNext" && !p.Invert:
		l.splits = append(l.splits, splitLines)
		return nil
	}
	return fmt.Errorf("%w: split by %q, %s", ErrUnsupported, *p.Pattern.Regex, p.Behavior)
}

func (l *loader) metaspace(p *preTokenization) error {
	scheme := p.PrependScheme
	if scheme == "" {
		scheme = "always"
	}
	if p.AddPrefixSpace != nil && !*p.AddPrefixSpace && scheme != "never" {
		return fmt.Errorf("%w: Metaspace with contradicting prefixes", ErrInvalid)
	}
	first := scheme == "first"
	switch {
	case p.Replacement != spaceMark || p.StrRep != "" && p.StrRep != spaceMark || len(l.splits) > 0,
		scheme != "always" && scheme != "never" && !first:
		return fmt.Errorf("%w: Metaspace %q, prefix %s, behind others", ErrUnsupported, p.Replacement, scheme)
	}
	l.marked = true
	l.meta = metaspace{on: true, split: p.Split == nil || *p.Split, mark: spaceMark, always: scheme == "always", first: first}
	return nil
}

func (l *loader) postProcessor(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	type piece struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
	var p struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			SpecialToken *piece
			Sequence     *piece
		} `json:"single"`
		Pair          json.RawMessage `json:"pair"`
		SpecialTokens map[string]struct {
			ID     string   `json:"id"`
			IDs    []uint32 `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
		AddPrefixSpace bool `json:"add_prefix_space"` // of ByteLevel, which only trims offsets here
		TrimOffsets    bool `json:"trim_offsets"`
		UseRegex       bool `json:"use_regex"`
	}
	if err := decode(raw, &p); err != nil {
		return fmt.Errorf("post-processor: %w", err)
	}
	switch p.Type {
	case "Sequence":
		for _, raw := range p.Processors {
			if err := l.postProcessor(raw); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		return nil
	case "TemplateProcessing":
		var prefix, suffix []uint32
		seen := 0
		for _, s := range p.Single {
			switch {
			case s.Sequence != nil:
				seen++
			case s.SpecialToken == nil || p.SpecialTokens[s.SpecialToken.ID].IDs == nil:
				return fmt.Errorf("%w: post-processor names an unknown token", ErrInvalid)
			case seen == 0:
				prefix = append(prefix, p.SpecialTokens[s.SpecialToken.ID].IDs...)
			default:
				suffix = append(suffix, p.SpecialTokens[s.SpecialToken.ID].IDs...)
			}
		}
		if seen != 1 {
			return fmt.Errorf("%w: post-processor with %d texts", ErrUnsupported, seen)
		}
		l.prefix, l.suffix = append(prefix, l.prefix...), append(l.suffix, suffix...)
		return nil
	}
	return fmt.Errorf("%w: post-processor %q", ErrUnsupported, p.Type)
}

// namedToken is a token in tokenizer_config.json: its text, or an object that holds it.
type namedToken string

// UnmarshalJSON takes both forms, and null for none.
func (n *namedToken) UnmarshalJSON(raw []byte) error {
	var o struct {
		Content string `json:"content"`
	}
	if kindOf(raw) == '{' {
		err := json.Unmarshal(raw, &o)
		*n = namedToken(o.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(n))
}

// configure applies what the engine's library takes from tokenizer_config.json over tokenizer.json, the flags of added
// tokens, and keeps what some classes put around a text.
func (l *loader) configure(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	var c struct {
		Class   string                `json:"tokenizer_class"`
		AddBOS  *bool                 `json:"add_bos_token"`
		AddEOS  *bool                 `json:"add_eos_token"`
		Prefix  *bool                 `json:"add_prefix_space"`
		Legacy  *bool                 `json:"legacy"`
		BOS     namedToken            `json:"bos_token"`
		EOS     namedToken            `json:"eos_token"`
		Decoder map[uint32]addedToken `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%w: tokenizer_config.json: %w", ErrInvalid, err)
	}
	for id, a := range c.Decoder {
		a.ID = id
		i := slices.IndexFunc(l.added, func(b addedToken) bool { return b.ID == id })
		switch {
		case i >= 0 && l.added[i].Content == a.Content:
			l.added[i] = a
		case i >= 0:
			return fmt.Errorf("%w: tokenizer_config.json gives token %d another text", ErrUnsupported, id)
		default:
			return fmt.Errorf("%w: tokenizer_config.json adds token %d", ErrUnsupported, id)
		}
	}
	addBOS, ok := rebuilds[strings.TrimSuffix(c.Class, "Fast")]
	if !ok {
		return nil
	}
	if c.Prefix != nil && l.spm != nil && !l.asConverted(*c.Prefix, c.Legacy == nil || *c.Legacy) {
		return fmt.Errorf("%w: tokenizer_config.json wants another prefix than tokenizer.json", ErrUnsupported)
	}
	l.class = &around{}
	if c.AddBOS != nil {
		addBOS = *c.AddBOS
	}
	if addBOS {
		if err := l.named(&l.class.prefix, "bos_token", c.BOS); err != nil {
			return err
		}
	}
	if c.AddEOS != nil && *c.AddEOS {
		return l.named(&l.class.suffix, "eos_token", c.EOS)
	}
	return nil
}

// rebuilds has the classes that set the tokens around a text themselves, whatever tokenizer.json contains, and whether they
// begin the text with bos_token by default.
var rebuilds = map[string]bool{
	"LlamaTokenizer": true, "CodeLlamaTokenizer": true, "GemmaTokenizer": true, "CohereTokenizer": true, "GPTNeoXTokenizer": false,
}

// asConverted reports whether the file's rules are those that the library would make itself from a sentencepiece model:
// it does so, and lets the file be, where the configuration says something about a prefix.
func (l *loader) asConverted(prefix, legacy bool) bool {
	replace := normalization{kind: normReplace, from: " ", to: spaceMark}
	switch {
	case legacy && prefix:
		return !l.marked && slices.Equal(l.norm, []normalization{{kind: normPrepend, to: spaceMark}, replace})
	case legacy:
		return !l.marked && slices.Equal(l.norm, []normalization{replace})
	}
	return len(l.norm) == 0 && l.meta.on && !l.meta.split && l.meta.first == prefix && !l.meta.always
}

// named makes ids the one token that the configuration names.
func (l *loader) named(ids *[]uint32, name string, token namedToken) error {
	for _, a := range l.added {
		if a.Content == string(token) && token != "" {
			*ids = []uint32{a.ID}
			return nil
		}
	}
	return fmt.Errorf("%w: %s is not among the added tokens", ErrUnsupported, name)
}
