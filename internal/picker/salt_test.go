package picker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// saltedSpec is a pool whose policy separates the caches of tenants, which a header names.
func saltedSpec(t *testing.T) Spec {
	s := testSpec(t, 2)
	s.Policy.Admission.Tenants = &TenantsSpec{Header: FairnessHeader, Default: &tenant.Class{Weight: 1}, Salts: true}
	return s
}

// of is a request of a tenant.
func of(name string, body []byte) *Request {
	return &Request{Route: openai.Completions, Body: body, Header: func(header string) string {
		if header == FairnessHeader {
			return name
		}
		return ""
	}}
}

func withSalt(body []byte, salt string) []byte {
	return fmt.Appendf(nil, `%s,"cache_salt":%q}`, bytes.TrimSuffix(body, []byte("}")), salt)
}

// TestTenantsDoNotSeeEachOthersBlocks: what the engine has stored for one tenant's salt is found by that tenant alone, and so
// is what is assumed after a pick. A client's own salt separates further, and reaches no blocks of another tenant.
func TestTenantsDoNotSeeEachOthersBlocks(t *testing.T) {
	spec := saltedSpec(t)
	p, replica := newPicker(t, newClock(), spec), newPicker(t, newClock(), spec)
	prompt := completion("m", 0, 200, true)
	ask := func(on *Picker, name string, body []byte) (salt string, matched, confirmed int) {
		t.Helper()
		d, err := on.Pick(context.Background(), of(name, body))
		if err != nil {
			t.Fatal(err)
		}
		defer d.End(Failed) // its assumption ends with it
		return d.CacheSalt(), d.Targets[0].Predicted, d.Targets[0].Confirmed
	}
	acme, matched, _ := ask(p, "acme", prompt)
	if acme == "" || matched != 0 {
		t.Fatalf("salt %q, %d tokens matched before anything is stored", acme, matched)
	}
	if same, _, _ := ask(replica, "acme", prompt); same != acme {
		t.Errorf("replicas make the salts %q and %q", acme, same)
	}
	// The engine stores by the salt that it got, and its events tell that salt.
	ids := make([]uint32, 192)
	for i := range ids {
		ids[i] = uint32(i)
	}
	for _, pod := range []string{"pod-0", "pod-1"} {
		hold(feed(t, p, pod), kvblock.AppendKeys(nil, spec.Seed.Root("m", acme), ids, 16)...)
	}
	if _, _, confirmed := ask(p, "acme", prompt); confirmed != 192 {
		t.Errorf("the tenant itself finds %d tokens, want 192", confirmed)
	}
	for name, tc := range map[string]struct {
		tenant string
		body   []byte
	}{
		"another tenant":                           {"small", prompt},
		"the anonymous tenant":                     {"", prompt},
		"another tenant that has learned the salt": {"small", withSalt(prompt, acme)},
		"the anonymous tenant, too":                {"", withSalt(prompt, acme)},
		"another one with the tenant's name":       {"small", withSalt(prompt, "acme")},
		"the tenant with a salt of its client":     {"acme", withSalt(prompt, "x")},
	} {
		salt, matched, _ := ask(p, tc.tenant, tc.body)
		if matched != 0 || salt == acme || salt == "" {
			t.Errorf("%s finds %d tokens with the salt %q", name, matched, salt)
		}
	}
	open, err := p.Pick(context.Background(), of("acme", completion("m", 7000, 200, true)))
	if err != nil {
		t.Fatal(err)
	}
	if _, matched, _ := ask(p, "acme", completion("m", 7000, 200, true)); matched == 0 {
		t.Error("the tenant does not find what is on its way for it")
	}
	if _, matched, _ := ask(p, "small", completion("m", 7000, 200, true)); matched != 0 {
		t.Errorf("another tenant finds %d tokens of a request under way", matched)
	}
	open.End(Failed)
	assertIdle(t, p)
}

// TestRequestsWithoutASaltAreRefused: what cannot carry the salt does not reach an engine, unless it computes nothing.
func TestRequestsWithoutASaltAreRefused(t *testing.T) {
	p := newPicker(t, newClock(), saltedSpec(t))
	chat := []byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`)
	text := []byte(`{"model":"m","prompt":"hi","input":"hi"}`)
	for name, tc := range map[string]struct {
		in   Request
		code string
	}{
		"completions": {Request{Route: openai.Completions, Body: text}, ""},
		"chats":       {Request{Route: openai.ChatCompletions, Body: chat}, ""},
		"responses":   {Request{Route: openai.Responses, Body: text}, ""},
		"messages, to releases that are not known yet": {Request{Route: openai.Messages, Body: chat}, "no_endpoint"},
		"token ids":                    {Request{Unparsed: true, Saltable: true, Body: []byte(`{"model":"m","token_ids":[1]}`)}, ""},
		"token ids with an empty salt": {Request{Unparsed: true, Saltable: true, Body: withSalt(text, "")}, "invalid_request"},
		"token ids that are no object": {Request{Unparsed: true, Saltable: true, Body: []byte(`[1]`)}, "invalid_request"},
		"token ids that are not shown": {Request{Unparsed: true, Saltable: true, Hidden: true}, codeUnsalted},
		"counting tokens":              {Request{Route: openai.Messages, Body: chat, Light: true}, ""},
		"embeddings":                   {Request{Route: openai.Embeddings, Body: text}, codeUnsalted},
		"a body that is not parsed":    {Request{Unparsed: true, Body: text}, codeUnsalted},
		"no prompt":                    {Request{Unparsed: true, Body: text, Uncached: true}, ""},
		"a body that is not shown":     {Request{Unparsed: true, Hidden: true}, codeUnsalted},
		"a path that is not shown":     {Request{Route: openai.ChatCompletions, Body: chat, Guessed: true}, codeUnsalted},
		"a gateway that only watches":  {Request{Route: openai.ChatCompletions, Body: chat, Observed: true}, ""},
		"an empty salt":                {Request{Route: openai.Completions, Body: withSalt(text, "")}, "invalid_request"},
		"a salt that is no string":     {Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":"hi","cache_salt":1}`)}, "invalid_request"},
		"a salt that is null":          {Request{Route: openai.Completions, Body: []byte(`{"model":"m","prompt":"hi","cache_salt":null}`)}, ""},
	} {
		in := of("acme", tc.in.Body)
		tc.in.Header = in.Header
		d, err := p.Pick(context.Background(), &tc.in)
		code := ""
		if refusal := (*Error)(nil); errors.As(err, &refusal) {
			code = refusal.Code
		}
		if code != tc.code {
			t.Errorf("%s: %v, want %q", name, err, tc.code)
		}
		if err != nil {
			continue
		}
		if wants := !tc.in.Light && (!tc.in.Unparsed || tc.in.Saltable) && !tc.in.Observed; (d.CacheSalt() != "") != wants {
			t.Errorf("%s: salt %q", name, d.CacheSalt())
		}
		d.End(Completed)
	}
	if got := p.Stats()[0].Tenants[otherLabel].Refused[2]; TenantRefusals[2] != codeUnsalted || got != 5 {
		t.Errorf("%d refusals are counted, want 5", got)
	}
	expectEvents(p)
	assertIdle(t, p)
}

