package config

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// defaultPolicy is what an empty policy means, written down by hand from the API's documentation.
func defaultPolicy() picker.PolicySpec {
	return picker.PolicySpec{
		Strategy:   policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}},
		Credit:     [kvblock.NumTiers]float64{1, 0.8, 0.3, 0.3},
		ReloadRate: [kvblock.NumTiers]float64{0, 200_000, 30_000, 30_000},
		SessionKeys: []picker.SessionKey{
			{Type: "Header", Name: "x-session-id"}, {Type: "BodyField", Name: "session_id"},
			{Type: "BodyField", Name: "prompt_cache_key"}, {Type: "BodyField", Name: "user"}, {Type: "Prefix"},
		},
		SessionIdle: time.Hour, TokenBudget: 5 * time.Millisecond, EngineTokenBudget: 100 * time.Millisecond, EngineTokens: "WhenNoTokenizer",
		SpeculationMax: 5 * time.Minute, MaxKVUsage: 0.97, CircuitFailures: 5, CircuitOpen: 10 * time.Second,
		Attempts: 3, RetryConnect: true, RetryReset: true, RetryServerError: true, RetryStall: true,
		FirstByte: 10 * time.Minute, AnswerHeaders: "Never", AsksUsage: true, Handoffs: picker.HandoffSpec{Rule: picker.HandoffOff},
		Admission: picker.AdmissionSpec{
			Queue: true, WaitBudget: 250 * time.Millisecond, Priorities: map[string]picker.Priority{},
			Limits:     admission.Limits{Requests: 1024, Bytes: 256 << 20, TTL: time.Minute, Hold: 5 * time.Minute},
			GatewayLag: gatewayLag,
		},
	}
}

