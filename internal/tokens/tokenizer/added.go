package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before anything else happens to it.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// addedTrie finds added tokens, the leftmost first and of those the longest.
type addedTrie struct {
	first [256]int32 // node of a first byte; 0 for none
	begin byteSet    // the first bytes
	only  int        // the one byte that all begin with, or -1
	nodes []trieNode // the first is none
}

// trieNode is a byte that follows those of its parents.
type trieNode struct {
	child, sibling int32 // 0 for none
	token          int32 // index of the added token that ends here, or -1
	b              byte
}

func newAddedTrie() *addedTrie {
	return &addedTrie{only: -1, nodes: make([]trieNode, 1)}
}

// add takes the token with the given index; the last one of equal contents counts.
func (a *addedTrie) add(content string, token int32) {
	if len(a.nodes) == 1 {
		a.only = int(content[0])
	} else if a.only != int(content[0]) {
		a.only = -1
	}
	a.begin[content[0]] = 1
	at := &a.first[content[0]]
	for i := range len(content) {
		for *at != 0 && a.nodes[*at].b != content[i] {
			at = &a.nodes[*at].sibling
		}
		if *at == 0 {
			*at = int32(len(a.nodes))
			node := *at
			a.nodes = append(a.nodes, trieNode{token: -1, b: content[i]}) // at might now point into the old nodes
			if i+1 < len(content) {
				at = &a.nodes[node].child
				continue
			}
			a.nodes[node].token = token
			return
		}
		if i+1 == len(content) {
			a.nodes[*at].token = token
			return
		}
		at = &a.nodes[*at].child
	}
}

// match is the longest token that begins at s[i]; token is -1 when there is none.
func (a *addedTrie) match(s string, i int) (end int, token int32) {
	token = -1
	node := a.first[s[i]]
	for node != 0 {
		n := &a.nodes[node]
		if n.token >= 0 {
			end, token = i+1, n.token
		}
		if i++; i == len(s) {
			break
		}
		for node = n.child; node != 0 && a.nodes[node].b != s[i]; {
			node = a.nodes[node].sibling
		}
	}
	return end, token
}

// find is the first token of trie at or behind from; beg is -1 when there is none, or the context has ended.
func (e *encoder) find(trie *addedTrie, s string, from int) (beg, end int, token int32) {
	for i := from; i < len(s); {
		limit := min(i+checkBytes, len(s))
		start := i
		for i = trie.maybe(s, i, limit); i < limit; i = trie.maybe(s, i+1, limit) {
			if end, token := trie.match(s, i); token >= 0 {
				return i, end, token
			}
		}
		if e.spend((i - start) >> 3) { // much cheaper than encoding
			break
		}
	}
	return -1, 0, -1
}

// maybe is the first place from i on, and before limit, where a token could begin; else limit.
func (a *addedTrie) maybe(s string, i, limit int) int {
	if a.only >= 0 {
		if n := strings.IndexByte(s[i:limit], byte(a.only)); n >= 0 {
			return i + n
		}
		return limit
	}
	return a.begin.next(s, i, limit)
}

// cut appends the ids of the added tokens of s and hands what is between them to rest.
func (e *encoder) cut(trie *addedTrie, s string, rest func(*encoder, string)) {
	if trie == nil {
		rest(e, s)
		return
	}
	at := e.at
	start, from := 0, 0
	for e.err == nil {
		beg, end, token := e.find(trie, s, from)
		if beg < 0 {
			break
		}
		from = end
		a := &e.t.added[token]
		if a.SingleWord && (endsWithWord(s[:beg]) || beginsWithWord(s[end:])) {
			continue
		}
		if a.LStrip {
			beg = max(len(strings.TrimRightFunc(s[:beg], isSpace)), start)
		}
		if a.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], isSpace))
		}
		if start < beg {
			rest(e, s[start:beg])
		}
		e.out = append(e.out, a.ID)
		e.at = atPiece
		start = end
	}
	if start < len(s) && e.err == nil {
		rest(e, s[start:])
	}
	e.at = at
}

func isSpace(r rune) bool { return classPages[r>>8][r&255]&classS != 0 }

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func beginsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w as in Unicode's UTS 18: letters, marks, decimal digits, connectors, joiners.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
