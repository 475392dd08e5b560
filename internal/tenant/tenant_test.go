package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func mustParse(t *testing.T, name, value string) Entry {
	t.Helper()
	e, err := Parse(name, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestATenantIsFoundByEachOfItsKeys(t *testing.T) {
	acme := mustParse(t, "acme", fmt.Sprintf(`{"class":"gold","sha256":[%q,%q]}`, hashed("k1"), hashed("k2")))
	other := mustParse(t, "other", fmt.Sprintf(`{"sha256":[%q]}`, hashed("k3")))
	d, conflicts := NewDirectory([]Entry{acme, other})
	if len(conflicts) > 0 || d.Len() != 2 {
		t.Fatalf("conflicts %v, %d tenants", conflicts, d.Len())
	}
	for key, want := range map[string]string{"k1": "acme", "k2": "acme", "k3": "other"} {
		if e, ok := d.ByKey(key); !ok || e.Name != want {
			t.Errorf("key %s is %v, want %s", key, e, want)
		}
	}
	for _, key := range []string{"", "k", "k1 ", hashed("k1")} {
		if e, ok := d.ByKey(key); ok {
			t.Errorf("key %q is %s's", key, e.Name)
		}
	}
	if e, ok := d.ByName("acme"); !ok || e.Class != "gold" {
		t.Errorf("acme is %v", e)
	}
	if _, ok := (*Directory)(nil).ByKey("k1"); ok {
		t.Error("the empty directory knows somebody")
	}
}

func TestConflictsAreToldAndTheFirstCounts(t *testing.T) {
	a := mustParse(t, "a", fmt.Sprintf(`{"sha256":[%q]}`, hashed("k")))
	b := mustParse(t, "b", fmt.Sprintf(`{"sha256":[%q]}`, hashed("k")))
	d, conflicts := NewDirectory([]Entry{a, b, a})
	if len(conflicts) != 2 || strings.Contains(strings.Join(conflicts, ""), hashed("k")) {
		t.Errorf("conflicts %q", conflicts)
	}
	if e, _ := d.ByKey("k"); e.Name != "a" {
		t.Errorf("the key is %s's", e.Name)
	}
}

func TestEntriesThatCannotBeRead(t *testing.T) {
	secret := strings.Repeat("ab", 31) + "zz"
	for name, value := range map[string]string{
		"no JSON":       `gold`,
		"plain text":    `my-secret-key`,
		"list":          `[]`,
		"unknown field": `{"klass":"gold"}`,
		"more behind":   `{} {}`,
		"short hash":    `{"sha256":["abcd"]}`,
		"long hash":     `{"sha256":["` + strings.Repeat("ab", 33) + `"]}`,
		"not hex":       `{"sha256":["` + secret + `"]}`,
		"too many":      `{"sha256":["` + strings.Repeat(hashed("x")+`","`, 64) + hashed("x") + `"]}`,
	} {
		_, err := Parse("t", []byte(value))
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		if text := err.Error(); strings.Contains(text, "my-secret-key") || strings.Contains(text, secret) {
			t.Errorf("%s: the error repeats the value: %s", name, text)
		}
	}
	if _, err := Parse(strings.Repeat("n", MaxName+1), []byte(`{}`)); err == nil {
		t.Error("a very long name was taken")
	}
	if e := mustParse(t, "t", `{}`); e.Class != "" || len(e.keys) != 0 {
		t.Errorf("the empty entry is %v", e)
	}
}

func TestModelsAreAllowedByNameOrPrefix(t *testing.T) {
	c := Class{Models: []string{"Qwen/*", "sql-lora"}}
	for model, want := range map[string]bool{"Qwen/Qwen3-32B": true, "Qwen/": true, "sql-lora": true, "sql-lora-2": false, "qwen/x": false, "": false} {
		if c.Allows(model) != want {
			t.Errorf("%q: %v", model, !want)
		}
	}
	if !(&Class{}).Allows("anything") || !(&Class{Models: []string{"*"}}).Allows("anything") {
		t.Error("without a list, or with *, all are allowed")
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{"Bearer abc": "abc", "bearer  abc ": "abc", "BEARER a": "a", "Basic abc": "", "Bearer": "", "": "", "abc": ""} {
		if got := Bearer(header); got != want {
			t.Errorf("%q gives %q", header, got)
		}
	}
}

// TestNoTenantGetsMoreThanItsRates plays random requests of some tenants against the definition: in any window no more
// are let through than what was saved up and what the window brings, and never more at once than allowed.
func TestNoTenantGetsMoreThanItsRates(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := &Class{RequestsPerMinute: 1 + rng.IntN(120), TokensPerMinute: int64(1 + rng.IntN(100_000)), MaxConcurrent: 1 + rng.IntN(5)}
		var ms Meters
		now := start
		var taken []time.Time
		var open []*Pass
		tokens := 0
		for range 2000 {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))
			if len(open) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(open))
				open[i].Release()
				open[i].Release() // counts once
				open = append(open[:i], open[i+1:]...)
			}
			pass, reason, after := ms.Take(now, "t", c)
			switch reason {
			case Admitted:
				taken = append(taken, now)
				open = append(open, pass)
				n := rng.IntN(3000)
				tokens += n
				pass.Charge(now, n)
			default:
				if pass != nil || after <= 0 {
					t.Fatalf("refused by %v with pass %v, after %v", reason, pass, after)
				}
			}
			if ms.UnderWay("t") != len(open) || len(open) > c.MaxConcurrent {
				t.Fatalf("%d under way, %d are open, %d allowed", ms.UnderWay("t"), len(open), c.MaxConcurrent)
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				if most := float64(c.RequestsPerMinute)*(1+taken[j].Sub(taken[i]).Minutes()) + 1; float64(j-i+1) > most {
					t.Fatalf("%d requests in %v, %d per minute are allowed", j-i+1, taken[j].Sub(taken[i]), c.RequestsPerMinute)
				}
			}
		}
		if most := float64(c.TokensPerMinute)*(1+now.Sub(start).Minutes()) + 3000; float64(tokens) > most {
			t.Fatalf("%d tokens in %v, %d per minute are allowed", tokens, now.Sub(start), c.TokensPerMinute)
		}
		for _, pass := range open {
			pass.Release()
		}
		if ms.UnderWay("t") != 0 {
			t.Fatalf("%d remain", ms.UnderWay("t"))
		}
	}
}

