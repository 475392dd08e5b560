package chattemplate

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the type of a token. Operators are their own text.
type tokenKind uint8

const (
	tokenEOF tokenKind = iota
	tokenData
	tokenVariable    // {{
	tokenVariableEnd // }}
	tokenBlock       // {%
	tokenBlockEnd    // %}
	tokenName
	tokenString
	tokenInteger
	tokenFloat
	tokenOperator
)

// token is a piece of a source. text is the value: of a string its content, of a number its digits.
type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokenEOF:
		return "end of template"
	case tokenData:
		return "template data"
	case tokenVariable, tokenVariableEnd:
		return "print statement"
	case tokenBlock, tokenBlockEnd:
		return "statement block"
	}
	return strconv.Quote(t.text)
}

// lexer splits a source into tokens, as Jinja does with trim_blocks and lstrip_blocks on.
type lexer struct {
	src    string
	at     int
	tokens []token
	// lineStart: what was read last ended a line.
	lineStart bool
	// line of counted, for messages.
	line, counted int
	braces        []byte // open ones of the expression
	err           error
}

func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func trimLeft(s string) string  { return strings.TrimLeftFunc(s, isSpace) }
func trimRight(s string) string { return strings.TrimRightFunc(s, isSpace) }

// lex reads an entire source.
func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, lineStart: true, line: 1}
	for l.at < len(l.src) && l.err == nil {
		l.data()
	}
	l.add(tokenEOF, "")
	return l.tokens, l.err
}

func (l *lexer) fail(msg string) {
	if l.err == nil {
		l.err = &SyntaxError{Line: l.lineAt(l.at), Msg: msg}
	}
}

// lineAt counts on: positions must grow.
func (l *lexer) lineAt(at int) int {
	at = min(at, len(l.src))
	if at > l.counted {
		l.line += strings.Count(l.src[l.counted:at], "\n")
		l.counted = at
	}
	return l.line
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.lineAt(l.at)})
}

func (l *lexer) addData(text string) {
	if text != "" {
		l.add(tokenData, text)
	}
}

// next reports whether the source continues with s, and skips it if so.
func (l *lexer) next(s string) bool {
	if strings.HasPrefix(l.src[l.at:], s) {
		l.at += len(s)
		return true
	}
	return false
}

func (l *lexer) skipSpace() { l.at = len(l.src) - len(trimLeft(l.src[l.at:])) }

// findTag is the position of the next {{, {% or {#.
func (l *lexer) findTag() int {
	for k := l.at; ; k++ {
		n := strings.IndexByte(l.src[k:], '{')
		if n < 0 || k+n+1 >= len(l.src) {
			return len(l.src)
		}
		k += n
		if c := l.src[k+1]; c == '{' || c == '%' || c == '#' {
			return k
		}
	}
}

// data reads the text up to the next tag, and that tag.
func (l *lexer) data() {
	tag := l.findTag()
	text := l.src[l.at:tag]
	if tag == len(l.src) {
		l.at = tag
		l.addData(text)
		return
	}
	kind := l.src[tag+1]
	l.addData(l.stripped(text, tag+2, kind != '{'))
	l.at = tag + 2
	if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+') {
		l.at++
	}
	switch {
	case kind == '#':
		l.comment()
	case kind == '%' && l.raw():
	case kind == '%':
		l.expression(tokenBlock, tokenBlockEnd)
	default:
		l.expression(tokenVariable, tokenVariableEnd)
	}
	if l.at > 0 {
		l.lineStart = l.src[l.at-1] == '\n'
	}
}

// stripped is a text without the white space that the tag behind it removes: all of it if there is a minus sign, whose
// position would be sign; with lstrip, the white space between the line's start and the tag.
func (l *lexer) stripped(text string, sign int, lstrip bool) string {
	if sign < len(l.src) {
		switch l.src[sign] {
		case '-':
			return trimRight(text)
		case '+':
			return text
		}
	}
	if !lstrip {
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.lineStart) && trimLeft(text[start:]) == "" {
		return text[:start]
	}
	return text
}

// afterTag skips what the end of a tag removes: all white space for a minus sign, one line break without.
func (l *lexer) afterTag(sign byte) {
	switch sign {
	case '-':
		l.skipSpace()
	case 0:
		l.next("\n")
	}
}

// signBefore returns the sign before position i, 0 if there is none; it must be behind from.
func (l *lexer) signBefore(i, from int) byte {
	if i > from && (l.src[i-1] == '-' || l.src[i-1] == '+') {
		return l.src[i-1]
	}
	return 0
}

func (l *lexer) comment() {
	if l.at == len(l.src) {
		return // as in Jinja
	}
	n := strings.Index(l.src[l.at:], "#}")
	if n < 0 {
		l.fail("Missing end of comment tag")
		return
	}
	end := l.at + n
	sign := l.signBefore(end, l.at)
	l.at = end + 2
	l.afterTag(sign)
}

