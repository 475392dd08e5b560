package httpproxy

import (
	"io"
	"net/http"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// words are tokens and their tenants.
type words map[string]string

func (w words) Tenant(token string) (string, bool) {
	name, ok := w[token]
	return name, ok
}

// TestATokenNamesTheTenant, with the class that a Secret gives it, and is not passed on to engines.
func TestATokenNamesTheTenant(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("the engine gets %q", got)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	tenants := s.Policy.Admission.Tenants
	tenants.Issuer, tenants.Tokens = &tenant.Issuer{URL: "https://idp.example"}, words{"a": "acme", "s": "small", "o": "other"}
	post := func(h *house, authorization, model string) int {
		answer := h.post("/v1/completions", `{"model":"`+model+`","prompt":"hi"}`, "Authorization", authorization)
		_ = read(t, answer)
		return answer.StatusCode
	}
	h := newHouse(t, Options{}, s)
	for name, tc := range map[string]struct {
		authorization, model string
		want                 int
	}{
		"a tenant":                  {"Bearer a", "lora", 200},
		"a class with one model":    {"Bearer s", "m", 200},
		"and no other":              {"Bearer s", "lora", 403},
		"a tenant that none lists":  {"Bearer o", "m", 401},
		"an unknown token":          {"Bearer x", "m", 401},
		"another scheme":            {"Basic a", "m", 401},
		"none":                      {"", "m", 401},
		"a key, which is no token":  {"Bearer k-acme", "m", 401},
		"a name, which is no token": {"Bearer acme", "m", 401},
	} {
		if got := post(h, tc.authorization, tc.model); got != tc.want {
			t.Errorf("%s: status %d, want %d", name, got, tc.want)
		}
	}

	all := s
	open := *tenants
	open.Known = nil
	all.Policy.Admission.Tenants = &open
	h = newHouse(t, Options{}, all)
	if got := post(h, "Bearer o", "m"); got != 200 {
		t.Errorf("without a list, a tenant gets status %d", got)
	}
	if got := post(h, "Bearer x", "m"); got != 401 {
		t.Errorf("without a list, an unknown token gets status %d", got)
	}

	none := s
	unchecked := *tenants
	unchecked.Tokens = nil
	none.Policy.Admission.Tenants = &unchecked
	h = newHouse(t, Options{}, none)
	if got := post(h, "Bearer a", "m"); got != 401 {
		t.Errorf("without anything that checks tokens, one gets status %d", got)
	}
}
