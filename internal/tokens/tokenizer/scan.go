package tokenizer

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

// cl100k are the differences inside the cl100k family.
type cl100k struct {
	digits  int    // \p{N}{1,digits}
	letters uint16 // the class of letters
	glued   bool   // punctuation takes line ends behind it
}

// scan: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
func (f cl100k) scan(s string, i int) int {
	c, n := classAt(s, i)
	switch {
	case c&f.letters != 0:
		return runOf(s, i+n, f.letters)
	case c&classN != 0:
		return digits(s, i, f.digits)
	}
	if end := contraction(s, i); end > i {
		return end
	}
	if c&classNL == 0 && i+n < len(s) {
		if c, m := classAt(s, i+n); c&f.letters != 0 {
			return runOf(s, i+n+m, f.letters)
		}
	}
	if end := punctuation(s, i, classS|classN|f.letters); end > i {
		if f.glued {
			end = lineEnds(s, end, false)
		}
		return end
	}
	return spaces(s, i, true)
}

// o200k are the differences inside the o200k family.
type o200k struct {
	digits    int  // \p{N}{1,digits}
	contracts bool // words end with C?
	slashes   bool // punctuation takes slashes behind it too, not only line ends
	han       bool // [\p{Han}]+ is the first alternative, and U and W have no Han
}

// scan, where U is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W is [\p{Ll}\p{Lm}\p{Lo}\p{M}], and C is a contraction:
// [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
func (f o200k) scan(s string, i int) int {
	c, n := classAt(s, i)
	if f.han && c&classHan != 0 {
		return runOf(s, i+n, classHan)
	}
	end := i
	prefix := c&(classL|classN|classNL) == 0
	if prefix {
		end = f.upperLower(s, i+n, i)
	}
	if end == i && c&(classUp|classLo) != 0 {
		end = f.upperLower(s, i, i)
	}
	if end == i && prefix {
		if j := f.runOf(s, i+n, classUp); j > i+n {
			end = f.runOf(s, j, classLo)
		}
	}
	if end == i && c&classUp != 0 {
		end = f.runOf(s, f.runOf(s, i, classUp), classLo)
	}
	switch {
	case end > i && f.contracts:
		return contraction(s, end)
	case end > i:
		return end
	case c&classN != 0:
		return digits(s, i, f.digits)
	}
	if end := punctuation(s, i, classS|classL|classN); end > i {
		return lineEnds(s, end, f.slashes)
	}
	return spaces(s, i, true)
}

// runOf is runOf without Han where the family leaves it out.
func (f o200k) runOf(s string, i int, mask uint16) int {
	if !f.han {
		return runOf(s, i, mask)
	}
	for i < len(s) {
		c, n := classAt(s, i)
		if c&mask == 0 || c&classHan != 0 {
			break
		}
		i += n
	}
	return i
}

// upperLower is the end of the U*W+ at p, or none. Where no W follows the U*, the expression steps back to the last
// rune that is both.
func (f o200k) upperLower(s string, p, none int) int {
	both := none
	for p < len(s) {
		c, n := classAt(s, p)
		if f.han && c&classHan != 0 {
			break
		}
		if c&classUp == 0 {
			if c&classLo != 0 {
				return f.runOf(s, p+n, classLo)
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

// punctuation: ` ?[^not]+`, or i.
func punctuation(s string, i int, not uint16) int {
	j := i
	if s[i] == ' ' {
		j++
	}
	if end := runNotOf(s, j, not); end > j {
		return end
	}
	return i
}

// lineEnds: [\r\n]*, or [\r\n/]* with slashes.
func lineEnds(s string, i int, slashes bool) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || slashes && s[i] == '/') {
		i++
	}
	return i
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