func TestPoliciesAreTranslated(t *testing.T) {
	named := func(change func(*picker.PolicySpec)) picker.PolicySpec {
		p := defaultPolicy()
		p.Name, p.Generation = "p", 1
		change(&p)
		return p
	}
	strategy := func(c policy.Config) picker.PolicySpec {
		return named(func(p *picker.PolicySpec) { p.Strategy = c })
	}
	for name, tc := range map[string]struct {
		spec string
		want picker.PolicySpec
	}{
		"nothing said":     {"", named(func(*picker.PolicySpec) {})},
		"cost in full":     {"strategy: {type: MarginalCost, marginalCost: {priorPrefillTokensPerSecond: 9000, decodeHarmPercent: 0}}", strategy(policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{PriorRate: 9000}})},
		"sticky":           {"strategy: {type: StickyLeastLoaded}", strategy(policy.Config{Type: policy.StickyLeastLoaded, StickyLeastLoaded: policy.StickyLeastLoadedConfig{PrefixTokens: 64}})},
		"sticky in full":   {"strategy: {type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 128}}", strategy(policy.Config{Type: policy.StickyLeastLoaded, StickyLeastLoaded: policy.StickyLeastLoadedConfig{PrefixTokens: 128}})},
		"longest":          {"strategy: {type: LongestPrefix}", strategy(policy.Config{Type: policy.LongestPrefix, LongestPrefix: policy.LongestPrefixConfig{MinMatch: 0.25, MaxLoad: 1.5}})},
		"longest, literal": {"strategy: {type: LongestPrefix, longestPrefix: {variant: Literal, minMatchPercent: 0, maxLoadPercent: 200}}", strategy(policy.Config{Type: policy.LongestPrefix, LongestPrefix: policy.LongestPrefixConfig{Literal: true, MaxLoad: 2}})},
		"metric":           {"strategy: {type: LMetric}", strategy(policy.Config{Type: policy.LMetric})},
		"metric, literal":  {"strategy: {type: LMetric, lMetric: {variant: Literal}}", strategy(policy.Config{Type: policy.LMetric, LMetric: policy.LMetricConfig{Literal: true}})},
		"pending work":     {"strategy: {type: LeastPendingWork}", strategy(policy.Config{Type: policy.LeastPendingWork})},
		"rendezvous":       {"strategy: {type: Rendezvous}", strategy(policy.Config{Type: policy.Rendezvous, Rendezvous: policy.RendezvousConfig{PrefixTokens: 1024}})},
		"unified":          {"strategy: {type: Unified}", strategy(policy.Default(policy.Unified))},
		"unified in full":  {"strategy: {type: Unified, unified: {minHitPercent: 0, maxLoadPercent: 150}}", strategy(policy.Config{Type: policy.Unified, Unified: policy.UnifiedConfig{MaxLoad: 1.5}})},
		"by prefix":        {"strategy: {type: Rendezvous, rendezvous: {key: Prefix, prefixTokens: 16}}", strategy(policy.Config{Type: policy.Rendezvous, Rendezvous: policy.RendezvousConfig{ByPrefix: true, PrefixTokens: 16}})},
		"approximate":      {"strategy: {type: ApproximatePrefix}", strategy(policy.Default(policy.ApproximatePrefix))},
		"approximate in full": {"strategy: {type: ApproximatePrefix, approximatePrefix: {chunkBytes: 128, maxChunks: 7, chunksPerEndpoint: 8, prefixWeight: 0, queueWeight: 1, kvWeight: 5}}",
			strategy(policy.Config{Type: policy.ApproximatePrefix, ApproximatePrefix: policy.ApproximatePrefixConfig{
				ChunkBytes: 128, MaxChunks: 7, ChunksPerEndpoint: 8, QueueWeight: 1, KVWeight: 5}})},
		"no hand-offs":      {"disaggregation: {type: Never}", named(func(p *picker.PolicySpec) { p.Handoffs.Rule = picker.HandoffNever })},
		"hand-offs by cost": {"disaggregation: {type: Cost}", named(func(p *picker.PolicySpec) { p.Handoffs.Rule = picker.HandoffByCost })},
		"hand-offs by a sidecar": {"disaggregation: {type: Cost, sidecar: LLMD}", named(func(p *picker.PolicySpec) {
			p.Handoffs = picker.HandoffSpec{Rule: picker.HandoffByCost, Sidecar: true}
		})},
		"hand-offs by our sidecar": {"disaggregation: {type: Cost, sidecar: Kvasir}", named(func(p *picker.PolicySpec) {
			p.Handoffs = picker.HandoffSpec{Rule: picker.HandoffByCost, Sidecar: true, Own: true}
		})},
		"hand-offs at once": {"disaggregation: {type: Cost, connector: Mooncake}", named(func(p *picker.PolicySpec) {
			p.Handoffs = picker.HandoffSpec{Rule: picker.HandoffByCost, Connector: picker.Mooncake, Port: 8998}
		})},
		"hand-offs by a tier": {"disaggregation: {type: Cost, connector: Offloading, connectorPort: 7777}", named(func(p *picker.PolicySpec) {
			p.Handoffs = picker.HandoffSpec{Rule: picker.HandoffByCost, Connector: picker.Offloading, Port: 7777}
		})},
		"all the rest": {`tiers: [{tier: CPU, creditPercent: 50, reloadTokensPerSecond: 7}, {tier: Disk, creditPercent: 0}],
  session: {keys: [{type: BodyField, name: user}]}, guards: {maxKVUsagePercent: 50, circuit: {consecutiveFailures: 2, openSeconds: 3}},
  tokens: {budgetMilliseconds: 7, engine: Never, engineBudgetMilliseconds: 8}, speculation: {mode: "Off", maxSeconds: 9},
  fallback: {attempts: 1, retryOn: [FirstByteTimeout, BrokenStream], firstByteSeconds: 4},
  streams: {commentSeconds: 5}, disaggregation: {type: Threshold, uncachedTokens: 2000}, decisions: {answerHeaders: OnRequest, streamUsage: AsRequested}`,
			named(func(p *picker.PolicySpec) {
				p.Credit = [kvblock.NumTiers]float64{1, 0.5, 0, 0.3}
				p.ReloadRate = [kvblock.NumTiers]float64{0, 7, 30_000, 30_000}
				p.SessionKeys = []picker.SessionKey{{Type: "BodyField", Name: "user"}}
				p.MaxKVUsage, p.CircuitFailures, p.CircuitOpen = 0.5, 2, 3*time.Second
				p.TokenBudget, p.EngineTokens, p.EngineTokenBudget = 7*time.Millisecond, "Never", 8*time.Millisecond
				p.SpeculationOff, p.SpeculationMax = true, 9*time.Second
				p.Comments = 5 * time.Second
				p.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 2000}
				p.Attempts, p.FirstByte, p.AnswerHeaders, p.AsksUsage = 1, 4*time.Second, "OnRequest", false
				p.RetryConnect, p.RetryReset, p.RetryServerError, p.RetryFirstByte, p.RetryStall = false, false, false, true, false
				p.ContinueStreams = true
			})},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, "pool.yaml", smallPool, "policy.yaml",
				strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tc.spec, 1))
			s, problems := load(t, d)
			wantNoProblem(t, problems)
			if diff := cmp.Diff(tc.want, only(t, s).Policy); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutAPolicyTheDefaultsAreInForce(t *testing.T) {
	s, problems := load(t, open(t, "pool.yaml", smallPool))
	wantNoProblem(t, problems)
	if diff := cmp.Diff(defaultPolicy(), only(t, s).Policy); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

func TestTwoPoliciesOfOneTarget(t *testing.T) {
	second := strings.NewReplacer("name: p}", "name: a}", "LeastLoad", "Random").Replace(smallPolicy)
	d := open(t, "pool.yaml", smallPool, "p.yaml", smallPolicy, "a.yaml", second)
	s, problems := load(t, d)
	wantProblem(t, problems, "p.yaml", "RoutingPolicy default/p", "spec.targetRefs[0]", "default/a")
	if got := only(t, s).Policy.Name; got != "a" {
		t.Errorf("policy %s at the start, want the first by name", got)
	}

	d = open(t, "pool.yaml", smallPool, "p.yaml", smallPolicy)
	load(t, d)
	write(t, d.file("a.yaml"), second)
	s, problems = load(t, d)
	wantProblem(t, problems, "a.yaml", "RoutingPolicy default/a", "default/p")
	if got := only(t, s).Policy.Name; got != "p" {
		t.Errorf("policy %s, want the one that was in force", got)
	}
}

func TestAPolicyNeedsItsTarget(t *testing.T) {
	for name, group := range map[string]string{"ours": "kvasir.dev", "the gateway's": "inference.networking.k8s.io"} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(smallPolicy, "{name: m}", "{group: "+group+", name: m}", 1)
			s, problems := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", text))
			wantNoProblem(t, problems)
			if got := only(t, s).Policy.Name; got != "p" {
				t.Errorf("policy %q, want p", got)
			}
		})
	}
	text := strings.Replace(smallPolicy, "metadata: {", "metadata: {namespace: other, ", 1)
	s, problems := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", text))
	wantProblem(t, problems, "RoutingPolicy other/p", "spec.targetRefs[0].name", "other/m")
	if got := only(t, s).Policy.Name; got != "" {
		t.Errorf("policy %q of another namespace is in force", got)
	}
}

