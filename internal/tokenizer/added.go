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
	first [256]bool
	only  int              // the one byte that all begin with, or -1
	next  map[uint32]int32 // node<<8 | byte to node
	token []int32          // by node: index of the added token that ends there, or -1
}

func newAddedTrie() *addedTrie {
	return &addedTrie{only: -1, next: map[uint32]int32{}, token: []int32{-1}}
}

// add takes the token with the given index; the last one of equal contents counts.
func (a *addedTrie) add(content string, token int32) {
	if len(a.token) == 1 {
		a.only = int(content[0])
	} else if a.only != int(content[0]) {
		a.only = -1
	}
	a.first[content[0]] = true
	node := int32(0)
	for i := range len(content) {
		edge := uint32(node)<<8 | uint32(content[i])
		child, ok := a.next[edge]
		if !ok {
			child = int32(len(a.token))
			a.token = append(a.token, -1)
			a.next[edge] = child
		}
		node = child
	}
	a.token[node] = token
}

// find is the first token at or behind from; beg is -1 when there is none.
func (a *addedTrie) find(s string, from int) (beg, end int, token int32) {
	for i := from; i < len(s); i++ {
		if a.only >= 0 {
			n := strings.IndexByte(s[i:], byte(a.only))
			if n < 0 {
				break
			}
			i += n
		} else if !a.first[s[i]] {
			continue
		}
		token := int32(-1)
		node := int32(0)
		for j := i; j < len(s); j++ {
			child, ok := a.next[uint32(node)<<8|uint32(s[j])]
			if !ok {
				break
			}
			if node = child; a.token[node] >= 0 {
				end, token = j+1, a.token[node]
			}
		}
		if token >= 0 {
			return i, end, token
		}
	}
	return -1, 0, -1
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
		beg, end, token := trie.find(s, from)
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
