package tokenizer

// split is one step of pre-tokenization: it cuts a text into words.
type split struct {
	// scan is the end of the match that begins at s[i]; i for none.
	scan func(s string, i int) int
	// all: something matches everywhere, so that nothing is left between matches.
	all bool
	// first has the bytes that a match can begin with; nil for any.
	first *byteSet
	// words: a match ends where letters end, and before a space that follows anything else; see cutter. safe: no match of
	// this step ends there, but a text that is cut there has the same matches.
	words, safe bool
}

const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	upper        = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower        = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	upperNoHan   = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`
	lowerNoHan   = `[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`
	lineTail     = `\s*[\r\n]+|\s+(?!\S)|\s+`
	// rawTail is lineTail with the line ends themselves.
	rawTail       = "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
	letters       = `|[^\r\n\p{L}\p{N}]?\p{L}+|`
	notWord       = `| ?[^\s\p{L}\p{N}]+[\r\n]*|`
	notWordOr     = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|`
	deepSeekWords = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
)

// o200kWords are the two ways in which the o200k family finds words.
func o200kWords(upper, lower, contraction string) string {
	return `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+` + contraction + `|[^\r\n\p{L}\p{N}]?` + upper + `+` + lower + `*` + contraction
}

// splitByRegex are the regular expressions that are known, as scanners. Any other is refused.
var splitByRegex = map[string]split{
	// cl100k, Llama-3, GLM-4 and later, OLMo-2 and 3, Phi-4, Granite-4.
	contractions + letters + `\p{N}{1,3}` + notWord + lineTail: {scan: cl100k{3, classL, true}.scan, all: true, words: true},
	// Qwen2 to Qwen3.
	contractions + letters + `\p{N}` + notWord + lineTail: {scan: cl100k{1, classL, true}.scan, all: true, words: true},
	// Qwen3.5 and later: marks belong to letters.
	contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + lineTail: {scan: cl100k{1, classL | classM,
		true}.scan, all: true, words: true},
	// MiniCPM5, behind a split of digits.
	contractions + letters + `\p{N}+` + notWord + lineTail: {scan: cl100k{1 << 30, classL, true}.scan, all: true, words: true},
	// LLaDA, Ling: the same as Qwen2's, written otherwise.
	`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`: {scan: cl100k{1, classL,
		true}.scan, all: true, words: true},
	// Zeta: line ends do not stick to punctuation.
	contractions + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|" + rawTail: {scan: cl100k{1, classL, false}.scan,
		all: true, words: true},
	// o200k: gpt-oss, Llama-4, MiniMax-M2.
	o200kWords(upper, lower, contractions+"?") + `|\p{N}{1,3}` + notWordOr + lineTail: {scan: o200k{digits: 3, contracts: true,
		slashes: true}.scan, all: true, words: true},
	// tekken: Mistral-Nemo and later, Nemotron-3.
	o200kWords(upper, lower, "") + `|\p{N}` + notWordOr + lineTail: {scan: o200k{digits: 1, slashes: true}.scan, all: true, words: true},
	// Kimi-K2 and later: Han by itself.
	`[\p{Han}]+|` + o200kWords(upperNoHan, lowerNoHan, contractions+"?") + `|\p{N}{1,3}` + notWord + lineTail: {scan: o200k{digits: 3,
		contracts: true, han: true}.scan, all: true, words: true},
	// DeepSeek-V3 and later split three times; Spark-X2.5 likewise.
	`\p{N}{1,3}`:                               {scan: func(s string, i int) int { return digits(s, i, 3) }, first: &numbers, safe: true},
	"[一-龥\u3040-ゟ゠-ヿ]+":                        {scan: scanCJK, first: &wide, safe: true},
	deepSeekWords + "[\r\n]*|" + rawTail:       {scan: deepSeek{lines: true}.scan, words: true},
	deepSeekWords + "|[\r\n]|\\s+(?!\\S)|\\s+": {scan: deepSeek{}.scan, words: true},
	// DeepSeek-Coder splits five times.
	"[\r\n]":                 {scan: func(s string, i int) int { return one(s, i, classNL) }, first: &lineFeeds},
	`\s?\p{L}+`:              {scan: func(s string, i int) int { return spaceThen(s, i, classL) }},
	`\s?\p{P}+`:              {scan: func(s string, i int) int { return spaceThen(s, i, classP) }},
	"[一-龥\u0800-一가-\ud7ff]+": {scan: scanAsian},
	// Bloom.
	` ?[^(\s|[.,!?…。，、।۔،])]+`: {scan: scanBloom},
}

var (
	lineFeeds = bytesOf(func(b byte) bool { return b == '\r' || b == '\n' })
	numbers   = bytesOf(func(b byte) bool { return b >= '0' && b <= '9' || b >= 0x80 })
	wide      = bytesOf(func(b byte) bool { return b >= 0xe3 })

	splitGPT2   = split{scan: scanGPT2, all: true, words: true}
	splitDigits = split{scan: func(s string, i int) int { return one(s, i, classNumeric) }, first: &numbers, safe: true}
	splitNumber = split{scan: func(s string, i int) int { return runOf(s, i, classNumeric) }, first: &numbers, safe: true}
	splitLines  = split{scan: scanLines, all: true, safe: true}
)

// patternLines with MergedWithNext is splitLines.
const patternLines = `(?:\r?\n)+(?!\r?\n)`

// text appends the ids of s, without the tokens around it.
func (e *encoder) text(s string) { e.cut(e.t.raw, s, (*encoder).normalize) }

// words appends the ids of a normalized piece.
func (e *encoder) words(s string) {
	if e.t.spm != nil {
		e.spmWords(s)
		return
	}
	e.split(s, e.t.splits)
}

// split cuts s by the steps, one inside what the one before has left.
func (e *encoder) split(s string, steps []split) {
	if len(steps) == 0 {
		e.rest(s, 0, len(s), nil)
		return
	}
	scan, first, steps, all := steps[0].scan, steps[0].first, steps[1:], steps[0].all
	left := 0
	for i := 0; i < len(s) && e.err == nil; {
		if first != nil {
			limit := min(i+checkBytes, len(s))
			if i = first.next(s, i, limit); i == limit {
				e.spend(checkBytes >> 3) // much cheaper than encoding
				continue
			}
		}
		end := scan(s, i)
		if end == i && !all {
			_, n := classAt(s, i)
			i += n
			e.spend(1)
			continue
		}
		if left < i {
			e.rest(s, left, i, steps)
		}
		e.rest(s, i, end, steps)
		i, left = end, end
	}
	if left < len(s) && e.err == nil {
		e.rest(s, left, len(s), steps)
	}
}

// rest takes s[beg:end] through the remaining steps.
func (e *encoder) rest(s string, beg, end int, steps []split) {
	switch {
	case len(steps) > 0:
		e.split(s[beg:end], steps)
	case beg < end && !e.spend(end-beg):
		e.word(s, beg, end)
	}
}
