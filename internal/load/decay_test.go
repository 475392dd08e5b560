package load

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// TestHalvedIsExp2 to 3 parts in a billion, and never rises by more than that.
func TestHalvedIsExp2(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	check := func(x float64) {
		t.Helper()
		if got, want := halved(x), math.Exp2(-x); math.Abs(got-want) > 3e-9*want {
			t.Fatalf("halved(%v) = %v, want %v", x, got, want)
		}
	}
	for n := range 1000 {
		check(float64(n))
		check(math.Nextafter(float64(n+1), 0))
	}
	for range 100_000 {
		x := rng.Float64() * math.Exp2(float64(rng.IntN(10)))
		check(x)
		if later := x + rng.Float64(); halved(later) > halved(x)*(1+6e-9) {
			t.Fatalf("halved(%v) = %v, and later, at %v, %v", x, halved(x), later, halved(later))
		}
	}
	for _, x := range []float64{1000, 1e9, math.Inf(1), math.NaN()} {
		if got := halved(x); got != 0 {
			t.Errorf("halved(%v) = %v", x, got)
		}
	}
}

func TestDecayedIsExp(t *testing.T) {
	for _, age := range []time.Duration{time.Nanosecond, time.Millisecond, time.Second, 20 * time.Second, time.Hour} {
		want := math.Exp(-age.Seconds() / 20)
		if got := decayed(age, 20*time.Second); math.Abs(got-want) > 1e-8*want {
			t.Errorf("after %v %v is left, want %v", age, got, want)
		}
	}
	if decayed(0, time.Second) != 1 || decayed(-time.Second, time.Second) != 1 {
		t.Error("something decays before its time")
	}
}

// TestReadLeavesNothingBehind of what was in a View before.
func TestReadLeavesNothingBehind(t *testing.T) {
	var tr Tracker
	busy := Report{Running: 3, Waiting: 2, KVUsage: 0.5, KVTokens: 1000, MaxAdapters: 4, Adapters: "a"}
	for step, change := range []func(){
		func() {},
		func() { tr.Book(at(1), WorkOf(1000, 10), true) },
		func() { tr.Observe(at(2), busy) },
		func() { tr.Book(at(2), WorkOf(1000, 10), true).FirstToken(at(2.5)) },
		func() { tr.Book(at(2), WorkOf(1000, 10), true).SetDue(at(50)) },
	} {
		change()
		for _, when := range []float64{2.6, 100} {
			var dirty View
			fields := reflect.ValueOf(&dirty).Elem()
			for i := range fields.NumField() {
				switch f := fields.Field(i); f.Kind() {
				case reflect.Int, reflect.Int64:
					f.SetInt(99)
				case reflect.Float64:
					f.SetFloat(99)
				case reflect.String:
					f.SetString("99")
				default:
				}
			}
			tr.Read(at(when), &dirty)
			if want := tr.View(at(when)); dirty != want {
				t.Errorf("step %d: read %+v into a View that was in use, %+v into a fresh one", step, dirty, want)
			}
		}
	}
}

// TestWhatIsLeftEndsWhateverIsPredicted: a request without further reports is not counted for as long as a speed that was
// learned from nonsense predicts.
func TestWhatIsLeftEndsWhateverIsPredicted(t *testing.T) {
	tr := Tracker{rate: known(1e-6)}
	b := tr.Book(at(0), WorkOf(1000, 0), true)
	if prefill := b.Leave(at(0), 100); prefill != leftLife {
		t.Errorf("the prefill is to take %v", prefill)
	}
	if v := tr.View(at(leftLife.Seconds() + 1)); v.InFlight != 1 || v.Decoding != 1 {
		t.Errorf("after its prefill: %+v", v)
	}
	if v := tr.View(at(leftLife.Seconds() + 3)); v.InFlight != 0 {
		t.Errorf("after its end %d are in flight", v.InFlight)
	}
}