func TestPoolsAreTranslated(t *testing.T) {
	const text = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m, namespace: llm}
spec:
  model:
    name: M/m
    aliases: [a]
    adapters: {discovery: Disabled, names: [l]}
    tokenizer: {type: Directory, directory: {path: m/tok}, chatTemplate: t.jinja}
  selector: {matchLabels: {app: m}}
  engine:
    type: SGLang
    apiKey: {name: k, key: token}
    media: [{medium: LMCache_Disk, tier: Disk}, {medium: far, tier: Remote}]
  keySpace: {blockTokens: 32, secretRef: {name: root}}
  picker: {maxRequestBody: 1Mi, indexMemory: 32Mi}
---
apiVersion: v1
kind: Secret
metadata: {name: k, namespace: llm}
stringData: {token: "sesame\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: root, namespace: llm}
data: {root: Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc=}
`
	s, problems := load(t, open(t, "all.yaml", text))
	wantNoProblem(t, problems)
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("7", 32)))
	if err != nil {
		t.Fatal(err)
	}
	want := picker.Spec{
		Namespace: "llm", Name: "m", Generation: 1, Model: "M/m", Aliases: []string{"a"}, Adapters: []string{"l"},
		Engine: "SGLang", EngineAPIKey: "sesame", PassClientAuth: true, Reports: true, ReportBatch: 5 * time.Millisecond, BlockTokens: 32, Seed: seed, IndexMemory: 32 << 20, MaxRequestBody: 1 << 20,
		Media:     map[string]kvblock.Tier{"lmcache_disk": kvblock.Disk, "far": kvblock.Remote},
		Tokenizer: picker.TokenizerSpec{Type: "Directory", Dir: "/models/m/tok", ChatTemplate: "t.jinja"},
		Policy:    defaultPolicy(),
	}
	if diff := cmp.Diff(want, *only(t, s), cmp.Comparer(func(a, b kvblock.Seed) bool { return a == b })); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
}

// TestPoolsThatScaleToZeroAreWoken: a request wakes them, whichever autoscaler applies the desired size, but not pools that
// are switched off.
func TestPoolsThatScaleToZeroAreWoken(t *testing.T) {
	for scaling, want := range map[string]bool{
		"": false,
		"autoscaling: {minReplicas: 0, maxReplicas: 2, mode: Recommend}": true,
		"autoscaling: {minReplicas: 1, maxReplicas: 2, mode: Recommend}": false,
	} {
		s, problems := load(t, open(t, "all.yaml", `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m, namespace: llm}