// TestTheSaltIsNotShown: neither the explanation of a pick nor the headers of an answer have it. The explanation is that for
// the tenant.
func TestTheSaltIsNotShown(t *testing.T) {
	spec := saltedSpec(t)
	spec.Policy.AnswerHeaders = "Always"
	p := newPicker(t, newClock(), spec)
	prompt := completion("m", 0, 200, true)
	d, err := p.Pick(context.Background(), of("acme", prompt))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"acme": true, "small": false} {
		e, err := p.Explain(context.Background(), of(name, prompt))
		if err != nil {
			t.Fatal(err)
		}
		if finds := e.Candidates[0].Matched > 0; finds != want {
			t.Errorf("%s: %d tokens matched", name, e.Candidates[0].Matched)
		}
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, d.CacheSalt()) {
			t.Errorf("the explanation has the salt: %s", text)
		}
	}
	d.Explain(0, func(name, value string) {
		if strings.Contains(value, d.CacheSalt()) {
			t.Errorf("%s has the salt", name)
		}
	})
	d.End(Failed)
	assertIdle(t, p)
}

// TestMessagesGoToEnginesThatTakeASalt: of a pool with several releases, Messages go to those that take a salt on that route,
// whichever has the blocks or is idle, with keys of the salt that the engine gets. If no release takes one, they are refused.
func TestMessagesGoToEnginesThatTakeASalt(t *testing.T) {
	spec := saltedSpec(t)
	p := newPicker(t, newClock(), spec)
	epochs := [2]string{spec.Endpoints[0].Epoch(), spec.Endpoints[1].Epoch()}
	chat := []byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"cache_salt":"own"}`)
	for name, tc := range map[string]struct {
		releases Releases
		want     string // the pod, or the code of the error
	}{
		"the first":                          {Releases{epochs[0]: 27, epochs[1]: 26}, "pod-0"},
		"the second":                         {Releases{epochs[0]: 26, epochs[1]: 1000}, "pod-1"},
		"the other is not known":             {Releases{epochs[1]: 27}, "pod-1"},
		"one is too old, one is not known":   {Releases{epochs[0]: 26}, "no_endpoint"},
		"both are too old":                   {Releases{epochs[0]: 26, epochs[1]: 26}, codeUnsalted},
		"versions that cannot be understood": {Releases{epochs[0]: 0, epochs[1]: 0}, codeUnsalted},
	} {
		prompter := &saltSeen{}
		p.SetExact(spec.Namespace, spec.Name, &Exact{Chats: prompter, APIs: openai.KindsOf(openai.KindMessages), Releases: &tc.releases})
		in := of("acme", chat)
		in.Route = openai.Messages
		for range 8 {
			got := ""
			d, err := p.Pick(context.Background(), in)
			if refusal := (*Error)(nil); errors.As(err, &refusal) {
				got = refusal.Code
			} else if err == nil {
				got = d.Targets[0].Endpoint.Pod
				if len(d.Targets) != 1 || d.CacheSalt() != spec.Seed.TenantSalt("acme", "own") || prompter.salt != d.CacheSalt() {
					t.Errorf("%s: %d targets, salt %q, keys of %q", name, len(d.Targets), d.CacheSalt(), prompter.salt)
				}
				d.End(Completed)
			}
			if got != tc.want {
				t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
			}
		}
	}
	p.SetExact(spec.Namespace, spec.Name, &Exact{Releases: &Releases{epochs[0]: 26, epochs[1]: 27}})
	in := of("acme", chat)
	in.Route = openai.Messages
	if e, err := p.Explain(context.Background(), in); err != nil || len(e.Candidates) != 1 || e.Candidates[0].Pod != "pod-1" {
		t.Errorf("explained: %+v, %v", e, err)
	}
	assertIdle(t, p)
}

// saltSeen notes the salt of the request whose keys it makes.
type saltSeen struct{ salt string }

func (s *saltSeen) AppendKeys(_ context.Context, dst []kvblock.Key, _ []byte, r *openai.Request, _ tokenizer.Chain) ([]kvblock.Key, int, error) {
	s.salt = r.CacheSalt
	return dst, 0, nil
}

func (s *saltSeen) Others(context.Context, *openai.Request, tokenizer.Chain, func([]kvblock.Key, int)) error {
	return nil
}
