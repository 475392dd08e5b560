package picker

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestEveryClassHasARecordOfItsOwn makes sure that a new token source or kind of request finds its place.
func TestEveryClassHasARecordOfItsOwn(t *testing.T) {
	seen := map[int]class{}
	for source := range numTokenSources {
		for kind := range openai.NumKinds {
			for traits := range numTraits {
				c := class{source: TokenSource(source), kind: openai.Kind(kind), traits: Traits(traits)}
				if !c.matched() {
					continue
				}
				i := c.index()
				if i < 0 || i >= numClasses {
					t.Fatalf("%+v has record %d of %d", c, i, numClasses)
				}
				if other, taken := seen[i]; taken {
					t.Fatalf("%+v and %+v share a record", c, other)
				}
				if seen[i] = c; classAt(i) != c {
					t.Fatalf("record %d is of %+v, not of %+v", i, classAt(i), c)
				}
			}
		}
	}
	if len(seen) != numClasses {
		t.Errorf("%d records for %d classes", numClasses, len(seen))
	}
	for _, source := range []TokenSource{TokensGiven, TokensExact, TokensEngine, TokensTokenize} {
		if !(class{source: source}).matched() {
			t.Errorf("matches by %v are not judged", source)
		}
	}
}
