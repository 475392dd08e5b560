package tokenizer

import "unicode/utf8"

// The scanners here are the splitting expressions by hand. Each alternative is tried in the expression's order; what it
// matches is as long as the expression's own backtracking would make it. The comments quote the alternative.

// scanGPT2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func scanGPT2(s string, i int) int {
	if s[i] == '\'' && i+1 < len(s) {
		two := s[i+1 : min(i+3, len(s))]
		switch {
		case two[0] == 's', two[0] == 't', two[0] == 'm', two[0] == 'd':
			return i + 2
		case two == "re", two == "ve", two == "ll":
			return i + 3
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	c, n := classAt(s, j)
	switch {
	case c&classL != 0:
		return runOf(s, j+n, classL)
	case c&classN != 0:
		return runOf(s, j+n, classN)
	case c&classS == 0:
		return runNotOf(s, j+n, classS|classL|classN)
	}
	return spaces(s, i, false)
}

// scanCL100K: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
func scanCL100K(s string, i, most int) int {
	c, n := classAt(s, i)
	switch {
	case c&classL != 0:
		return runOf(s, i+n, classL)
	case c&classN != 0:
		return digits(s, i, most)
	}
	if end := contraction(s, i); end > i {
		return end
	}
	if c&classNL == 0 && i+n < len(s) {
		if c, m := classAt(s, i+n); c&classL != 0 {
			return runOf(s, i+n+m, classL)
		}
	}
	if end := punctuation(s, i, c, n, false); end > i {
		return end
	}
	return spaces(s, i, true)
}

// scanO200K, where U is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W is [\p{Ll}\p{Lm}\p{Lo}\p{M}], and C is a contraction, which
// tekken does not have: [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
func scanO200K(s string, i, most int, contracts bool) int {
	c, n := classAt(s, i)
	end := i
	prefix := c&(classL|classN|classNL) == 0
	if prefix {
		end = upperLower(s, i+n, i)
	}
	if end == i && c&(classUp|classLo) != 0 {
		end = upperLower(s, i, i)
	}
	if end == i && prefix {
		if j := runOf(s, i+n, classUp); j > i+n {
			end = runOf(s, j, classLo)
		}
	}
	if end == i && c&classUp != 0 {
		end = runOf(s, runOf(s, i, classUp), classLo)
	}
	switch {
	case end > i && contracts:
		return contraction(s, end)
	case end > i:
		return end
	case c&classN != 0:
		return digits(s, i, most)
	}
	if end := punctuation(s, i, c, n, true); end > i {
		return end
	}
	return spaces(s, i, true)
}

// upperLower is the end of the U*W+ at p, or none. Where no W follows the U*, the expression steps back to the last
// rune that is both.
func upperLower(s string, p, none int) int {
	both := none
	for p < len(s) {
		c, n := classAt(s, p)
		if c&classUp == 0 {
			if c&classLo != 0 {
				return runOf(s, p+n, classLo)
			}
			break
		}
		p += n
		if c&classLo != 0 {
			both = p
		}
	}
	return both
}

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

// scanDeepSeek: [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func scanDeepSeek(s string, i int) int {
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
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	if c&classS != 0 {
		return spaces(s, i, true)
	}
	return i
}

// contraction: (?i:'s|'t|'re|'ve|'m|'ll|'d), or i. Without case, s is also U+017F.
func contraction(s string, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	switch s[i+1] {
	case 's', 'S', 't', 'T', 'm', 'M', 'd', 'D':
		return i + 2
	}
	if i+2 >= len(s) {
		return i
	}
	if s[i+1] == 0xc5 && s[i+2] == 0xbf {
		return i + 3
	}
	if !isASCIILetter(s[i+1]) || !isASCIILetter(s[i+2]) {
		return i
	}
	switch [2]byte{s[i+1] | 0x20, s[i+2] | 0x20} {
	case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
		return i + 3
	}
	return i
}

func isASCIILetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// digits: \p{N}{1,most}, or i.
func digits(s string, i, most int) int {
	for range most {
		if i == len(s) {
			break
		}
		c, n := classAt(s, i)
		if c&classN == 0 {
			break
		}
		i += n
	}
	return i
}

// punctuation: ` ?[^\s\p{L}\p{N}]+[\r\n]*`, or i; with slashes `[\r\n/]*` at the end. c and n are the class and size of
// the rune at i.
func punctuation(s string, i int, c uint8, n int, slashes bool) int {
	j := i
	if s[i] == ' ' {
		j++
		if j == len(s) {
			return i
		}
		c, n = classAt(s, j)
	}
	if c&(classS|classL|classN) != 0 {
		return i
	}
	j = runNotOf(s, j+n, classS|classL|classN)
	for j < len(s) && (s[j] == '\r' || s[j] == '\n' || slashes && s[j] == '/') {
		j++
	}
	return j
}

// spaces: \s*[\r\n]+|\s+(?!\S)|\s+, the first alternative only with lines. The rune at i must be a space.
func spaces(s string, i int, lines bool) int {
	end, beforeLast, line := i, i, i
	for end < len(s) {
		c, n := classAt(s, end)
		if c&classS == 0 {
			break
		}
		beforeLast = end
		end += n
		if c&classNL != 0 {
			line = end
		}
	}
	switch {
	case lines && line > i:
		return line
	case end == len(s) || beforeLast == i:
		return end
	}
	return beforeLast
}