func TestARefusalSaysHowLongItLasts(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]*Class{"requests": {RequestsPerMinute: 7}, "tokens": {TokensPerMinute: 500}} {
		for _, early := range []time.Duration{time.Millisecond, -time.Millisecond} {
			var ms Meters
			for {
				pass, reason, after := ms.Take(now, "t", c)
				if reason == Admitted {
					pass.Charge(now, 300)
					continue
				}
				_, reason, _ = ms.Take(now.Add(after-early), "t", c)
				if refused := reason != Admitted; refused != (early > 0) {
					t.Errorf("%s: refused for %v; %v before that: %v", name, after, early, reason)
				}
				break
			}
		}
	}
}

func TestInventedNamesShareAMeterAndLeaveNothing(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &Class{MaxConcurrent: 1, RequestsPerMinute: 60}
	var ms Meters
	var open []*Pass
	for i := range maxMeters {
		pass, reason, _ := ms.Take(now, fmt.Sprint("t", i), c)
		if reason != Admitted {
			t.Fatal(reason)
		}
		open = append(open, pass)
	}
	first, reason, _ := ms.Take(now, "one more", c)
	if reason != Admitted {
		t.Fatal(reason)
	}
	if _, reason, _ = ms.Take(now, "yet another", c); reason != TooManyAtOnce {
		t.Errorf("invented names are limited one by one: %v", reason)
	}
	for _, pass := range append(open, first) {
		pass.Release()
	}
	if _, reason, _ = ms.Take(now.Add(2*time.Minute), "t-new", c); reason != Admitted || ms.Len() > 2 {
		t.Errorf("%v, %d meters after all are idle", reason, ms.Len())
	}
}

func FuzzParse(f *testing.F) {
	f.Add("acme", []byte(`{"class":"gold","sha256":["`+hashed("k")+`"]}`))
	f.Add("", []byte(`{}`))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		e, err := Parse(name, value)
		if err != nil {
			return
		}
		if !json.Valid(value) || e.Name != name || len(e.keys) > maxKeys {
			t.Fatalf("%q became %v", value, e)
		}
	})
}

func TestATenantIsFoundByEachOfItsCertificates(t *testing.T) {
	a := mustParse(t, "a", `{"certificates":["URI:spiffe://x/a","DNS:A.example","CN:a"]}`)
	b := mustParse(t, "b", `{"certificates":["DNS:b.example","CN:a"]}`)
	known, conflicts := NewDirectory([]Entry{a, b})
	if len(conflicts) != 1 || conflicts[0] != "tenants a and b have a certificate in common" {
		t.Errorf("conflicts %q", conflicts)
	}
	for name, want := range map[string]string{
		"URI:spiffe://x/a": "a", "DNS:a.example": "a", "CN:a": "a", "DNS:b.example": "b",
		"": "", "CN:A": "", "DNS:a": "", "URI:spiffe://x/A": "", "a": "",
	} {
		if e, ok := known.ByCertificate(name); ok != (want != "") || ok && e.Name != want {
			t.Errorf("%q is of %+v, want %q", name, e, want)
		}
	}
	if _, ok := (*Directory)(nil).ByCertificate("CN:a"); ok {
		t.Error("no directory knows a tenant")
	}
	for _, wrong := range []string{"", "a", "CN:", "DNS:", "IP:10.0.0.1", "cn:a", "CN:" + strings.Repeat("x", maxCertificate)} {
		text, err := json.Marshal(map[string][]string{"certificates": {wrong}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("a", text); err == nil {
			t.Errorf("%.20q is taken", wrong)
		} else if wrong != "" && len(wrong) > 4 && strings.Contains(err.Error(), wrong) {
			t.Errorf("the error repeats the value: %v", err)
		}
	}
	many, err := json.Marshal(map[string][]string{"certificates": slices.Repeat([]string{"CN:a"}, maxKeys+1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse("a", many); err == nil {
		t.Error("more than the most are taken")
	}
}
