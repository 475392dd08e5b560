package apicases

import (
	"fmt"
	"strings"
)

func targetsOfPolicies() Group {
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"the smallest policy":            {Spec: targets},
		"no target":                      {Spec: "targetRefs: []", Want: "spec.targetRefs"},
		"one target twice":               {Spec: "targetRefs: [{name: p}, {name: p}]", Want: "Duplicate"},
		"one name in both groups":        {Spec: "targetRefs: [{name: p}, {name: p, group: inference.networking.k8s.io}]"},
		"a Service":                      {Spec: "targetRefs: [{name: p, kind: Service, group: ''}]", Want: "a target is an InferencePool"},
		"a pool of another group":        {Spec: "targetRefs: [{name: p, group: example.com}]", Want: "a target is an InferencePool"},
		"targets may change":             {Old: targets, Spec: "targetRefs: [{name: other}]"},
		"a misspelt strategy is noticed": {Spec: targets + "stratgy: {type: LMetric}", Want: "unknown field"},
	}}
}

func strategies() Group {
	strategy := func(fields string) string { return targets + "strategy: {" + fields + "}" }
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"a member of another type":               {Spec: strategy("type: LMetric, unified: {}"), Want: "unified is only for type Unified"},
		"no type":                                {Spec: strategy("lMetric: {}"), Want: "spec.strategy.type: Required value"},
		"an empty strategy":                      {Spec: strategy(""), Want: "spec.strategy.type: Required value"},
		"a type that is none":                    {Spec: strategy("type: Best"), Want: "Unsupported value"},
		"LMetric with a variant":                 {Spec: strategy("type: LMetric, lMetric: {variant: Literal}")},
		"a variant of another strategy":          {Spec: strategy("type: LMetric, lMetric: {variant: Guarded}"), Want: "Unsupported value"},
		"MarginalCost with its member":           {Spec: strategy("type: MarginalCost, marginalCost: {decodeHarmPercent: 0}")},
		"MarginalCost's member for another":      {Spec: strategy("type: Random, marginalCost: {}"), Want: "marginalCost is only for type MarginalCost"},
		"LongestPrefix with its member":          {Spec: strategy("type: LongestPrefix, longestPrefix: {minMatchPercent: 0}")},
		"LongestPrefix's member for another":     {Spec: strategy("type: Random, longestPrefix: {}"), Want: "longestPrefix is only for type LongestPrefix"},
		"LMetric's member for another":           {Spec: strategy("type: Random, lMetric: {}"), Want: "lMetric is only for type LMetric"},
		"Unified with its member":                {Spec: strategy("type: Unified, unified: {minHitPercent: 0}")},
		"Rendezvous with its member":             {Spec: strategy("type: Rendezvous, rendezvous: {key: Prefix}")},
		"Rendezvous's member for another":        {Spec: strategy("type: Random, rendezvous: {}"), Want: "rendezvous is only for type Rendezvous"},
		"ApproximatePrefix with its member":      {Spec: strategy("type: ApproximatePrefix, approximatePrefix: {kvWeight: 0}")},
		"ApproximatePrefix's member for another": {Spec: strategy("type: Random, approximatePrefix: {}"), Want: "approximatePrefix is only for type ApproximatePrefix"},
		"StickyLeastLoaded alone":                {Spec: strategy("type: StickyLeastLoaded")},
		"StickyLeastLoaded with its member":      {Spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {}")},
		"StickyLeastLoaded with a long prefix":   {Spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 65536}")},
		"StickyLeastLoaded with too long a one":  {Spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 65537}"), Want: "stickyLeastLoaded.prefixTokens"},
		"StickyLeastLoaded without a prefix":     {Spec: strategy("type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 0}"), Want: "stickyLeastLoaded.prefixTokens"},
		"StickyLeastLoaded's member for Sticky":  {Spec: strategy("type: Sticky, stickyLeastLoaded: {}"), Want: "stickyLeastLoaded is only for type StickyLeastLoaded"},
		"LeastPendingWork":                       {Spec: strategy("type: LeastPendingWork")},
		"Sticky":                                 {Spec: strategy("type: Sticky")},
		"LeastLoad":                              {Spec: strategy("type: LeastLoad")},
		"RoundRobin":                             {Spec: strategy("type: RoundRobin")},
		"Random":                                 {Spec: strategy("type: Random")},
	}}
}