spec:
  model: {name: m}
  selector: {matchLabels: {app: m}}
  `+scaling+"\n"))
		wantNoProblem(t, problems)
		if got := only(t, s).FromZero; got != want {
			t.Errorf("%q: %v, want %v", scaling, got, want)
		}
	}
}

func TestKeyRoots(t *testing.T) {
	secret := func(name, entry string, size int) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: " + name + "}\nstringData: {" + entry + ": " + strings.Repeat("x", size) + "}\n"
	}
	other := strings.Replace(smallPool, "name: m", "name: other", 1)
	other = "---\n" + strings.Replace(other, "model: {name: m}", "model: {name: other}", 1)
	id := func(text string) string {
		t.Helper()
		s, problems := load(t, open(t, "all.yaml", text))
		wantNoProblem(t, problems)
		return s.Pools[0].KeyID
	}
	given := id(smallPool)
	if again := id(smallPool + other); again != given {
		t.Error("the key root of a pool depends on other pools")
	}
	s, _ := load(t, open(t, "all.yaml", smallPool+other))
	if s.Pools[1].KeyID == given {
		t.Error("two pools have the same key root")
	}
	own := id(smallPool + secret("m-key", "root", 32))
	if own == given {
		t.Error("the Secret NAME-key is not used")
	}
	if named := id(poolWith("keySpace: {secretRef: {name: r}}") + secret("r", "root", 32)); named != own {
		t.Error("the same root in another Secret gives other keys")
	}
	for name, tc := range map[string]struct {
		secret string
		want   string
	}{
		"no Secret":       {secret: "", want: "Secret default/r"},
		"no entry":        {secret: secret("r", "key", 32), want: "entry root"},
		"too few bytes":   {secret: secret("r", "root", 31), want: "31 bytes"},
		"another's space": {secret: strings.Replace(secret("r", "root", 32), "name: r", "name: r, namespace: o", 1), want: "Secret default/r"},
	} {
		t.Run(name, func(t *testing.T) {
			s, problems := load(t, open(t, "all.yaml", poolWith("keySpace: {secretRef: {name: r}}")+tc.secret))
			wantProblem(t, problems, "InferencePool default/m", "spec.keySpace.secretRef.name", tc.want)
			if strings.Contains(problems[0], "xxx") {
				t.Error("the problem tells the root")
			}
			if len(s.Specs) != 0 {
				t.Error("the pool is served without its keys")
			}
		})
	}
}

func TestAChangedKeyRootTakesEffect(t *testing.T) {
	d := open(t, "pool.yaml", smallPool)
	s, _ := load(t, d)
	before := s.Pools[0].KeyID
	write(t, d.file("secret.yaml"), "apiVersion: v1\nkind: Secret\nmetadata: {name: m-key}\nstringData: {root: "+strings.Repeat("x", 32)+"}\n")
	s, problems := load(t, d)
	if after := s.Pools[0].KeyID; after == before || after != only(t, s).Seed.ID() || len(problems) > 0 {
		t.Errorf("the keys are %s, before %s; problems %v", after, before, problems)
	}
	write(t, d.file("secret.yaml"), "apiVersion: v1\nkind: Secret\nmetadata: {name: m-key}\nstringData: {root: short}\n")
	after := s.Pools[0].KeyID
	if s, problems = load(t, d); s.Pools[0].KeyID != after || len(problems) != 1 {
		t.Errorf("a root that is none changed the keys; problems %v", problems)
	}
}

func TestPoolsThatCannotBeServedYet(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"no CA":      {"engine: {tls: {serverName: e.llm, caSecretRef: {name: k, key: ca.crt}}}", []string{"spec.engine.tls.caSecretRef.name", "Secret default/k"}},
		"no API key": {"engine: {apiKey: {name: k, key: token}}", []string{"spec.engine.apiKey.name", "Secret default/k"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, problems := load(t, open(t, "pool.yaml", poolWith(tc.spec)))
			wantProblem(t, problems, append(tc.want, "pool.yaml:", ": InferencePool default/m: ")...)
			if len(s.Specs) != 0 || len(s.Pools) != 1 || s.Pools[0].Served {
				t.Error("the pool is served")
			}
		})
	}
}

func TestANameIsOnePools(t *testing.T) {
	pool := func(name, model string) string {
		return strings.NewReplacer("{name: m}\n", "{name: "+name+"}\n", "model: {name: m}", "model: {"+model+"}").Replace(smallPool)
	}
	served := func(s State) string {
		var all []string
		for i := range s.Specs {
			for _, one := range modelNames(&s.Specs[i]) {
				all = append(all, s.Specs[i].Name+":"+one.name)
			}
		}
		return strings.Join(all, " ")
	}
	d := open(t, "b.yaml", pool("b", "name: x, aliases: [w]"), "c.yaml", pool("c", "name: x"))
	s, problems := load(t, d)
	wantProblem(t, problems, "c.yaml:4:16: InferencePool default/c", "spec.model.name", `"x, a name of InferencePool default/b"`)
	if got, want := served(s), "b:x b:w"; got != want {
		t.Errorf("served %s at the start, want %s: the first by name", got, want)
	}

	write(t, d.file("c.yaml"), pool("c", "name: z, adapters: {names: [l]}"))
	write(t, d.file("a.yaml"), pool("a", "name: w"))
	s, problems = load(t, d)
	wantProblem(t, problems, "a.yaml", "InferencePool default/a", "spec.model.name", "default/b")
	if got, want := served(s), "b:x b:w c:z c:l"; got != want {
		t.Errorf("served %s, want %s: a pool that came later gets no name of another one", got, want)
	}

	// c wants a name of b and gives up l, which a wants: c is refused and keeps l, so a is not served either.
	write(t, d.file("a.yaml"), pool("a", "name: y2, aliases: [l]"))
	write(t, d.file("c.yaml"), pool("c", "name: z, aliases: [w]"))
	s, problems = load(t, d)
	wantProblem(t, problems, "InferencePool default/c", "spec.model.aliases[0]", "default/b", "last good")
	if got, want := served(s), "b:x b:w c:z c:l"; got != want {
		t.Errorf("served %s, want %s", got, want)
	}

	// A name that is given up can be had in the same step.
	write(t, d.file("a.yaml"), pool("a", "name: y2, aliases: [w]"))
	write(t, d.file("b.yaml"), pool("b", "name: x"))
	write(t, d.file("c.yaml"), pool("c", "name: z"))
	s, problems = load(t, d)
	wantNoProblem(t, problems)
	if got, want := served(s), "a:y2 a:w b:x c:z"; got != want {
		t.Errorf("served %s, want %s", got, want)
	}
}

// TestTheLabsDefaultsAreTheAPIs: a strategy that is run without a RoutingPolicy has the defaults of an empty one.
func TestTheLabsDefaultsAreTheAPIs(t *testing.T) {
	for _, strategy := range policy.Types() {
		if diff := cmp.Diff(Strategy(&v1alpha1.Strategy{Type: v1alpha1.StrategyType(strategy)}), policy.Default(strategy)); diff != "" {
			t.Errorf("%s (-api +default):\n%s", strategy, diff)
		}
	}
}

// TestWhereModelFilesAre: every source of a tokenizer says where its files are, or why there are none.
func TestWhereModelFilesAre(t *testing.T) {
	const files = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {tokenizer.json: \"{}\"}\nbinaryData: {a.jinja: eA==}\n"
	root := t.TempDir()
	for name, tc := range map[string]struct {
		tokenizer, objects, root string
		want                     picker.TokenizerSpec
	}{
		"found, no hub": {"{type: Auto}", "", "", picker.TokenizerSpec{Type: "Auto", Missing: "this installation has no model hub (hub.endpoint of the chart, --hub-endpoint of the picker)"}},
		"found, a hub":  {"{type: Auto}", "", root, picker.TokenizerSpec{Type: "Auto", ByRoot: true}},
		"found, named":  {"{hub: {repository: gpt2, revision: v1}}", "", root, picker.TokenizerSpec{Type: "Auto", Repository: modelfiles.Repository{Name: "gpt2", Revision: "v1"}}},
		"found, a token": {"{chatTemplate: t.jinja, hub: {tokenSecretRef: {name: s, key: k}}}", "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: \"hf_x\\n\"}\n", root,
			picker.TokenizerSpec{Type: "Auto", ChatTemplate: "t.jinja", ByRoot: true, Repository: modelfiles.Repository{Template: "t.jinja", Token: "hf_x"}}},
		"found, no Secret": {"{hub: {tokenSecretRef: {name: s, key: k}}}", "", root, picker.TokenizerSpec{Type: "Auto", Missing: "spec.model.tokenizer.hub.tokenSecretRef.name: Not found: \"Secret default/s\""}},
		"an engine":        {"{type: Engine}", "", "", picker.TokenizerSpec{Type: "Engine"}},
		"none":             {"{type: None}", "", "", picker.TokenizerSpec{Type: "None"}},
		"a directory":      {"{type: Directory, directory: {path: x}, chatTemplate: t.jinja}", "", root, picker.TokenizerSpec{Type: "Directory", Dir: filepath.Join(root, "x"), ChatTemplate: "t.jinja"}},
		"no model root":    {"{type: Directory, directory: {path: x}}", "", "", picker.TokenizerSpec{Type: "Directory", Missing: "directory x cannot be read: the picker has no --model-root"}},
		"a claim":          {"{type: Volume, volume: {persistentVolumeClaim: {name: v}, path: x/y}}", "", root, picker.TokenizerSpec{Type: "Volume", Dir: filepath.Join(root, "x", "y")}},
		"a whole claim":    {"{type: Volume, volume: {persistentVolumeClaim: {name: v}}}", "", root, picker.TokenizerSpec{Type: "Volume", Dir: root}},
		"no mount":         {"{type: Volume, volume: {persistentVolumeClaim: {name: v}}}", "", "", picker.TokenizerSpec{Type: "Volume", Missing: "the volume is not mounted: the picker has no --model-root"}},
		"a ConfigMap":      {"{type: Volume, volume: {configMap: {name: c}}}", files, "", picker.TokenizerSpec{Type: "Volume", Files: modelfiles.Set{"tokenizer.json": []byte("{}"), "a.jinja": []byte("x")}}},
		"another's":        {"{type: Volume, volume: {configMap: {name: c}}}", strings.Replace(files, "name: c", "name: c, namespace: o", 1), "", picker.TokenizerSpec{Type: "Volume", Missing: "ConfigMap default/c does not exist"}},
		"a path in a map":  {"{type: Volume, volume: {configMap: {name: c}, path: x}}", files, "", picker.TokenizerSpec{Type: "Volume", Files: modelfiles.Set{"tokenizer.json": []byte("{}"), "a.jinja": []byte("x")}, Missing: "a ConfigMap has no directories: volume.path must be left out"}},
		"a hub":            {"{type: Hub}", "", root, picker.TokenizerSpec{Type: "Hub", Repository: modelfiles.Repository{Name: "m"}}},
		"a hub, with all": {"{type: Hub, chatTemplate: t.jinja, hub: {repository: a/b, revision: v1, tokenSecretRef: {name: s, key: k}}}", "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: \"hf_x\\n\"}\n", root,
			picker.TokenizerSpec{Type: "Hub", ChatTemplate: "t.jinja", Repository: modelfiles.Repository{Name: "a/b", Revision: "v1", Template: "t.jinja", Token: "hf_x"}}},
		"a hub, no Secret": {"{type: Hub, hub: {tokenSecretRef: {name: s, key: k}}}", "", root, picker.TokenizerSpec{Type: "Hub", Missing: "spec.model.tokenizer.hub.tokenSecretRef.name: Not found: \"Secret default/s\""}},
		"no hub":           {"{type: Hub}", "", "", picker.TokenizerSpec{Type: "Hub", Missing: "nothing is downloaded: the picker has no --hub-endpoint (hub.endpoint of the chart)"}},
		"reporters":        {"{type: Reporter, reporter: {path: /m}}", "", "", picker.TokenizerSpec{Type: "Reporter"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, "pool.yaml", strings.Replace(smallPool, "{name: m},", "{name: m, tokenizer: "+tc.tokenizer+"},", 1)+tc.objects)
			d.translator.settings.ModelRoot, d.translator.settings.Hub = tc.root, tc.root != ""
			s, _ := load(t, d)
			if len(s.Specs) != 1 {
				t.Fatalf("problems %v", s.Problems)
			}
			if diff := cmp.Diff(tc.want, s.Specs[0].Tokenizer); diff != "" {
				t.Error(diff)
			}
		})
	}
}
