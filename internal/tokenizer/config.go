package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

func (l *loader) normalizer(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	var n struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := decode(raw, &n); err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	switch n.Type {
	case "NFC":
		l.nfc = true
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

func (l *loader) preTokenizer(raw []byte) error {
	if isNull(raw) {
		return nil
	}
	var p struct {
		Type          string            `json:"type"`
		Pretokenizers []json.RawMessage `json:"pretokenizers"`
		Pattern       struct {
			Regex  *string
			String *string
		} `json:"pattern"`
		Behavior       string `json:"behavior"`
		Invert         bool   `json:"invert"`
		AddPrefixSpace bool   `json:"add_prefix_space"`
		TrimOffsets    bool   `json:"trim_offsets"` // does not touch ids
		UseRegex       *bool  `json:"use_regex"`

		IndividualDigits bool `json:"individual_digits"`
	}
	if err := decode(raw, &p); err != nil {
		return fmt.Errorf("pre-tokenizer: %w", err)
	}
	if l.byteLevel {
		return fmt.Errorf("%w: pre-tokenizer %q behind the byte-level one", ErrUnsupported, p.Type)
	}
	switch {
	case p.Type == "Sequence":
		for _, raw := range p.Pretokenizers {
			if err := l.preTokenizer(raw); err != nil {
				return err
			}
		}
		return nil
	case p.Type == "ByteLevel" && !p.AddPrefixSpace:
		l.byteLevel = true
		if p.UseRegex == nil || *p.UseRegex {
			l.splits = append(l.splits, splitGPT2)
		}
		return nil
	case p.Type == "Digits":
		s := splitNumber
		if p.IndividualDigits {
			s = splitDigits
		}
		l.splits = append(l.splits, s)
		return nil
	case p.Type == "Split" && p.Pattern.Regex != nil && *p.Pattern.Regex == patternLines && p.Behavior == "MergedWithNext" && !p.Invert:
		l.splits = append(l.splits, splitLines)
		return nil
	case p.Type == "Split" && p.Pattern.Regex != nil && (p.Behavior == "Isolated" && !p.Invert || p.Behavior == "Removed" && p.Invert):
		s, ok := splitByRegex[*p.Pattern.Regex]
		if !ok || p.Invert && !s.all { // what does not match would be removed, and all does
			return fmt.Errorf("%w: split by %q", ErrUnsupported, *p.Pattern.Regex)
		}
		l.splits = append(l.splits, s)
		return nil
	}
	return fmt.Errorf("%w: pre-tokenizer %s", ErrUnsupported, raw)
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

// configure applies what the engine's library takes from tokenizer_config.json over tokenizer.json: the flags of added
// tokens, and for the Llama classes what stands around a text.
func (l *loader) configure(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	var c struct {
		Class   string                `json:"tokenizer_class"`
		AddBOS  *bool                 `json:"add_bos_token"`
		AddEOS  *bool                 `json:"add_eos_token"`
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
	if c.Class != "LlamaTokenizerFast" && c.Class != "LlamaTokenizer" {
		return nil
	}
	l.prefix, l.suffix = nil, nil
	if c.AddBOS == nil || *c.AddBOS {
		if err := l.around(&l.prefix, "bos_token", c.BOS); err != nil {
			return err
		}
	}
	if c.AddEOS != nil && *c.AddEOS {
		return l.around(&l.suffix, "eos_token", c.EOS)
	}
	return nil
}

// around makes ids the one token that the configuration names.
func (l *loader) around(ids *[]uint32, name string, token namedToken) error {
	for _, a := range l.added {
		if a.Content == string(token) && token != "" {
			*ids = []uint32{a.ID}
			return nil
		}
	}
	return fmt.Errorf("%w: %s is not among the added tokens", ErrUnsupported, name)
}