func shadowsAndTiers() Group {
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"a shadow's member of another type":  {Spec: targets + "shadow: [{name: a, strategy: {type: Sticky, unified: {}}}]", Want: "unified is only"},
		"shadows":                            {Spec: targets + "shadow: [{name: a, strategy: {type: Sticky}}, {name: b, strategy: {type: LongestPrefix, longestPrefix: {variant: Literal}}}]"},
		"shadows have different names":       {Spec: targets + "shadow: [{name: a, strategy: {type: Sticky}}, {name: a, strategy: {type: Random}}]", Want: "Duplicate"},
		"a shadow that samples nothing":      {Spec: targets + "shadow: [{name: a, strategy: {type: Sticky}, samplePercent: 0}]", Want: "samplePercent"},
		"the GPU is worth 100 percent":       {Spec: targets + "tiers: [{tier: GPU, creditPercent: 50}]", Want: "spec.tiers[0].tier"},
		"a tier may be worth nothing":        {Spec: targets + "tiers: [{tier: Disk, creditPercent: 0}]"},
		"a tier needs a credit":              {Spec: targets + "tiers: [{tier: Disk}]", Want: "creditPercent: Required value"},
		"a tier is worth no more than a GPU": {Spec: targets + "tiers: [{tier: Disk, creditPercent: 101}]", Want: "creditPercent"},
	}}
}

func sessions() Group {
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"a prefix has no name":   {Spec: targets + "session: {keys: [{type: Prefix, name: x}]}", Want: "name is required for"},
		"a header has a name":    {Spec: targets + "session: {keys: [{type: Header}]}", Want: "name is required for"},
		"a key needs a type":     {Spec: targets + "session: {keys: [{name: x}]}", Want: "type: Required value"},
		"no sessions":            {Spec: targets + "session: {keys: []}"},
		"a session is forgotten": {Spec: targets + "session: {idleSeconds: 0}", Want: "idleSeconds"},
	}}
}

