package circuit

import (
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"testing"
)

// plainAlike is the obvious way to find the bytes that writeAlike hashes.
func plainAlike(text []byte, inArray bool) ([]byte, bool) {
	var kept []byte
	for _, c := range string(text) {
		space := strings.ContainsRune(" \t\r\n", c)
		inArray = c == '[' || inArray && (space || strings.ContainsRune("0123456789,", c))
		varies := space || strings.ContainsRune("0123456789abcdefABCDEF-", c)
		if !varies || inArray && !space {
			kept = append(kept, byte(c))
		}
	}
	return kept, inArray
}

func TestMarksHashWhatDistinguishesRequests(t *testing.T) {
	seed, random := maphash.MakeSeed(), rand.New(rand.NewPCG(1, 2))
	const alphabet = "0189afAFgz-_ \t\n[],\"{}:"
	for range 5000 {
		text := make([]byte, random.IntN(markEdge+1))
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		inArray := random.IntN(2) == 1
		var got, want maphash.Hash
		got.SetSeed(seed)
		want.SetSeed(seed)
		gotIn := writeAlike(&got, text, inArray)
		kept, wantIn := plainAlike(text, inArray)
		_, _ = want.Write(kept)
		if got.Sum64() != want.Sum64() || gotIn != wantIn {
			t.Fatalf("%q, in an array: %v", text, inArray)
		}
	}
}

func BenchmarkMark(b *testing.B) {
	s := NewSuspects()
	random, body := rand.New(rand.NewPCG(1, 2)), []byte(`{"messages":[{"role":"user","content":"`)
	for len(body) < 2<<10 {
		body = append(body, "etaoin shrdlu 0123456789-, cmfwyp"[random.IntN(33)])
	}
	for b.Loop() {
		s.Mark("POST", "/v1/chat/completions", "", body)
	}
}
