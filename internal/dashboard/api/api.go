// Package api is what a picker serves to people, on its metrics address and behind the same authentication as /metrics:
//
//	GET  /status?output=json               Status; YAML without output=json
//	GET  /decisions?limit=100              the last decisions, oldest first, one Decision as JSON per line
//	GET  /decisions?follow=1&limit=10      the same, and then every new one until the client leaves
//	GET  /decisions?...&ended=1            only those whose requests have ended
//	GET  /prefixes?limit=20                Prefixes
//	GET  /history                          History: the last hour of each pool
//	POST /explain?path=/v1/chat/completions   body: a request; answers an Explanation, and sends nothing anywhere
//
// Faults are answered as a Fault. No answer contains a prompt's text, a token, a key of a cache, a session or a user.
package api

import "time"

// MaxDecisions and MaxPrefixes are the most that can be asked for at a time.
const (
	MaxDecisions = 512
	MaxPrefixes  = 100
)

// Status is what GET /status answers: a Kubernetes List of all pools and policies with their status, and Live.
type Status struct {
	Live Live `json:"live"`
}

// Live is what one picker replica knows at a moment. What other replicas send is in it only where that is said.
type Live struct {
	// Picker is the replica's name, Version that of its program; Time is when this was so, Started when the process began.
	Picker  string `json:"picker"`
	Version string `json:"version"`
	// Docs is the address of the documentation, to which paths such as troubleshooting.md are added.
	Docs    string    `json:"docs,omitempty"`
	Time    time.Time `json:"time"`
	Started time.Time `json:"started"`
	// Ready reports whether the replica takes requests; NotReady is the reason if it does not.
	Ready    bool   `json:"ready"`
	NotReady string `json:"notReady,omitempty"`
	// Problems are why parts of the configuration are not applied.
	Problems []string `json:"problems,omitempty"`
	Pools    []Pool   `json:"pools"`
	// Routes that are applied, by namespace and name.
	Routes []Route `json:"routes,omitempty"`
}

// Route is a ModelRoute, and what it has counted since the process began. Pools are named namespace/name.
type Route struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Models    []string    `json:"models"`
	Rules     []RouteRule `json:"rules"`
	// Requests for which an endpoint was picked, by pool. Left are those that left a pool for a fallback, by pool and cause.
	Requests map[string]int64            `json:"requests"`
	Left     map[string]map[string]int64 `json:"left,omitempty"`
}

// RouteRule is a rule of a route.
type RouteRule struct {
	// When are alternatives: what a request must have, without values of headers. Absent, the rule is for all.
	When []string `json:"when,omitempty"`
	// Sticky: sessions stay with their backend.
	Sticky    bool           `json:"sticky,omitempty"`
	Backends  []RouteBackend `json:"backends"`
	Fallbacks []RouteBackend `json:"fallbacks,omitempty"`
}

// RouteBackend is a pool of a rule. Model is the name that its engines get, if it is not that of the pool's model.
type RouteBackend struct {
	Pool   string `json:"pool"`
	Model  string `json:"model,omitempty"`
	Weight int    `json:"weight"`
}

// Pool is what is known of a pool. Counters begin with the process.
type Pool struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Model     string `json:"model"`
	// Strategy that is applied, and the policy that sets it; empty for the default.
	Strategy    string `json:"strategy"`
	Policy      string `json:"policy,omitempty"`
	BlockTokens int    `json:"blockTokens"`

	// Waiting requests for room, Refused ones for lack of it, and Requests that were placed.
	Waiting  int   `json:"waiting"`
	Refused  int64 `json:"refused"`
	Requests int64 `json:"requests"`
	// Outcomes counts ended requests: completed, client_gone, failed, rejected, unreported.
	Outcomes map[string]int64 `json:"outcomes"`
	// TTFT is the time to the first token of streamed answers, in seconds; absent before the first.
	TTFT *Quantiles `json:"ttft,omitempty"`

	// Hits are predicted and delivered prompt tokens, of answers that report them. Recent are those of about the last
	// minute.
	Hits   Hits `json:"hits"`
	Recent Hits `json:"recent"`
	// Blocks in the index, each counted once; Held is (endpoint, block) pairs; Speculative those assumed.
	Blocks      int `json:"blocks"`
	Held        int `json:"held"`
	Speculative int `json:"speculative"`

	// ExactTokens is the part of the last requests whose tokens were known exactly, 0 to 1; Inexact is the reason of the
	// last request without exact tokens.
	ExactTokens float64 `json:"exactTokens"`
	Inexact     string  `json:"inexact,omitempty"`
	// Degraded describes in short sentences what is wrong; empty when all is well.
	Degraded []string `json:"degraded,omitempty"`

	Size    Size     `json:"size"`
	Rollout *Rollout `json:"rollout,omitempty"`
	Pods    []Pod    `json:"pods"`
	Shadows []Shadow `json:"shadows,omitempty"`

	// ResponseCache is absent without one. Hooks are the steps of the policy, in their order; absent without steps.
	ResponseCache *ResponseCache `json:"responseCache,omitempty"`
	Hooks         []HookStep     `json:"hooks,omitempty"`
}

