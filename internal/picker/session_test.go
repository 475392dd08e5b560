package picker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// TestSessionsAreHashedWithFNVAndMurmur: FNV-1a of 64 bits and Murmur3's finaliser, by their published test values put
// one after the other.
func TestSessionsAreHashedWithFNVAndMurmur(t *testing.T) {
	for text, want := range map[string]uint64{"": 0xefd01f60ba992926, "a": 0x82a2a958a9bece5b, "foobar": 0x2c22194922d1672b, "session-1": 0xf267abb32d450b1f} {
		if got := endpoint.Hash(text); got != want {
			t.Errorf("%q: %#x, want %#x", text, got, want)
		}
	}
}

// TestRealSessionsSpreadBetterThanOnARing: 512 sessions with names as clients give them, on three pods with names as
// Kubernetes gives them, as requests bring them to a picker, and on a ring of 100 virtual nodes for each pod with the
// same hash; and when a pod goes its own sessions move, and few others.
func TestRealSessionsSpreadBetterThanOnARing(t *testing.T) {
	const sessions, virtual = 512, 100
	hrw, ring, rounds := 0.0, 0.0, 0.0
	for _, pool := range []string{"qwen3-32b", "chat", "m", "llama", "code-7b", "rag", "agents", "gpt-oss-20b"} {
		for _, name := range []string{"session-%d", "user%03d@example.com", "3f6c1a52-9b8e-4c1d-8f7a-%012d"} {
			spec := testSpec(t, 3)
			spec.Policy.Strategy = policy.Default(policy.Rendezvous)
			type node struct {
				at  uint64
				pod string
			}
			var nodes []node
			for i := range spec.Endpoints {
				e := &spec.Endpoints[i]
				e.Pod = fmt.Sprintf("%s-%d", pool, i)
				e.ID.Pod = e.Pod
				for v := range virtual {
					nodes = append(nodes, node{endpoint.Hash(fmt.Sprintf("%s#%d", e.Pod, v)), e.Pod})
				}
			}
			slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.at, b.at) })
			p := newPicker(t, newClock(), spec)
			less := spec
			less.Endpoints = spec.Endpoints[:2]
			without := newPicker(t, newClock(), less)
			byWeight, byRing := map[string]float64{}, map[string]float64{}
			for s := range sessions {
				session := fmt.Sprintf(name, s)
				where := func(p *Picker) string {
					d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":[1]}`), Header: func(h string) string {
						return map[string]string{"x-session-id": session}[h]
					}})
					if err != nil {
						t.Fatal(err)
					}
					defer d.End(Completed)
					return d.Targets[0].Endpoint.Pod
				}
				pod := where(p)
				byWeight[pod]++
				if now := where(without); pod != spec.Endpoints[2].Pod && now != pod {
					t.Fatalf("session %s moves from %s to %s, and %s is the one that went", session, pod, now, spec.Endpoints[2].Pod)
				}
				i, _ := slices.BinarySearchFunc(nodes, endpoint.Hash(session), func(n node, at uint64) int { return cmp.Compare(n.at, at) })
				byRing[nodes[i%len(nodes)].pod]++
			}
			rounds++
			hrw += unevenness(byWeight, 3, sessions)
			ring += unevenness(byRing, 3, sessions)
		}
	}
	t.Logf("coefficient of variation %.3f, of the ring %.3f", hrw/rounds, ring/rounds)
	if hrw > 0.7*ring {
		t.Errorf("coefficient of variation %.3f, that of the ring is %.3f", hrw/rounds, ring/rounds)
	}
}

// unevenness is the coefficient of variation of counts that add up to n in k places.
func unevenness(counts map[string]float64, k int, n float64) float64 {
	mean, sum := n/float64(k), 0.0
	left := k
	for _, c := range counts {
		sum += (c - mean) * (c - mean)
		left--
	}
	sum += float64(left) * mean * mean
	return math.Sqrt(sum/float64(k)) / mean
}

// TestTheStableKeyIsTheSessionWhereClientsGiveNone: model, system prompt and first user message, 256 bytes of each: the
// same through all turns, different if one of them differs, whatever follows behind 256 bytes.
func TestTheStableKeyIsTheSessionWhereClientsGiveNone(t *testing.T) {
	keys := []SessionKey{{Type: "Header", Name: "x-session-id"}, {Type: "BodyField", Name: "user"}, {Type: "Prefix"}}
	of := func(model, extra string, messages ...string) uint64 {
		t.Helper()
		body := []byte(fmt.Sprintf(`{"model":%q,%s"messages":[%s]}`, model, extra, strings.Join(messages, ",")))
		var r openai.Request
		if err := openai.Parse(openai.ChatCompletions, body, &r); err != nil {
			t.Fatal(err)
		}
		return session(keys, nil, body, &r)
	}
	say := func(role, text string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, text) }
	system, user := strings.Repeat("s", 256), strings.Repeat("u", 256)
	turn := []string{say("system", system), say("user", user)}
	first := of("m", "", turn...)
	if first == 0 {
		t.Fatal("there is no session")
	}
	for name, same := range map[string]uint64{
		"the second turn":              of("m", "", append(turn[:2:2], say("assistant", "a"), say("user", "more"))...),
		"what is behind 256 bytes":     of("m", "", say("system", system+"x"), say("user", user+"y")),
		"other settings":               of("m", `"temperature":0.5,"max_tokens":7,`, turn...),
		"the text in parts":            of("m", "", turn[0], fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}]}`, user)),
		"a later turn of the system's": of("m", "", append(turn[:2:2], say("assistant", "a"), say("system", "be brief"), say("user", "more"))...),
	} {
		if same != first {
			t.Errorf("%s: it is another session", name)
		}
	}
	for name, other := range map[string]uint64{
		"another model":         of("n", "", turn...),
		"another system prompt": of("m", "", say("system", "t"+system[1:]), turn[1]),
		"another message":       of("m", "", turn[0], say("user", "v"+user[1:])),
		"no system prompt":      of("m", "", turn[1]),
		"a user of its own":     of("m", `"user":"somebody",`, turn...),
	} {
		if other == first {
			t.Errorf("%s: it is the same session", name)
		}
	}
	if of("m", `"user":"somebody",`, turn...) != endpoint.Hash("somebody") {
		t.Error("the stable key comes before what the client says")
	}
}
