package admission

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestPartsAreThoseOfASortedList of the arrived targets, each weighing more than the one before: within the width of a
// class, and after targets have changed as soon as the earlier ones weigh next to nothing.
func TestPartsAreThoseOfASortedList(t *testing.T) {
	type target struct{ seconds, weight float64 }
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var s Spread
		var all []target
		weight := 1.0
		for range 1 + rng.IntN(4) { // a mix, and then another
			median, wide := 0.02*math.Exp(3*rng.Float64()), rng.Float64()
			for range often * (1 + rng.IntN(60)) {
				x := min(10, max(shortest.Seconds(), median*math.Exp(wide*rng.NormFloat64())))
				s.Add(time.Duration(x * float64(time.Second)))
				all = append(all, target{x, weight})
				weight *= growth
			}
		}
		made := all[:1+(len(all)-1)/often*often] // parts are made of the first one, and then of every hundred
		if s.fresh > 0 {
			made = all[:len(all)-s.fresh]
		}
		made = slices.Clone(made)
		slices.SortFunc(made, func(a, b target) int { return int(math.Copysign(1, a.seconds-b.seconds)) })
		sum := 0.0
		for _, x := range made {
			sum += x.weight
		}
		parts, below, i := s.Parts(), 0.0, 0
		if len(parts) != numParts || !slices.IsSorted(parts) {
			t.Fatalf("seed %d: %v", seed, parts)
		}
		for j, got := range parts {
			for below+made[i].weight < (float64(j)+0.5)/numParts*sum {
				below += made[i].weight
				i++
			}
			// The next one can be a class away where the list has a gap.
			want, next := made[i].seconds, made[min(i+1, len(made)-1)].seconds
			if g := got.Seconds(); g < want/1.11 || g > next*1.11 {
				t.Errorf("seed %d: part %d of %d targets is %v, of the list %v to %v s", seed, j, len(made), got, want, next)
			}
		}
	}
}

func TestSharesGoFromShortToLong(t *testing.T) {
	var s Spread
	s.Add(0)
	if s.Parts().Share(0, 1) != 0 {
		t.Error("without requests an endpoint has a share")
	}
	for i := range 10 * often {
		s.Add(time.Duration(10+i%90) * time.Millisecond)
	}
	for n := 1; n <= 300; n++ {
		last := time.Duration(0)
		for i := range n {
			share := s.Parts().Share(i, n)
			if share < last || share < 9*time.Millisecond || share > 111*time.Millisecond {
				t.Fatalf("the %d-th of %d endpoints is for %v, the one before for %v", i, n, share, last)
			}
			last = share
		}
	}
}

// TestMoreContextIsNeverBriefer: neither more that decodes nor a longer prompt, a longer target of the request, or a shorter
// one that the endpoint is for let an endpoint take what it else would not.
func TestMoreContextIsNeverBriefer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	for range 10_000 {
		v := load.View{
			InFlight: 1 + rng.IntN(3), Overhead: 0.02 * rng.Float64(), ContextSeconds: 1e-7 * rng.Float64(),
			DecodingTokens: 4e5 * rng.Float64(), PendingContext: 1e5 * rng.Float64(),
		}
		tokens, target, share := rng.IntN(50_000), time.Duration(rng.IntN(1e9)), time.Duration(1+rng.IntN(1e8))
		worse, moreTokens, moreTarget, lessShare := v, tokens, target, share
		switch rng.IntN(5) {
		case 0:
			worse.DecodingTokens *= 2
		case 1:
			worse.PendingContext *= 2
		case 2:
			moreTokens += 1000
		case 3:
			moreTarget *= 2
		case 4:
			lessShare = 1 + share/2
		}
		if !Brief(&v, tokens, target, share) && Brief(&worse, moreTokens, moreTarget, lessShare) {
			t.Fatalf("%+v takes %d tokens for %v, being for %v, but not %+v %d for %v, being for %v", worse, moreTokens, moreTarget, lessShare, v, tokens, target, share)
		}
		worse.InFlight = 0
		if !Brief(&worse, tokens, target, share) || !Brief(&v, tokens, target, 0) {
			t.Fatal("an endpoint that serves nothing, or is for all, is too slow")
		}
	}
}