// ResponseCache is what the response cache of a pool has done and holds, for all tenants together. Each replica has a cache of its own:
// what one of them has stored, the others do not answer.
type ResponseCache struct {
	// Hits are requests that were answered from the cache, without an endpoint: Pool.Requests does not have them. Misses were looked up
	// and not there. NotLookedUp are the others, by reason.
	Hits        int64            `json:"hits"`
	Misses      int64            `json:"misses"`
	NotLookedUp map[string]int64 `json:"notLookedUp,omitempty"`
	// Stored are answers of engines that were stored; NotStored are those to other misses, by reason.
	Stored    int64            `json:"stored"`
	NotStored map[string]int64 `json:"notStored,omitempty"`
	// Evicted answers had to give way to others, Expired ones were too old.
	Evicted int64 `json:"evicted"`
	Expired int64 `json:"expired"`
	// Entries are the answers in the cache. They and the answers under way take Bytes, at most Limit.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Limit   int64 `json:"limit"`
	// Semantic is absent where only equal requests are answered.
	Semantic *SemanticCache `json:"semantic,omitempty"`
	// Store is absent where each replica has its own answers alone.
	Store *CacheStore `json:"store,omitempty"`
}

// CacheStore is what a response cache has done with the store that it shares with other replicas.
type CacheStore struct {
	// Results are questions to the store (hit, miss, invalid, failed, not_called) and answers for it (written, write_failed, dropped). Hits
	// are among those of the cache.
	Results map[string]int64 `json:"results"`
	// Trouble is why the store is not used now: a word, and a sentence. Empty if it is.
	Trouble       string `json:"trouble,omitempty"`
	TroubleDetail string `json:"troubleDetail,omitempty"`
}

// SemanticCache is what a response cache has done for similar questions.
type SemanticCache struct {
	// Hits are requests that were answered with the answer to a similar question, beside those of the cache's Hits.
	Hits int64 `json:"hits"`
	// Vectors are the answers in the cache that similar questions find.
	Vectors int `json:"vectors"`
	// Embedded questions were compared; NotEmbedded are the others, by reason.
	Embedded    int64            `json:"embedded"`
	NotEmbedded map[string]int64 `json:"notEmbedded,omitempty"`
	// Trouble is why similar questions are not found now: a word, and a sentence. Empty if they are.
	Trouble       string `json:"trouble,omitempty"`
	TroubleDetail string `json:"troubleDetail,omitempty"`
}

// HookStep is a step of a policy, and how many requests had which outcome: skipped, applied, refused, failed_open, failed_closed.
type HookStep struct {
	Name     string           `json:"name"`
	Outcomes map[string]int64 `json:"outcomes"`
}

// Quantiles of a time, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Hits compares prompt tokens that were expected in caches with those that engines found there.
type Hits struct {
	Answers   int64 `json:"answers"`
	Prompt    int64 `json:"prompt"`
	Predicted int64 `json:"predicted"`
	Confirmed int64 `json:"confirmed"`
	Delivered int64 `json:"delivered"`
	// Deviation is the sum over answers of |predicted - delivered|: divided by Prompt it is the divergence.
	Deviation int64 `json:"deviation"`
	// Picks are all of them, whatever their answers report: PickedPrompt and PickedPredicted are their prompt tokens. Untold
	// are the complete answers that do not report cached tokens.
	Picks           int64 `json:"picks"`
	PickedPrompt    int64 `json:"pickedPrompt"`
	PickedPredicted int64 `json:"pickedPredicted"`
	Unreported      int64 `json:"untold"`
}

