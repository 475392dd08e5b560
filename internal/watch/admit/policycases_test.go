package admit

import "testing"

func TestTargetsOfPolicies(t *testing.T) {
	runCases(t, "RoutingPolicy", map[string]specCase{
		"the smallest policy":            {spec: targets},
		"no target":                      {spec: "targetRefs: []", want: "spec.targetRefs"},
		"one target twice":               {spec: "targetRefs: [{name: p}, {name: p}]", want: "Duplicate"},
		"one name in both groups":        {spec: "targetRefs: [{name: p}, {name: p, group: inference.networking.k8s.io}]"},
		"a Service":                      {spec: "targetRefs: [{name: p, kind: Service, group: ''}]", want: "a target is an InferencePool"},
		"a pool of another group":        {spec: "targetRefs: [{name: p, group: example.com}]", want: "a target is an InferencePool"},
		"targets may change":             {old: targets, spec: "targetRefs: [{name: other}]"},
		"a misspelt strategy is noticed": {spec: targets + "stratgy: {type: LMetric}", want: "unknown field"},
	})
}

func TestStrategies(t *testing.T) {
	strategy := func(fields string) string { return targets + "strategy: {" + fields + "}" }
	runCases(t, "RoutingPolicy", map[string]specCase{
		"a member of another type":               {spec: strategy("type: LMetric, unified: {}"), want: "unified is only for type Unified"},
		"no type":                                {spec: strategy("lMetric: {}"), want: "spec.strategy.type: Required value"},
		"an empty strategy":                      {spec: strategy(""), want: "spec.strategy.type: Required value"},
		"a type that is none":                    {spec: strategy("type: Best"), want: "Unsupported value"},
		"LMetric with a variant":                 {spec: strategy("type: LMetric, lMetric: {variant: Literal}")},
		"a variant of another strategy":          {spec: strategy("type: LMetric, lMetric: {variant: Guarded}"), want: "Unsupported value"},
		"MarginalCost with its member":           {spec: strategy("type: MarginalCost, marginalCost: {decodeHarmPercent: 0}")},
		"MarginalCost's member for another":      {spec: strategy("type: Random, marginalCost: {}"), want: "marginalCost is only for type MarginalCost"},
		"LongestPrefix with its member":          {spec: strategy("type: LongestPrefix, longestPrefix: {minMatchPercent: 0}")},
		"LongestPrefix's member for another":     {spec: strategy("type: Random, longestPrefix: {}"), want: "longestPrefix is only for type LongestPrefix"},
		"LMetric's member for another":           {spec: strategy("type: Random, lMetric: {}"), want: "lMetric is only for type LMetric"},
		"Unified with its member":                {spec: strategy("type: Unified, unified: {minHitPercent: 0}")},
		"Rendezvous with its member":             {spec: strategy("type: Rendezvous, rendezvous: {key: Prefix}")},
		"Rendezvous's member for another":        {spec: strategy("type: Random, rendezvous: {}"), want: "rendezvous is only for type Rendezvous"},
		"ApproximatePrefix with its member":      {spec: strategy("type: ApproximatePrefix, approximatePrefix: {kvWeight: 0}")},
		"ApproximatePrefix's member for another": {spec: strategy("type: Random, approximatePrefix: {}"), want: "approximatePrefix is only for type ApproximatePrefix"},
		"StickyLeastLoaded alone":                {spec: strategy("type: StickyLeastLoaded")},
		"StickyLeastLoaded with its member":      {spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {}")},
		"StickyLeastLoaded with a long prefix":   {spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 65536}")},
		"StickyLeastLoaded with too long a one":  {spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 65537}"), want: "stickyLeastLoaded.prefixTokens"},
		"StickyLeastLoaded without a prefix":     {spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 0}"), want: "stickyLeastLoaded.prefixTokens"},
		"StickyLeastLoaded's member for Sticky":  {spec: strategy("type: Sticky, stickyLeastLoaded: {}"), want: "stickyLeastLoaded is only for type StickyLeastLoaded"},
		"LeastPendingWork":                       {spec: strategy("type: LeastPendingWork")},
		"Sticky":                                 {spec: strategy("type: Sticky")},
		"LeastLoad":                              {spec: strategy("type: LeastLoad")},
		"RoundRobin":                             {spec: strategy("type: RoundRobin")},
		"Random":                                 {spec: strategy("type: Random")},
	})
}

func TestShadowsAndTiers(t *testing.T) {
	runCases(t, "RoutingPolicy", map[string]specCase{
		"a shadow's member of another type":  {spec: targets + "shadow: [{name: a, strategy: {type: Sticky, unified: {}}}]", want: "unified is only"},
		"shadows":                            {spec: targets + "shadow: [{name: a, strategy: {type: Sticky}}, {name: b, strategy: {type: LongestPrefix, longestPrefix: {variant: Literal}}}]"},
		"shadows have different names":       {spec: targets + "shadow: [{name: a, strategy: {type: Sticky}}, {name: a, strategy: {type: Random}}]", want: "Duplicate"},
		"a shadow that samples nothing":      {spec: targets + "shadow: [{name: a, strategy: {type: Sticky}, samplePercent: 0}]", want: "samplePercent"},
		"the GPU is worth 100 percent":       {spec: targets + "tiers: [{tier: GPU, creditPercent: 50}]", want: "spec.tiers[0].tier"},
		"a tier may be worth nothing":        {spec: targets + "tiers: [{tier: Disk, creditPercent: 0}]"},
		"a tier needs a credit":              {spec: targets + "tiers: [{tier: Disk}]", want: "creditPercent: Required value"},
		"a tier is worth no more than a GPU": {spec: targets + "tiers: [{tier: Disk, creditPercent: 101}]", want: "creditPercent"},
	})
}

func TestSessions(t *testing.T) {
	runCases(t, "RoutingPolicy", map[string]specCase{
		"a prefix has no name":   {spec: targets + "session: {keys: [{type: Prefix, name: x}]}", want: "name is required for"},
		"a header has a name":    {spec: targets + "session: {keys: [{type: Header}]}", want: "name is required for"},
		"a key needs a type":     {spec: targets + "session: {keys: [{name: x}]}", want: "type: Required value"},
		"no sessions":            {spec: targets + "session: {keys: []}"},
		"a session is forgotten": {spec: targets + "session: {idleSeconds: 0}", want: "idleSeconds"},
	})
}

func TestAdmission(t *testing.T) {
	of := func(fields string) string { return targets + "admission: {" + fields + "}" }
	runCases(t, "RoutingPolicy", map[string]specCase{
		"tenants":                           {spec: of("tenants: {" + tenants + ", classes: [{name: default}]}")},
		"API keys need Secrets":             {spec: of("tenants: {identification: APIKey, secretRefs: [], classes: [{name: default}]}"), want: "needs secretRefs"},
		"a header needs none":               {spec: of("tenants: {identification: Header, classes: [{name: default}]}")},
		"a header may have a name":          {spec: of("tenants: {identification: Header, headerName: x-tenant, classes: [{name: default}]}")},
		"API keys have no header":           {spec: of("tenants: {" + tenants + ", headerName: x-tenant, classes: [{name: default}]}"), want: "headerName is only for"},
		"the default class exists":          {spec: of("tenants: {" + tenants + ", defaultClass: gold, classes: [{name: default}]}"), want: "defaultClass must name"},
		"classes are needed":                {spec: of("tenants: {" + tenants + "}"), want: "classes: Required value"},
		"a class's priority exists":         {spec: of("tenants: {" + tenants + ", classes: [{name: default, maxPriority: x}]}"), want: "maxPriority must name"},
		"a class's priority":                {spec: of("priorities: [{name: x, level: 1}], tenants: {" + tenants + ", classes: [{name: default, maxPriority: x}]}")},
		"the default priority exists":       {spec: of("defaultPriority: other"), want: "defaultPriority must name"},
		"a priority of level zero":          {spec: of("priorities: [{name: x, level: 0}], defaultPriority: x")},
		"a priority needs a level":          {spec: of("priorities: [{name: x}]"), want: "level: Required value"},
		"a queue of no requests":            {spec: of("queue: {maxRequests: 0}")},
		"a queue of no bytes":               {spec: of("queue: {maxBytes: 0}"), want: "maxBytes must be at least"},
		"no waiting at all":                 {spec: of("waitBudgetMilliseconds: 0, holdSeconds: 0")},
		"a class without a rate":            {spec: of("tenants: {" + tenants + ", classes: [{name: default, requestsPerMinute: 0}]}"), want: "requestsPerMinute"},
		"a class's models are not the same": {spec: of("tenants: {" + tenants + ", classes: [{name: default, models: [a, a]}]}"), want: "Duplicate"},
	})
}

func TestFallbackAndDecisions(t *testing.T) {
	runCases(t, "RoutingPolicy", map[string]specCase{
		"nothing is retried":            {spec: targets + "fallback: {retryOn: []}"},
		"everything is retried":         {spec: targets + "fallback: {retryOn: [ConnectFailure, ServerError, FirstByteTimeout]}"},
		"a cause that is none":          {spec: targets + "fallback: {retryOn: [Always]}", want: "spec.fallback.retryOn[0]"},
		"a cause twice":                 {spec: targets + "fallback: {retryOn: [ServerError, ServerError]}", want: "Duplicate"},
		"at least one attempt":          {spec: targets + "fallback: {attempts: 0}", want: "spec.fallback.attempts"},
		"every decision is logged":      {spec: targets + "decisions: {logPercent: 100, answerHeaders: Always}"},
		"more than every decision":      {spec: targets + "decisions: {logPercent: 101}", want: "spec.decisions.logPercent"},
		"a guard of more than the KV":   {spec: targets + "guards: {maxKVUsagePercent: 101}", want: "maxKVUsagePercent"},
		"an island is never left":       {spec: targets + "guards: {islandCrossing: Never}"},
		"tokens of an engine, too":      {spec: targets + "tokens: {engine: BeyondBudget}"},
		"no speculation":                {spec: targets + `speculation: {mode: "Off"}`},
		"off is a boolean in YAML, too": {spec: targets + "speculation: {mode: Off}", want: "must be of type string"},
	})
}
