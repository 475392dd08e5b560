package tokencheck

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// proven is the keeper of a pool whose ids an engine has proven, without a goroutine.
func proven(t testing.TB) *keeper {
	h := newHouse(Files{Set: smallModel(t, chatml)}, "a")
	h.engine("a", v24, h.pool.Files.Set, settings[0])
	h.config.Log = logr.Discard()
	k := &keeper{
		config: &h.config, namespace: "n", name: "p", pool: &h.pool,
		identities: map[string]identified{}, answers: map[Identity]answers{},
	}
	k.look(t.Context())
	if s := k.read(); s.State != Exact {
		t.Fatalf("the pool is %s: %s", s.State, s.Message)
	}
	return k
}

// TestALookAtTheSameMakesNoPrompts: what was compared is compared again only when files or answers are others. Pools are looked at every
// lookEvery, and a picker can have a thousand.
func TestALookAtTheSameMakesNoPrompts(t *testing.T) {
	k := proven(t)
	same := testing.AllocsPerRun(10, func() { k.look(t.Context()) })
	again := testing.AllocsPerRun(10, func() {
		k.model.compared = comparison{}
		k.look(t.Context())
	})
	if same > again/20 {
		t.Errorf("a look allocates %v times with the same answers, and %v times with others", same, again)
	}
	before := k.model.compared.probes[v24]
	k.answers[v24] = answers{} // as after a doubt: it is asked again
	if k.look(t.Context()); k.model.compared.probes[v24] == before || k.read().State != Exact {
		t.Errorf("new answers were not compared: %+v, %s", k.model.compared.probes, k.read().State)
	}
	k.pool = &Pool{Namespace: "n", Name: "p", Model: "m", Files: Files{Set: modelfiles.Set{}}, Endpoints: k.pool.Endpoints}
	if k.look(t.Context()); k.model.compared.texts != nil || k.published.Texts != nil {
		t.Error("files that have gone are kept")
	}
}

// BenchmarkLook is what a pool costs every lookEvery whose ids are proven, and what it costs with new answers.
func BenchmarkLook(b *testing.B) {
	for name, again := range map[string]bool{"the same": false, "compared again": true} {
		b.Run(name, func(b *testing.B) {
			k := proven(b)
			b.ReportAllocs()
			for b.Loop() {
				if again {
					k.model.compared = comparison{}
				}
				if k.look(b.Context()) > time.Minute {
					b.Fatal("it is not looked at again")
				}
			}
		})
	}
}