// Size of a pool in pods, as this replica sees it; Desired is the operator's, absent without one.
type Size struct {
	Desired  *int32 `json:"desired,omitempty"`
	Pods     int    `json:"pods"`
	Ready    int    `json:"ready"`
	Draining int    `json:"draining"`
}

// Rollout of a pool's template, as the operator reports it in the pool's status.
type Rollout struct {
	// Reason of the condition UpToDate: UpToDate, RolloutInProgress, RolloutStopped, RolloutOnDelete, InjectionOutdated.
	Reason          string `json:"reason"`
	Message         string `json:"message,omitempty"`
	CurrentRevision string `json:"currentRevision,omitempty"`
	UpdateRevision  string `json:"updateRevision,omitempty"`
	Updated         int32  `json:"updated"`
	Replicas        int32  `json:"replicas"`
}

// Pod is a pod, with its endpoints: one for each data-parallel rank.
type Pod struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Phase: Serving, NotReady, Draining (no request is sent there any more), Circuit (kept out for its failures).
	Phase string `json:"phase"`
	// Reason of the phase NotReady, where the picker itself knows it: Unreachable, NotAnswering.
	Reason    string     `json:"reason,omitempty"`
	Island    string     `json:"island,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// The phases of a pod.
const (
	PhaseServing  = "Serving"
	PhaseNotReady = "NotReady"
	PhaseDraining = "Draining"
	PhaseCircuit  = "Circuit"
)

// ReasonUnreachable is the reason of a pod that the picker cannot connect to.
const ReasonUnreachable = "Unreachable"

// ReasonNotAnswering is the reason of a pod that takes connections and answers nothing, or has accepted requests and shows no
// progress with any.
const ReasonNotAnswering = "NotAnswering"

// Endpoint is one rank of a pod.
type Endpoint struct {
	Rank    int    `json:"rank"`
	Address string `json:"address,omitempty"`
	// Events is how far it is known what the endpoint holds: Synced, Syncing, Disconnected, Unverified, Degraded, or
	// None without a source. Lag is the age of what was applied last, in seconds.
	Events string  `json:"events"`
	Lag    float64 `json:"lag"`

	// Blocks that the endpoint holds; Unique are the ones that no other endpoint of the pool holds, Shared the
	// others. Capacity is its KV cache in blocks, 0 when it is not known. Fill is Blocks / Capacity, at most 1.
	Blocks   int     `json:"blocks"`
	Unique   int     `json:"unique"`
	Shared   int     `json:"shared"`
	Capacity int     `json:"capacity"`
	Fill     float64 `json:"fill"`
	// KVUsage is the part of the KV cache that running requests use, by the engine's metrics, 0 to 1.
	KVUsage float64 `json:"kvUsage"`

	// InFlight requests, of all replicas; Decoding of them have their first token; PendingTokens are still to be
	// prefilled. Waiting requests are in the engine's own queue.
	InFlight      int     `json:"inFlight"`
	Decoding      int     `json:"decoding"`
	PendingTokens float64 `json:"pendingTokens"`
	Waiting       int     `json:"waiting"`
	// Rate is the learned speed of prefill, tokens/s; 0 until one is learned.
	Rate float64 `json:"rate"`

	Picks    int64 `json:"picks"`
	Failures int64 `json:"failures"`
	Hits     Hits  `json:"hits"`
	Recent   Hits  `json:"recent"`
	// Doubted: events are missing, and what is known of the endpoint counts half.
	Doubted bool `json:"doubted,omitempty"`
}

// Shadow is a strategy that is compared with the applied one, and never decides.
type Shadow struct {
	Name         string  `json:"name"`
	Strategy     string  `json:"strategy"`
	Compared     int64   `json:"compared"`
	Agreed       int64   `json:"agreed"`
	SavedSeconds float64 `json:"savedSeconds"`
	LostSeconds  float64 `json:"lostSeconds"`
}

// Decision is where a request went and why. It is sent at the pick, without Outcome, and with the same ID again when
// the request has ended.
type Decision struct {
	// ID grows by the decision; it means something in one process only.
	ID uint64 `json:"id"`
	// Request is the request's id, X-Request-Id.
	Request string    `json:"request,omitempty"`
	Time    time.Time `json:"time"`
	// Passed is how many decisions were made since the previous recorded one: all are recorded while a client follows (up
	// to 200 a second), one now and then otherwise.
	Passed int64 `json:"passed"`
	Explanation

	// Attempt is which candidate served, from 0. Outcome is completed, client_gone, failed, rejected or unreported,
	// empty while the request is under way.
	Attempt int    `json:"attempt"`
	Outcome string `json:"outcome,omitempty"`
	// Cached is how many prompt tokens the engine found in its cache, -1 when it did not report it (yet).
	Cached int `json:"cached"`
	// Miss is why the engine found nothing of what the index had; empty where it found something.
	Miss string `json:"miss,omitempty"`
	// Waited for room in the picker, until the FirstToken (0 for answers that are not streamed), and until the end:
	// milliseconds from the request's arrival.
	Waited     float64 `json:"waitedMilliseconds"`
	FirstToken float64 `json:"firstTokenMilliseconds,omitempty"`
	Duration   float64 `json:"durationMilliseconds,omitempty"`
}

// Explanation is how the applied strategy sees a request.
type Explanation struct {
	Namespace string `json:"namespace"`
	Pool      string `json:"pool"`
	Model     string `json:"model"`
	Strategy  string `json:"strategy"`
	// Route is the ModelRoute that led to the pool, its rule and why; empty without a route.
	Route string `json:"route,omitempty"`
	// Hooks are the outcomes of the policy's steps, by pool; empty without steps.
	Hooks string `json:"hooks,omitempty"`
	// ResponseCache is what the pool's response cache would do with the request; absent without a cache, and in decisions.
	ResponseCache *CacheResult `json:"responseCache,omitempty"`
	// Tokens is where the prompt's token ids came from; TokensMissing why they are not exact.
	Tokens        string `json:"tokens"`
	TokensMissing string `json:"tokensMissing,omitempty"`
	PromptTokens  int    `json:"promptTokens"`
	// Prefix is a hash of the prompt's leading full blocks: equal ones have equal prefixes.
	Prefix string `json:"prefix,omitempty"`
	// Distrusted: matches of some candidates are ignored, because they do not find what they announce for such requests.
	Distrusted bool `json:"distrusted,omitempty"`
	// NoCacheRead: engines look nothing up in their caches for the request, so that nothing matches.
	NoCacheRead bool `json:"noCacheRead,omitempty"`
	// Unit of the costs: seconds, or what the strategy compares.
	Unit string `json:"unit"`
	// Candidates, all that were scored, the best first; none if only the response cache answers.
	// Left out are endpoints that were no candidates, with the reason.
	Candidates []Candidate `json:"candidates"`
	LeftOut    []LeftOut   `json:"leftOut,omitempty"`
	// Fleet are terms that all candidates have in common.
	Fleet []Term `json:"fleet,omitempty"`
	// Plans are the ways to serve the request; absent where there is only one, as in pools without roles whose engines do not pull.
	Plans *Plans `json:"plans,omitempty"`
}

// CacheResult is what a response cache would do with a request, of the replica that explains it and with the headers of the question.
type CacheResult struct {
	// Result is hit; miss, where no answer is stored; or why the request is not looked up: not_asked, not_deterministic, stateful,
	// declined, no_tenant, unreadable.
	Result string `json:"result"`
	// AgeSeconds is the age of the answer, of a hit.
	AgeSeconds int64 `json:"ageSeconds,omitempty"`
	// Similar: a miss would be compared with similar questions. An explanation does not, because the embedding service would get the prompt.
	Similar bool `json:"similar,omitempty"`
}

// Plans are the ways to serve a request in a pool with roles, or whose engines load blocks of each other. Costs are in seconds.
type Plans struct {
	// HandedOver reports whether one endpoint prefills and another one decodes.
	HandedOver bool `json:"handedOver"`
	// Because is the reason if it is not handed over: rule, the policy hands over nothing; gateway, the picker does not send the
	// request; request, requests of this kind are never handed over; short, the endpoint lacks no more than a block; threshold,
	// it lacks less than the policy's uncachedTokens; model-length, prompt and answer are longer than the model takes;
	// no-prefill, no endpoint that prefills is ready and has room; no-decode, none that decodes has room and takes over;
	// cheaper, it is cheaper alone; tried, the endpoints are tried again by another request after failures; pull, one endpoint serves it
	// and loads a part of the prompt from another one.
	Because string `json:"because,omitempty"`
	// Alone serves the request at one endpoint. Handoff is the best hand-off, and Pull the best way to load a part of the prompt from
	// another endpoint; absent if none was considered or possible.
	Alone   Plan  `json:"alone"`
	Handoff *Plan `json:"handoff,omitempty"`
	Pull    *Plan `json:"pull,omitempty"`
}

// Plan is a way to serve a request.
type Plan struct {
	// Seconds are the cost of all steps; 0 if the plans were not compared.
	Seconds float64 `json:"seconds"`
	Steps   []Step  `json:"steps"`
}

// Step is a part of a plan at an endpoint.
type Step struct {
	// Does is serve, prefill, decode or lend.
	Does string `json:"does"`
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	// Seconds are the cost, Parts what it is made of; those of 0 are left out.
	Seconds float64 `json:"seconds"`
	Parts   []Term  `json:"parts,omitempty"`
}

// Candidate is an endpoint as the strategy saw it.
type Candidate struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	// Matched prompt tokens, and those of them that the pod has Confirmed.
	Matched   int `json:"matched"`
	Confirmed int `json:"confirmed"`
	Uncached  int `json:"uncached"`
	// Load at the pick.
	InFlight      int     `json:"inFlight"`
	PendingTokens float64 `json:"pendingTokens"`
	KVUsage       float64 `json:"kvUsage"`
	// Cost by the strategy; Then decides between equal ones. Terms are the parts of the cost.
	Cost  float64 `json:"cost"`
	Then  float64 `json:"then"`
	Terms []Term  `json:"terms"`
}

// Term is a part of a cost. docs/troubleshooting.md describes how they are combined.
type Term struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Unit: seconds, tokens, blocks, requests, or empty for a factor.
	Unit string `json:"unit,omitempty"`
}

// LeftOut is an endpoint that was no candidate.
type LeftOut struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	// Reason: not-ready, draining, circuit, stalled, full (KV cache or queue), island, adapter.
	Reason string `json:"reason"`
}

// Prefixes are those that requests have found in caches most often recently, hottest first.
type Prefixes struct {
	Prefixes []Prefix `json:"prefixes"`
}

// Prefix is a beginning of prompts, by a hash.
type Prefix struct {
	Namespace string `json:"namespace"`
	Pool      string `json:"pool"`
	// Hash is the same in all replicas of a picker.
	Hash   string `json:"hash"`
	Tokens int    `json:"tokens"`
	// Hits recently: each counts less the older it is, a third after ten minutes.
	Hits float64 `json:"hits"`
	// Holders are the endpoints that hold all of it or a part, longest first.
	Holders []Holder `json:"holders"`
}

// Holder is an endpoint that holds a prefix.
type Holder struct {
	Pod  string `json:"pod"`
	Rank int    `json:"rank"`
	// Tokens of the prefix that it holds without a gap, by tier: GPU, CPU, Disk, Remote.
	Tokens int            `json:"tokens"`
	Tiers  map[string]int `json:"tiers"`
}

// Unmeasured is the value of what could not be measured in a point, because nothing was answered meanwhile.
const Unmeasured = -1

// History is how pools went in the last hour, as this replica saw it.
type History struct {
	// Seconds between two points.
	Seconds int           `json:"seconds"`
	Pools   []PoolHistory `json:"pools"`
}

// PoolHistory has the points of a pool, the oldest first, at most 360. It begins with the process.
type PoolHistory struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Points    []Point `json:"points"`
}

// Point is what was measured since the point before.
type Point struct {
	// Delivered and Divergence are parts of the prompt tokens of the answers that report hits, Predicted of those of all picks, or
	// Unmeasured.
	Delivered  float32 `json:"delivered"`
	Predicted  float32 `json:"predicted"`
	Divergence float32 `json:"divergence"`
	// FirstToken is the median time to the first token, in seconds, or Unmeasured.
	FirstToken float32 `json:"firstToken"`
	// Requests per second.
	Requests float32 `json:"requests"`
	// Queue is how many requests waited at this moment, in the picker and in engines; Serving how many endpoints took requests.
	Queue   float32 `json:"queue"`
	Serving float32 `json:"serving"`
	// Unserved requests failed or were refused.
	Unserved float32 `json:"unserved"`
}

// Fault is an answer that is none.
type Fault struct {
	// Code is the HTTP status.
	Code int `json:"code"`
	// Message is the reason, in a sentence.
	Message string `json:"message"`
}
