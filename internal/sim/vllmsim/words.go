package vllmsim

import (
	"fmt"
	"strconv"
	"strings"
)

// Text turns text into token ids and back. Implementations are safe for many goroutines.
type Text interface {
	// Encode appends the tokens of text to dst; special adds the tokens that a prompt begins or ends with.
	Encode(dst []uint32, text string, special bool) ([]uint32, error)
	// Decode is the text of ids; it accepts any.
	Decode(ids []uint32) string
}

// Words is a tokenizer without a vocabulary file. It cuts text into runs of letters and digits of at most maxRun bytes,
// each with the one space before it, and single other bytes, and hashes each piece to an id below WordsVocabulary. The
// chat markers, made-up words of three syllables (" banilo") and pieces of the form " t123" have ids of their own, so that
// generated text, which consists of the made-up words, tokenizes back to the ids it was generated from. Cutting does not
// depend on anything but the text around a cut, so that a longer text begins with the tokens of its beginning if that ends
// in a line break or a marker.
type Words struct{}

const (
	// WordsVocabulary is the number of ids of Words.
	WordsVocabulary = 128_000
	firstWord       = 1000 // ids below are markers; those of generated words begin here, and so do those of hashed pieces
	maxRun          = 12
)

// syllables make the words that are generated, three each. No two begin with the same letter.
const syllables = "badefigohakelimonaperisotavewizu"

// markers are the special tokens of Words; their index is their id.
var markers = []string{imStart, imEnd}

const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>"
)

// Encode implements Text; there are no tokens that a prompt begins or ends with. It cannot fail.
func (Words) Encode(dst []uint32, text string, _ bool) ([]uint32, error) {
	for len(text) > 0 {
		if id, n := marker(text); n > 0 {
			dst, text = append(dst, id), text[n:]
			continue
		}
		n := pieceLen(text)
		dst, text = append(dst, pieceID(text[:n])), text[n:]
	}
	return dst, nil
}

func marker(text string) (id uint32, n int) {
	if text[0] != '<' {
		return 0, 0
	}
	for i, m := range markers {
		if strings.HasPrefix(text, m) {
			return uint32(i), len(m)
		}
	}
	return 0, 0
}

// pieceLen is the length of the first piece of a text that begins with no marker.
func pieceLen(text string) int {
	n := 0
	if text[0] == ' ' {
		n = 1
	}
	run := n
	for run < len(text) && run-n < maxRun && isWord(text[run]) {
		run++
	}
	if run > n {
		return run
	}
	return 1
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 || c == '_'
}

func pieceID(piece string) uint32 {
	if digits, ok := strings.CutPrefix(piece, " t"); ok && digits != "" && digits[0] != '0' && len(digits) < 7 {
		if id, err := strconv.ParseUint(digits, 10, 32); err == nil && id < WordsVocabulary {
			return uint32(id)
		}
	}
	if id, ok := generatedID(piece); ok {
		return id
	}
	h := uint64(0xcbf29ce484222325)
	for i := range len(piece) {
		h = (h ^ uint64(piece[i])) * 0x100000001b3
	}
	return uint32(firstWord + (h^h>>32)%(WordsVocabulary-firstWord))
}

// generatedID is the id of a made-up word, with the space before it.
func generatedID(piece string) (id uint32, ok bool) {
	if len(piece) != 7 || piece[0] != ' ' {
		return 0, false
	}
	for at := 1; at < len(piece); at += 2 {
		i := strings.Index(syllables, piece[at:at+2])
		if i < 0 || i%2 != 0 {
			return 0, false
		}
		id = id<<4 | uint32(i/2)
	}
	return firstWord + id, true
}

// appendGenerated appends the made-up word of an id, with the space before it.
func appendGenerated(b []byte, id uint32) []byte {
	b = append(b, ' ')
	for shift := 8; shift >= 0; shift -= 4 {
		i := 2 * ((id - firstWord) >> shift & 15)
		b = append(b, syllables[i:i+2]...)
	}
	return b
}

// Decode implements Text: a hashed piece cannot be recovered and is returned as a made-up word or as " t" and its id.
func (Words) Decode(ids []uint32) string {
	b := make([]byte, 0, 7*len(ids))
	for _, id := range ids {
		if int(id) < len(markers) {
			b = append(b, markers[id]...)
			continue
		}
		if id >= firstWord && id < firstWord+paletteSize {
			b = appendGenerated(b, id)
			continue
		}
		b = strconv.AppendUint(append(b, " t"...), uint64(id), 10)
	}
	return string(b)
}

// paletteSize is how many different words are generated: all that three syllables make.
const paletteSize = 4096

// Palette finds ids below limit whose text is a lower-case word that tokenizes back to the one id: what is generated
// from them tokenizes to itself.
func Palette(text Text, limit uint32) ([]uint32, error) {
	if _, ok := text.(Words); ok {
		out := make([]uint32, paletteSize)
		for i := range out {
			out[i] = uint32(firstWord + i)
		}
		return out, nil
	}
	var out []uint32
	for id := uint32(0); id < limit && len(out) < paletteSize; id++ {
		word := text.Decode([]uint32{id})
		if !lowerWord(word) {
			continue
		}
		back, err := text.Encode(nil, word, false)
		if err != nil {
			return nil, fmt.Errorf("tokenizing %q: %w", word, err)
		}
		if len(back) == 1 && back[0] == id {
			out = append(out, id)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the tokenizer has no word among its first %d ids", limit)
	}
	return out, nil
}

// lowerWord accepts a space and two or more letters.
func lowerWord(s string) bool {
	if len(s) < 3 || s[0] != ' ' {
		return false
	}
	for i := 1; i < len(s); i++ {
		if s[i] < 'a' || s[i] > 'z' {
			return false
		}
	}
	return true
}