// raw reads a raw block, if the tag begins one.
func (l *lexer) raw() bool {
	start := l.at
	l.skipSpace()
	if !l.next("raw") {
		l.at = start
		return false
	}
	l.skipSpace()
	switch {
	case l.next("-%}"):
		l.skipSpace()
	case l.next("%}"):
	default:
		l.at = start
		return false
	}
	body := l.at
	for l.at < len(l.src) { // Jinja lets an empty one go without an end
		n := strings.Index(l.src[l.at:], "{%")
		if n < 0 {
			l.fail("Missing end of raw directive")
			return true
		}
		tag := l.at + n
		l.at = tag + 2
		if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+') {
			l.at++
		}
		l.skipSpace()
		if !l.next("endraw") {
			l.at = tag + 1
			continue
		}
		l.skipSpace()
		sign := byte(0)
		if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+') {
			sign = l.src[l.at]
			l.at++
		}
		if !l.next("%}") {
			l.at = tag + 1
			continue
		}
		end := l.at
		l.lineStart = body > 0 && l.src[body-1] == '\n'
		l.at = body
		l.addData(l.stripped(l.src[body:tag], tag+2, true))
		l.at = end
		l.afterTag(sign)
		return true
	}
	return true
}

// expression reads the content of a tag, and its end.
func (l *lexer) expression(begin, end tokenKind) {
	l.add(begin, "")
	l.braces = l.braces[:0]
	for l.err == nil {
		l.skipSpace()
		if l.at >= len(l.src) {
			l.fail("unexpected end of template")
			return
		}
		if len(l.braces) == 0 && l.endTag(end) {
			return
		}
		l.token()
	}
}

func (l *lexer) endTag(end tokenKind) bool {
	start := l.at
	if end == tokenVariableEnd {
		minus := l.next("-")
		if l.next("}}") {
			l.add(end, "")
			if minus {
				l.skipSpace()
			}
			return true
		}
		l.at = start
		return false
	}
	sign := byte(0)
	if c := l.src[l.at]; c == '-' || c == '+' {
		sign = c
		l.at++
	}
	if l.next("%}") {
		l.add(end, "")
		l.afterTag(sign)
		return true
	}
	l.at = start
	return false
}

// operators, longest first.
var operators = []string{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

func (l *lexer) token() {
	c := l.src[l.at]
	switch {
	case c-'0' <= 9:
		l.number()
	case c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= utf8.RuneSelf:
		l.name()
	case c == '"' || c == '\'':
		l.string()
	default:
		for _, op := range operators {
			if l.next(op) {
				l.operator(op)
				return
			}
		}
		l.fail("unexpected char " + strconv.QuoteRune(rune(c)))
	}
}

func (l *lexer) operator(op string) {
	switch op {
	case "(", "[", "{":
		l.braces = append(l.braces, closing(op[0]))
	case ")", "]", "}":
		n := len(l.braces)
		if n == 0 || l.braces[n-1] != op[0] {
			l.fail("unexpected '" + op + "'")
			return
		}
		l.braces = l.braces[:n-1]
	}
	l.add(tokenOperator, op)
}

// closing is the brace that closes open.
func closing(open byte) byte {
	switch open {
	case '(':
		return ')'
	case '[':
		return ']'
	}
	return '}'
}

func (l *lexer) name() {
	start := l.at
	for l.at < len(l.src) {
		r, size := utf8.DecodeRuneInString(l.src[l.at:])
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			if r >= utf8.RuneSelf && l.at == start {
				l.fail("unexpected char " + strconv.QuoteRune(r))
				return
			}
			break
		}
		l.at += size
	}
	for _, c := range []byte(l.src[start:l.at]) {
		if c >= utf8.RuneSelf && l.err == nil {
			l.err = unsupported("names beyond ASCII")
		}
	}
	l.add(tokenName, l.src[start:l.at])
}

// run skips digits of one kind with single underscores between them, and reports whether there was one.
func (l *lexer) run(digit func(c byte) bool) bool {
	start := l.at
	for l.at < len(l.src) {
		c := l.src[l.at]
		if c == '_' && l.at > start && l.at+1 < len(l.src) && digit(l.src[l.at+1]) {
			l.at++
			continue
		}
		if !digit(c) {
			break
		}
		l.at++
	}
	return l.at > start
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// number reads an integer or a float. A point that no digit follows is not part of it.
func (l *lexer) number() {
	start := l.at
	if l.src[start] == '0' && l.at+1 < len(l.src) && strings.IndexByte("bBoOxX", l.src[l.at+1]) >= 0 {
		l.err = unsupported("numbers in other bases than ten")
		return
	}
	l.run(isDigit)
	kind := tokenInteger
	if l.at+1 < len(l.src) && l.src[l.at] == '.' && isDigit(l.src[l.at+1]) && (start == 0 || l.src[start-1] != '.') {
		kind = tokenFloat
		l.at++
		l.run(isDigit)
	}
	if mark := l.at; l.at < len(l.src) && l.src[l.at]|0x20 == 'e' {
		l.at++
		if l.at < len(l.src) && (l.src[l.at] == '+' || l.src[l.at] == '-') {
			l.at++
		}
		if l.run(isDigit) {
			kind = tokenFloat
		} else {
			l.at = mark
		}
	}
	text := strings.ReplaceAll(l.src[start:l.at], "_", "")
	if kind == tokenInteger && text[0] == '0' && strings.Trim(text, "0") != "" {
		l.fail("a whole number begins with 0")
		return
	}
	l.add(kind, text)
}
