package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// TestTokensExactSaysWhatIsDone: whatever is the matter, the condition says so, and what is done instead.
func TestTokensExactSaysWhatIsDone(t *testing.T) {
	with := func(state tokencheck.State) tokencheck.Status {
		return tokencheck.Status{State: state, Message: "because"}
	}
	dead := picker.Rendering{Failures: 3, Last: "no route"}
	never := strings.Replace(smallPolicy, "strategy:", "tokens: {engine: Never}, strategy:", 1)
	none := strings.Replace(smallPool, "{name: m},", "{name: m, tokenizer: {type: None}},", 1)
	hub := strings.Replace(smallPool, "{name: m},", "{name: m, tokenizer: {type: Hub}},", 1)
	engine := strings.Replace(smallPool, "{name: m},", "{name: m, tokenizer: {type: Engine}},", 1)
	origin := with(tokencheck.Exact)
	origin.Origin = "files of commit 01234567 of a/b"
	old := with(tokencheck.Exact)
	old.AdaptersUnreported, old.SaltsUnreported = true, true
	const only = "; of the model's files only what is proven is used: because"
	const asked, chunks = "an engine is asked for the tokens of each request", "prompts are matched by chunks of their text with what this picker has routed"
	for name, tc := range map[string]struct {
		pool, policy string
		tokens       tokencheck.Status
		rendering    picker.Rendering
		want         string
	}{
		"exact":                       {smallPool, smallPolicy, with(tokencheck.Exact), dead, "True/Exact: because"},
		"exact, with old engines":     {smallPool, smallPolicy, old, dead, "True/Exact: because; requests for adapters are matched approximately, as engines before v0.14 do not tell adapters by name; requests with a cache salt are matched approximately, as engines before v0.17 do not tell salts"},
		"no files wanted":             {engine, smallPolicy, tokencheck.Status{State: tokencheck.NoFiles}, picker.Rendering{Failures: 2}, "True/EngineRender: " + asked},
		"nothing known yet":           {smallPool, smallPolicy, tokencheck.Status{}, picker.Rendering{}, "False/EngineRender: " + asked},
		"engines without open routes": {engine, smallPolicy, with(tokencheck.NoFiles), picker.Rendering{Lacking: "m-0 (vLLM 0.32.0) runs without --enable-scale-out"}, "True/EngineTokenize: engines are asked for tokens by /tokenize, which does not know every request: m-0 (vLLM 0.32.0) runs without --enable-scale-out"},
		"engines that do not render":  {engine, smallPolicy, with(tokencheck.NoFiles), dead, "False/Approximate: the last 3 questions to engines for tokens had no answer (no route): " + chunks},
		"engines that are not asked":  {engine, never, with(tokencheck.NoFiles), picker.Rendering{}, "False/Approximate: the policy lets no engine be asked: " + chunks},
		"no tokenizer":                {none, smallPolicy, with(tokencheck.NoFiles), picker.Rendering{}, "False/Approximate: the pool has no tokenizer: " + chunks},
		"chats that cannot be made":   {hub, smallPolicy, with(tokencheck.TextsOnly), picker.Rendering{}, "False/TemplateUnsupported: because; " + asked},
		"a probe that failed":         {hub, smallPolicy, with(tokencheck.Failed), picker.Rendering{}, "False/ProbeFailed: because; " + asked},
		"a probe that failed, alone":  {hub, never, with(tokencheck.Failed), picker.Rendering{}, "False/ProbeFailed: because; the policy lets no engine be asked: " + chunks},
		"files that are missing":      {hub, smallPolicy, with(tokencheck.FilesMissing), picker.Rendering{}, "False/FilesMissing: because; " + asked},
		"a tokenizer that is unknown": {hub, smallPolicy, with(tokencheck.TokenizerUnsupported), picker.Rendering{}, "False/TokenizerUnsupported: because; " + asked},
		"a probe without an answer":   {hub, smallPolicy, with(tokencheck.Unproven), picker.Rendering{}, "False/EngineRender: because; " + asked},
		"found and exact":             {smallPool, smallPolicy, origin, dead, "True/Exact: because; files of commit 01234567 of a/b"},
		"nothing found":               {smallPool, smallPolicy, with(tokencheck.NoFiles), picker.Rendering{}, "True/EngineRender: " + asked + "; no files of the model: because"},
		"nothing found, nothing else": {smallPool, never, with(tokencheck.NoFiles), picker.Rendering{}, "False/Approximate: the policy lets no engine be asked: " + chunks + "; no files of the model: because"},
		"found, chats cannot be made": {smallPool, smallPolicy, with(tokencheck.TextsOnly), picker.Rendering{}, "True/EngineRender: " + asked + only},
		"found, but wrong":            {smallPool, smallPolicy, with(tokencheck.Failed), picker.Rendering{}, "True/EngineRender: " + asked + only},
		"found, but unknown":          {smallPool, smallPolicy, with(tokencheck.TokenizerUnsupported), picker.Rendering{}, "True/EngineRender: " + asked + only},
		"found, not proven yet":       {smallPool, smallPolicy, with(tokencheck.Unproven), picker.Rendering{}, "True/EngineRender: " + asked + only},
		"found, engines are silent":   {smallPool, smallPolicy, with(tokencheck.Unproven), dead, "False/Approximate: the last 3 questions to engines for tokens had no answer (no route): " + chunks + only},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := load(t, open(t, "pool.yaml", tc.pool, "policy.yaml", tc.policy, "pods.yaml", smallSlice))
			l := live(picker.Hits{}, 0)
			l.Tokens = map[types.NamespacedName]tokencheck.Status{pool0: tc.tokens}
			l.Pools[0].Rendering = tc.rendering
			c := meta.FindStatusCondition(poolOf(t, NewBoard().Update(time.Unix(1, 0), s, l)).Status.Conditions, v1alpha1.ConditionTokensExact)
			if got := fmt.Sprintf("%s/%s: %s", c.Status, c.Reason, c.Message); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
