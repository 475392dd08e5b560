package tokenizer

import "unicode/utf8"

// The scanners here find something only in some places: those of models that split a text several times.

// scanCJK: [一-龥\u3040-ゟ゠-ヿ]+
func scanCJK(s string, i int) int {
	for i < len(s) && s[i] >= 0xe3 {
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r < 0x4e00 || r > 0x9fa5) && (r < 0x3040 || r > 0x30ff) {
			break
		}
		i += n
	}
	return i
}

// deepSeek are the differences between the last splits of DeepSeek-V3 and of models after it.
type deepSeek struct {
	lines bool // [\r\n]* behind punctuation and \s*[\r\n]+, else [\r\n]
}

// scan: [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func (f deepSeek) scan(s string, i int) int {
	c, n := classAt(s, i)
	if s[i] < utf8.RuneSelf && c&classPS != 0 && i+1 < len(s) && isASCIILetter(s[i+1]) {
		j := i + 2
		for j < len(s) && isASCIILetter(s[j]) {
			j++
		}
		return j
	}
	if c&(classL|classPS|classNL) == 0 {
		if end := runOf(s, i+n, classL|classM); end > i+n {
			return end
		}
	}
	if c&(classL|classM) != 0 {
		return runOf(s, i, classL|classM)
	}
	j := i
	if s[i] == ' ' {
		j++
	}
	if end := runOf(s, j, classPS); end > j {
		if f.lines {
			end = lineEnds(s, end, false)
		}
		return end
	}
	switch {
	case c&classNL != 0 && !f.lines:
		return i + 1
	case c&classS != 0:
		return spaces(s, i, f.lines)
	}
	return i
}

// scanLines: what (?:\r?\n)+(?!\r?\n), merged with what follows, leaves: line ends and the text up to the next.
func scanLines(s string, i int) int {
	for n := lineEnd(s, i); n > 0; n = lineEnd(s, i) {
		i += n
	}
	for i < len(s) && lineEnd(s, i) == 0 {
		i++
	}
	return i
}

// lineEnd is the length of the \r?\n at i, or 0.
func lineEnd(s string, i int) int {
	switch {
	case i < len(s) && s[i] == '\n':
		return 1
	case i+1 < len(s) && s[i] == '\r' && s[i+1] == '\n':
		return 2
	}
	return 0
}

// scanBloom: ` ?[^(\s|[.,!?…。，、।۔،])]+`, where the brackets are a class inside a class.
func scanBloom(s string, i int) int {
	j := i
	if s[i] == ' ' {
		j++
	}
	end := j
	for end < len(s) {
		c, n := classAt(s, end)
		if c&classS != 0 {
			break
		}
		switch r, _ := utf8.DecodeRuneInString(s[end:]); r {
		case '(', '|', ')', '.', ',', '!', '?', '…', '。', '，', '、', '।', '۔', '،':
			n = 0
		}
		if n == 0 {
			break
		}
		end += n
	}
	if end == j {
		return i
	}
	return end
}

// spaceThen: \s?X+ for the class X, or i.
func spaceThen(s string, i int, x uint16) int {
	if c, n := classAt(s, i); c&classS != 0 {
		if end := runOf(s, i+n, x); end > i+n {
			return end
		}
	}
	return runOf(s, i, x)
}

// scanAsian: [一-龥ࠀ-一가-\ud7ff]+
func scanAsian(s string, i int) int {
	for i < len(s) && s[i] >= 0xe0 {
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r < 0x800 || r > 0x9fa5) && (r < 0xac00 || r > 0xd7ff) {
			break
		}
		i += n
	}
	return i
}

// one is the rune at i, if it has a class of mask; else i.
func one(s string, i int, mask uint16) int {
	if c, n := classAt(s, i); c&mask != 0 {
		return i + n
	}
	return i
}
