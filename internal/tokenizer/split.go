package tokenizer

// split is one step of pre-tokenization: it cuts a text into words.
type split struct {
	// scan is the end of the match that begins at s[i]; i for none.
	scan func(s string, i int) int
	// all: something matches everywhere, so that nothing is left between matches.
	all bool
}

// splits are the regular expressions that are known, as scanners. Any other is refused.
var splitByRegex = map[string]split{
	// Llama-3 and others of the cl100k family.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {all: true,
		scan: func(s string, i int) int { return scanCL100K(s, i, 3) }},
	// Qwen2 to Qwen3.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {all: true,
		scan: func(s string, i int) int { return scanCL100K(s, i, 1) }},
	// o200k: gpt-oss.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {all: true,
		scan: func(s string, i int) int { return scanO200K(s, i, 3, true) }},
	// tekken: Mistral-Nemo and later.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
		`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {all: true,
		scan: func(s string, i int) int { return scanO200K(s, i, 1, false) }},
	// DeepSeek splits three times.
	`\p{N}{1,3}`:        {scan: func(s string, i int) int { return digits(s, i, 3) }},
	"[一-龥\u3040-ゟ゠-ヿ]+": {scan: scanCJK},
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|" +
		"\\s*[\r\n]+|\\s+(?!\\S)|\\s+": {scan: scanDeepSeek},
}

// text appends the ids of s, which is everything but what stands around it.
func (e *encoder) text(s string) { e.cut(e.t.raw, s, (*encoder).normalize) }

func (e *encoder) normalize(s string) {
	if e.t.nfc {
		s = nfc(s)
	}
	e.cut(e.t.normalized, s, (*encoder).words)
}

func (e *encoder) words(s string) { e.split(s, e.t.splits) }

// split cuts s by the steps, one inside what the one before has left.
func (e *encoder) split(s string, steps []split) {
	if len(steps) == 0 {
		if s != "" && !e.spend(len(s)) {
			e.word(s, 0, len(s))
		}
		return
	}
	scan := steps[0].scan
	if steps[0].all && len(steps) == 1 {
		for i := 0; i < len(s); {
			end := scan(s, i)
			if e.spend(end - i) {
				return
			}
			e.word(s, i, end)
			i = end
		}
		return
	}
	left := 0
	for i := 0; i < len(s) && e.err == nil; {
		end := scan(s, i)
		if end == i {
			_, n := classAt(s, i)
			i += n
			continue
		}
		if left < i {
			e.split(s[left:i], steps[1:])
		}
		e.split(s[i:end], steps[1:])
		i, left = end, end
	}
	if left < len(s) && e.err == nil {
		e.split(s[left:], steps[1:])
	}
}