func admission() Group {
	of := func(fields string) string { return targets + "admission: {" + fields + "}" }
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"tenants":                           {Spec: of("tenants: {" + tenants + ", classes: [{name: default}]}")},
		"tokens name tenants":               {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example/realms/a', audiences: [kvasir], keysURL: 'https://idp.example/keys?v=1', tenantClaim: azp}, classes: [{name: default}]}")},
		"tokens name tenants by subject":    {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example', audiences: [kvasir]}, classes: [{name: default}]}")},
		"issuers have authorities":          {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example', audiences: [kvasir], caCertificates: \"-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----\"}, classes: [{name: default}]}")},
		"authorities are certificates":      {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example', audiences: [kvasir], caCertificates: /etc/ssl/ca.pem}, classes: [{name: default}]}"), Want: "jwt.caCertificates"},
		"tokens have an issuer":             {Spec: of("tenants: {identification: JWT, classes: [{name: default}]}"), Want: "jwt is required when identification is JWT"},
		"tokens are of one way":             {Spec: of("tenants: {identification: Header, jwt: {issuer: 'https://idp.example', audiences: [kvasir]}, classes: [{name: default}]}"), Want: "jwt is required when identification is JWT"},
		"tokens are for somebody":           {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example', audiences: []}, classes: [{name: default}]}"), Want: "audiences"},
		"issuers speak TLS":                 {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'http://idp.example', audiences: [kvasir]}, classes: [{name: default}]}"), Want: "jwt.issuer"},
		"keys come over TLS":                {Spec: of("tenants: {identification: JWT, jwt: {issuer: 'https://idp.example', audiences: [kvasir], keysURL: 'file:///keys'}, classes: [{name: default}]}"), Want: "jwt.keysURL"},
		"certificates of clients":           {Spec: of("tenants: {identification: ClientCertificate, secretRefs: [{name: s}], classes: [{name: default}]}")},
		"certificates need Secrets":         {Spec: of("tenants: {identification: ClientCertificate, classes: [{name: default}]}"), Want: "need secretRefs"},
		"certificates are in no header":     {Spec: of("tenants: {identification: ClientCertificate, headerName: x, secretRefs: [{name: s}], classes: [{name: default}]}"), Want: "headerName is only"},
		"API keys need Secrets":             {Spec: of("tenants: {identification: APIKey, secretRefs: [], classes: [{name: default}]}"), Want: "need secretRefs"},
		"a header needs none":               {Spec: of("tenants: {identification: Header, classes: [{name: default}]}")},
		"a header may have a name":          {Spec: of("tenants: {identification: Header, headerName: x-tenant, classes: [{name: default}]}")},
		"API keys have no header":           {Spec: of("tenants: {" + tenants + ", headerName: x-tenant, classes: [{name: default}]}"), Want: "headerName is only for"},
		"the default class exists":          {Spec: of("tenants: {" + tenants + ", defaultClass: gold, classes: [{name: default}]}"), Want: "defaultClass must name"},
		"classes are needed":                {Spec: of("tenants: {" + tenants + "}"), Want: "classes: Required value"},
		"a class's priority exists":         {Spec: of("tenants: {" + tenants + ", classes: [{name: default, maxPriority: x}]}"), Want: "maxPriority must name"},
		"a class's priority":                {Spec: of("priorities: [{name: x, level: 1}], tenants: {" + tenants + ", classes: [{name: default, maxPriority: x}]}")},
		"the default priority exists":       {Spec: of("defaultPriority: other"), Want: "defaultPriority must name"},
		"a priority of level zero":          {Spec: of("priorities: [{name: x, level: 0}], defaultPriority: x")},
		"a priority needs a level":          {Spec: of("priorities: [{name: x}]"), Want: "level: Required value"},
		"a queue of no requests":            {Spec: of("queue: {maxRequests: 0}")},
		"a queue of no bytes":               {Spec: of("queue: {maxBytes: 0}"), Want: "maxBytes must be at least"},
		"no waiting at all":                 {Spec: of("waitBudgetMilliseconds: 0, holdSeconds: 0")},
		"a target for first tokens":         {Spec: of("maxSlowdownPercent: 200")},
		"the strictest target":              {Spec: of("maxSlowdownPercent: 110")},
		"a target that cannot be met":       {Spec: of("maxSlowdownPercent: 109"), Want: "spec.admission.maxSlowdownPercent"},
		"the widest target":                 {Spec: of("maxSlowdownPercent: 100000")},
		"a target that is none":             {Spec: of("maxSlowdownPercent: 100001"), Want: "spec.admission.maxSlowdownPercent"},
		"a target is a whole number":        {Spec: of("maxSlowdownPercent: 2.5"), Want: "spec.admission.maxSlowdownPercent"},
		"a class without a rate":            {Spec: of("tenants: {" + tenants + ", classes: [{name: default, requestsPerMinute: 0}]}"), Want: "requestsPerMinute"},
		"fields for the engine":             {Spec: of("engineFields: [Priority, KVTransfer], tenants: {" + tenants + ", classes: [{name: default, engineFields: [Priority]}]}")},
		"caches of tenants apart":           {Spec: of("tenants: {" + tenants + ", cacheSalt: PerTenant, classes: [{name: default}]}")},
		"other caches apart":                {Spec: of("tenants: {" + tenants + ", cacheSalt: PerUser, classes: [{name: default}]}"), Want: "spec.admission.tenants.cacheSalt"},
		"no fields for the engine":          {Spec: of("engineFields: []")},
		"other fields for the engine":       {Spec: of("engineFields: [Sampling]"), Want: "spec.admission.engineFields[0]"},
		"a field for the engine twice":      {Spec: of("engineFields: [Priority, Priority]"), Want: "Duplicate"},
		"origins":                           {Spec: of(`allowedOrigins: ["*", "https://a.example", "http://[::1]:3000"]`)},
		"no origins":                        {Spec: of("allowedOrigins: []")},
		"an origin without a scheme":        {Spec: of("allowedOrigins: [a.example]"), Want: "spec.admission.allowedOrigins[0]"},
		"an origin with a path":             {Spec: of(`allowedOrigins: ["https://a.example/"]`), Want: "spec.admission.allowedOrigins[0]"},
		"a class's models are not the same": {Spec: of("tenants: {" + tenants + ", classes: [{name: default, models: [a, a]}]}"), Want: "Duplicate"},
	}}
}

func hooks() Group {
	of := func(step string) string { return targets + "hooks: {steps: [" + step + "]}" }
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"a step that refuses":         {Spec: of("{name: a, when: 'true', refuse: {message: 'no'}}")},
		"a step that sets all":        {Spec: of("{name: a, model: m, priority: p, sessionExpression: tenant, costLimit: 1, failureMode: FailOpen}")},
		"a step that does both":       {Spec: of("{name: a, model: m, refuse: {message: 'no'}}"), Want: "a step has either refuse"},
		"a step that does nothing":    {Spec: of("{name: a, when: 'true'}"), Want: "a step has either refuse"},
		"a step that calls":           {Spec: of("{name: a, when: 'true', call: {url: 'http://opa:8181/v1/data/x?y=1', timeoutMilliseconds: 5000}, failureMode: FailOpen}")},
		"a call over TLS":             {Spec: of("{name: a, call: {url: 'https://[fd00::1]:8181'}}")},
		"a step that calls and sets":  {Spec: of("{name: a, model: m, call: {url: 'http://opa'}}"), Want: "a step has either refuse"},
		"a call to nowhere":           {Spec: of("{name: a, call: {timeoutMilliseconds: 5}}"), Want: "url: Required value"},
		"a call that is no URL":       {Spec: of("{name: a, call: {url: 'opa:8181'}}"), Want: "spec.hooks.steps[0].call.url"},
		"a call with a password":      {Spec: of("{name: a, call: {url: 'http://u:p@opa/'}}"), Want: "spec.hooks.steps[0].call.url"},
		"a call without time":         {Spec: of("{name: a, call: {url: 'http://opa', timeoutMilliseconds: 0}}"), Want: "timeoutMilliseconds"},
		"a call of much time":         {Spec: of("{name: a, call: {url: 'http://opa', timeoutMilliseconds: 5001}}"), Want: "timeoutMilliseconds"},
		"a step without a name":       {Spec: of("{model: m}"), Want: "name: Required value"},
		"the name of a step":          {Spec: of("{name: A b, model: m}"), Want: "spec.hooks.steps[0].name"},
		"a name twice":                {Spec: of("{name: a, model: m}, {name: a, model: n}"), Want: "Duplicate"},
		"a refusal without a message": {Spec: of("{name: a, refuse: {status: 403}}"), Want: "message: Required value"},
		"a refusal that is a success": {Spec: of("{name: a, refuse: {status: 200, message: 'no'}}"), Want: "spec.hooks.steps[0].refuse.status"},
		"an expression that is empty": {Spec: of("{name: a, when: '', model: m}"), Want: "spec.hooks.steps[0].when"},
		"an expression that is long":  {Spec: of("{name: a, when: '" + strings.Repeat("x", 1025) + "', model: m}"), Want: "spec.hooks.steps[0].when"},
		"a limit of no cost":          {Spec: of("{name: a, model: m, costLimit: 0}"), Want: "spec.hooks.steps[0].costLimit"},
		"a limit of much cost":        {Spec: of("{name: a, model: m, costLimit: 100001}"), Want: "spec.hooks.steps[0].costLimit"},
		"a failure mode that is none": {Spec: of("{name: a, model: m, failureMode: FailClosed}"), Want: "spec.hooks.steps[0].failureMode"},
		"what expressions read":       {Spec: targets + "hooks: {headers: [x-a], bodyFields: [max_tokens, user]}"},
		"a header in upper case":      {Spec: targets + "hooks: {headers: [X-A]}", Want: "spec.hooks.headers[0]"},
		"a pseudo-header":             {Spec: targets + "hooks: {headers: [':path']}", Want: "spec.hooks.headers[0]"},
		"a field in a field":          {Spec: targets + "hooks: {bodyFields: ['a b']}", Want: "spec.hooks.bodyFields[0]"},
		"hooks of nothing":            {Spec: targets + "hooks: {}", Want: "spec.hooks"},
	}}
}

