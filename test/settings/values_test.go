package settings

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// synonyms are pairs of values that have the same effect by design, by their field, with the reason.
var synonyms = map[string]string{}

// TestEveryValueOfAnEnumHasAnEffectOfItsOwn: two values of a field that are both admitted in a base make a difference in one. Values
// that no base admits in place of each other need other fields beside them, which have effects of their own.
func TestEveryValueOfAnEnumHasAnEffectOfItsOwn(t *testing.T) {
	t.Parallel()
	list := admittedBases(t)
	unused := maps.Clone(synonyms)
	compared := 0
	for _, f := range fields(t) {
		_, acted := actedOn[f.String()]
		if _, not := without[f.String()]; acted || not || len(f.schema.Enum) < 2 {
			continue
		}
		for pair, same := range comparisons(t, f, list) {
			compared++
			key := f.String() + ": " + pair
			_, listed := synonyms[key]
			delete(unused, key)
			switch {
			case same && !listed:
				t.Errorf("%s have the same effect in every base. Let a program act on the difference, or remove one", key)
			case !same && listed:
				t.Errorf("%s are listed as synonyms and differ", key)
			}
		}
	}
	for key := range unused {
		t.Errorf("%s are listed as synonyms and were not compared", key)
	}
	if compared < 20 {
		t.Errorf("only %d pairs of values were compared", compared)
	}
}

// comparisons are the pairs of an enum's values that a base admits, and whether their effects are the same in all bases.
func comparisons(t *testing.T, f field, list []base) map[string]bool {
	t.Helper()
	same := map[string]bool{}
	for i := range list {
		at, ok := f.in(&list[i])
		if !ok {
			continue
		}
		effects := map[string]string{}
		for _, raw := range f.schema.Enum {
			value := enumValue(t, raw.Raw)
			if after, err := at.effectsWith(t, value); err == nil {
				effects[fmt.Sprint(value)] = after
			}
		}
		values := slices.Sorted(maps.Keys(effects))
		for a, first := range values {
			for _, second := range values[a+1:] {
				pair := fmt.Sprintf("%s and %s", first, second)
				before, known := same[pair]
				same[pair] = (before || !known) && effects[first] == effects[second]
			}
		}
	}
	return same
}