func responseCache() Group {
	const semantic = "semantic: {embeddings: {url: 'http://e.models:8000/v1/embeddings', model: m}}"
	of := func(fields string) string { return targets + "responseCache: {" + fields + "}" }
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"a response cache":        {Spec: of("type: Exact")},
		"all of a response cache": {Spec: of("type: Exact, requests: OnRequest, maxBytes: 1Gi, timeToLiveSeconds: 86400")},
		"a cache without a type":  {Spec: of("maxBytes: 1Mi"), Want: "spec.responseCache.type"},
		"a cache of another type": {Spec: of("type: Similar"), Want: "spec.responseCache.type"},
		"a semantic cache":        {Spec: of("type: Semantic, " + semantic)},
		"all of a semantic cache": {Spec: of("type: Semantic, semantic: {minSimilarityPercent: 100, embeddings: {url: 'https://[fd00::1]/v1/embeddings?x=1', model: m, " +
			"keySecretRef: {name: a, key: b}, timeoutMilliseconds: 5000}}")},
		"a semantic cache without a service":  {Spec: of("type: Semantic"), Want: "semantic is for type Semantic"},
		"a service without a semantic cache":  {Spec: of("type: Exact, " + semantic), Want: "semantic is for type Semantic"},
		"semantic without embeddings":         {Spec: of("type: Semantic, semantic: {minSimilarityPercent: 90}"), Want: "embeddings: Required value"},
		"embeddings of nowhere":               {Spec: of("type: Semantic, semantic: {embeddings: {model: m}}"), Want: "url: Required value"},
		"embeddings of no model":              {Spec: of("type: Semantic, semantic: {embeddings: {url: 'http://e'}}"), Want: "model: Required value"},
		"embeddings of no URL":                {Spec: of("type: Semantic, semantic: {embeddings: {url: 'e:80', model: m}}"), Want: "spec.responseCache.semantic.embeddings.url"},
		"embeddings with a password":          {Spec: of("type: Semantic, semantic: {embeddings: {url: 'http://u:p@e', model: m}}"), Want: "spec.responseCache.semantic.embeddings.url"},
		"embeddings in no time":               {Spec: of("type: Semantic, semantic: {embeddings: {url: 'http://e', model: m, timeoutMilliseconds: 0}}"), Want: "timeoutMilliseconds"},
		"embeddings in much time":             {Spec: of("type: Semantic, semantic: {embeddings: {url: 'http://e', model: m, timeoutMilliseconds: 5001}}"), Want: "timeoutMilliseconds"},
		"questions that are not very similar": {Spec: of("type: Semantic, semantic: {minSimilarityPercent: 69, embeddings: {url: 'http://e', model: m}}"), Want: "minSimilarityPercent"},
		"questions that are more than equal":  {Spec: of("type: Semantic, semantic: {minSimilarityPercent: 101, embeddings: {url: 'http://e', model: m}}"), Want: "minSimilarityPercent"},
		"a cache in Redis":                    {Spec: of("type: Exact, store: {redis: {url: 'redis://r.caches:6379'}}")},
		"all of a cache in Redis": {Spec: of("type: Exact, store: {redis: {url: 'rediss://[fd00::1]:6379', username: u, passwordSecretRef: {name: a, key: b}, " +
			"caSecretRef: {name: a, key: c}, keyPrefix: 'a:b', timeoutMilliseconds: 1000}}")},
		"a store of nothing":          {Spec: of("type: Exact, store: {redis: {keyPrefix: a}}"), Want: "url: Required value"},
		"a store that is none":        {Spec: of("type: Exact, store: {}"), Want: "redis: Required value"},
		"Redis by a name alone":       {Spec: of("type: Exact, store: {redis: {url: 'redis://r'}}"), Want: "spec.responseCache.store.redis.url"},
		"Redis with a password":       {Spec: of("type: Exact, store: {redis: {url: 'redis://:p@r:6379'}}"), Want: "spec.responseCache.store.redis.url"},
		"Redis by HTTP":               {Spec: of("type: Exact, store: {redis: {url: 'http://r:6379'}}"), Want: "spec.responseCache.store.redis.url"},
		"authorities without TLS":     {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', caSecretRef: {name: a, key: b}}}"), Want: "caSecretRef is for a URL of rediss"},
		"a user without a password":   {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', username: u}}"), Want: "username needs passwordSecretRef"},
		"a user with spaces":          {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', username: 'u v', passwordSecretRef: {name: a, key: b}}}"), Want: "username"},
		"a prefix with spaces":        {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', keyPrefix: 'a b'}}"), Want: "keyPrefix"},
		"Redis in no time":            {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', timeoutMilliseconds: 0}}"), Want: "timeoutMilliseconds"},
		"Redis in more than a second": {Spec: of("type: Exact, store: {redis: {url: 'redis://r:6379', timeoutMilliseconds: 1001}}"), Want: "timeoutMilliseconds"},
		"a cache of all requests":     {Spec: of("type: Exact, requests: All"), Want: "spec.responseCache.requests"},
		"a cache of few bytes":        {Spec: of("type: Exact, maxBytes: 1023Ki"), Want: "maxBytes must be 1Mi to 16Gi"},
		"a cache of many bytes":       {Spec: of("type: Exact, maxBytes: 17Gi"), Want: "maxBytes must be 1Mi to 16Gi"},
		"a cache of no time":          {Spec: of("type: Exact, timeToLiveSeconds: 0"), Want: "spec.responseCache"},
		"a cache of two days":         {Spec: of("type: Exact, timeToLiveSeconds: 172800"), Want: "spec.responseCache.timeToLiveSeconds"},
	}}
}

func fallbackAndDecisions() Group {
	return Group{Kind: "RoutingPolicy", Cases: map[string]Case{
		"nothing is retried":            {Spec: targets + "fallback: {retryOn: []}"},
		"everything is retried":         {Spec: targets + "fallback: {retryOn: [ConnectFailure, Reset, ServerError, FirstByteTimeout, Stall, BrokenStream]}"},
		"a cause that is none":          {Spec: targets + "fallback: {retryOn: [Always]}", Want: "spec.fallback.retryOn[0]"},
		"a cause twice":                 {Spec: targets + "fallback: {retryOn: [ServerError, ServerError]}", Want: "Duplicate"},
		"at least one attempt":          {Spec: targets + "fallback: {attempts: 0}", Want: "spec.fallback.attempts"},
		"every decision is logged":      {Spec: targets + "decisions: {logPercent: 100, answerHeaders: Always}"},
		"more than every decision":      {Spec: targets + "decisions: {logPercent: 101}", Want: "spec.decisions.logPercent"},
		"a guard of more than the KV":   {Spec: targets + "guards: {maxKVUsagePercent: 101}", Want: "maxKVUsagePercent"},
		"an island is never left":       {Spec: targets + "guards: {islandCrossing: Never}"},
		"tokens of an engine, too":      {Spec: targets + "tokens: {engine: BeyondBudget}"},
		"hand-offs by cost":             {Spec: targets + "disaggregation: {type: Cost}"},
		"hand-offs from a size":         {Spec: targets + "disaggregation: {type: Threshold, uncachedTokens: 2048}"},
		"hand-offs from no size":        {Spec: targets + "disaggregation: {type: Threshold}", Want: "uncachedTokens is for type Threshold"},
		"hand-offs by cost from a size": {Spec: targets + "disaggregation: {type: Cost, uncachedTokens: 2048}", Want: "uncachedTokens is for type Threshold"},
		"hand-offs from size 0":         {Spec: targets + "disaggregation: {type: Threshold, uncachedTokens: 0}", Want: "spec.disaggregation"},
		"hand-offs by chance":           {Spec: targets + "disaggregation: {type: Random}", Want: "spec.disaggregation.type"},
		"hand-offs by a sidecar":        {Spec: targets + "disaggregation: {type: Cost, sidecar: LLMD}"},
		"hand-offs by our sidecar":      {Spec: targets + "disaggregation: {type: Cost, sidecar: Kvasir}"},
		"hand-offs by another sidecar":  {Spec: targets + "disaggregation: {type: Cost, sidecar: Envoy}", Want: "spec.disaggregation.sidecar"},
		"hand-offs at once":             {Spec: targets + "disaggregation: {type: Cost, connector: Mooncake}"},
		"hand-offs by a tier":           {Spec: targets + "disaggregation: {type: Cost, connector: Offloading, connectorPort: 7777}"},
		"hand-offs by file":             {Spec: targets + "disaggregation: {type: Cost, connector: Example}", Want: "spec.disaggregation.connector"},
		"hand-offs at a port of NIXL":   {Spec: targets + "disaggregation: {type: Cost, connectorPort: 5600}", Want: "connectorPort is for connector Mooncake"},
		"hand-offs at port 0":           {Spec: targets + "disaggregation: {type: Cost, connector: Mooncake, connectorPort: 0}", Want: "spec.disaggregation"},
		"hand-offs by no kind":          {Spec: targets + "disaggregation: {sidecar: LLMD}", Want: "spec.disaggregation"},
		"hand-offs of no kind":          {Spec: targets + "disaggregation: {}", Want: "spec.disaggregation"},
		"comments on streams":           {Spec: targets + "streams: {commentSeconds: 15}"},
		"comments all the time":         {Spec: targets + "streams: {commentSeconds: 0}", Want: "spec.streams"},
		"streams without anything":      {Spec: targets + "streams: {}", Want: "spec.streams"},
		"no speculation":                {Spec: targets + `speculation: {mode: "Off"}`},
		"off is a boolean in YAML, too": {Spec: targets + "speculation: {mode: Off}", Want: "must be of type string"},
	}}
}

// strategyMembers are the members of strategies, each with the type that it is for.
var strategyMembers = map[string]string{
	"marginalCost": "MarginalCost", "stickyLeastLoaded": "StickyLeastLoaded", "longestPrefix": "LongestPrefix", "lMetric": "LMetric",
	"unified": "Unified", "rendezvous": "Rendezvous", "approximatePrefix": "ApproximatePrefix",
}

// membersOfStrategies are left empty, for their type and for another, in a strategy and in a shadow.
func membersOfStrategies() Group {
	g := Group{Kind: "RoutingPolicy", Cases: map[string]Case{}}
	for member, kind := range strategyMembers {
		places := map[string]string{"a strategy": "strategy: {type: %s, %s: {}}", "a shadow": "shadow: [{name: a, strategy: {type: %s, %s: {}}}]"}
		for where, spec := range places {
			g.Cases["an empty "+member+" of "+where] = Case{Spec: targets + fmt.Sprintf(spec, kind, member)}
			g.Cases["an empty "+member+" for another type of "+where] = Case{
				Spec: targets + fmt.Sprintf(spec, "Random", member), Want: member + " is only for type " + kind,
			}
		}
	}
	return g
}
