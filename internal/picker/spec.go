package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// Spec is all that the picker knows of one pool: what exists, and what is preferred. Adapters translate API objects
// into it; it is never changed after it was applied.
type Spec struct {
	Namespace, Name string
	// Generation of the pool object that this is made of; 0 where objects have none.
	Generation int64
	// Model is the canonical served name; Aliases are further names of the same weights; Adapters are the names of
	// LoRA adapters known beforehand.
	Model    string
	Aliases  []string
	Adapters []string
	// DiscoverAdapters asks the engines' model lists for more adapters.
	DiscoverAdapters bool
	// FromZero reports that a request to a pool without endpoints brings one: the pool is scaled, down to zero.
	FromZero bool
	// Engine is VLLM or SGLang; the event layout depends on it.
	Engine string
	// EngineAPIKey is sent on our own calls to the engines, and in place of the client's key; empty for none.
	EngineAPIKey string
	// PassClientAuth leaves the client's key in its requests, unless the policy has tenants.
	PassClientAuth bool
	// Wire is how the engines are spoken to; each of Endpoints has it, too.
	Wire endpoint.Wire
	// NoEvents turns the event plane off for the pool.
	NoEvents bool
	// Reports allows reporters to report the blocks of endpoints; ReportBatch is how long they can hold back changes to
	// send them together.
	Reports     bool
	ReportBatch time.Duration
	// Media maps the engines' lower-case medium strings to tiers, beyond the built-in ones.
	Media map[string]kvblock.Tier
	// BlockTokens is the size of our keys' blocks in tokens.
	BlockTokens int
	// Seed is the root of the pool's keys.
	Seed kvblock.Seed
	// Tokenizer is the source of exact tokens.
	Tokenizer TokenizerSpec
	// IndexMemory in bytes that what endpoints hold can take in the index; 0 for any amount.
	IndexMemory int64
	// MaxRequestBody in bytes; larger requests are refused.
	MaxRequestBody int64
	// OrderedDestinations lets a gateway have the fallbacks too, not only the endpoint.
	OrderedDestinations bool
	// Policy that is applied.
	Policy PolicySpec
	// Islands are how long the way to each takes, there and back.
	Islands map[string]time.Duration
	// Endpoints of the pool, in any state.
	Endpoints []endpoint.Endpoint
}

// names are all names that requests can use, as far as they are known beforehand.
func (s *Spec) names() []string {
	names := append([]string{s.Model}, s.Aliases...)
	return append(names, s.Adapters...)
}

// TokenizerSpec describes the source of exact tokens.
type TokenizerSpec struct {
	// Type is Auto, Engine, Directory, Volume, Reporter, Hub or None.
	Type string
	// Dir holds the model's files, for Directory and mounted volumes: an absolute path.
	Dir string
	// Files are those of a ConfigMap.
	Files modelfiles.Set
	// Repository of a model hub has the files, for Auto and Hub.
	Repository modelfiles.Repository
	// ByRoot: the repository that the engines have the model from is asked for instead, if they report one. Repository.Name can be empty.
	ByRoot bool
	// Missing is why there are no files where there should be; empty otherwise.
	Missing string
	// ChatTemplate is one of the files; empty for the tokenizer's own.
	ChatTemplate string
}

// PolicySpec is a RoutingPolicy with all defaults filled in.
//
// It has many fields because a RoutingPolicy has.
type PolicySpec struct {
	// Name and Generation of the policy object; empty when the defaults are applied.
	Name       string
	Generation int64
	Strategy   policy.Config
	Shadows    []ShadowSpec
	// Credit is what a block of each tier is worth to strategies that count blocks; 1 for the GPU.
	Credit [kvblock.NumTiers]float64
	// ReloadRate is how fast each tier is read back, tokens/s; 0 where it is not known.
	ReloadRate [kvblock.NumTiers]float64
	// SessionKeys are tried in order; the first one present names the session.
	SessionKeys []SessionKey
	// Hooks look at requests before an endpoint is chosen.
	Hooks hooks.Spec
	// SessionIdle is how long an idle session's last endpoint is remembered.
	SessionIdle time.Duration
	// TokenBudget bounds tokenizing in process; EngineTokenBudget bounds the question to an engine.
	TokenBudget, EngineTokenBudget time.Duration
	// EngineTokens defines when an engine can be asked: WhenNoTokenizer, BeyondBudget or Never.
	EngineTokens string
	// SpeculationOff stops counting what was just routed as held.
	SpeculationOff bool
	// SpeculationMax is the upper bound of a speculative entry's life.
	SpeculationMax time.Duration
	// MaxKVUsage above which an endpoint is skipped, 0 to 1.
	MaxKVUsage float64
	// Crossing defines when a request is allowed to leave the picker's island.
	Crossing Crossing
	// CircuitFailures in a row open an endpoint's circuit for CircuitOpen.
	CircuitFailures int
	CircuitOpen     time.Duration
	// Attempts is the most endpoints tried before the first byte of the answer, the first included.
	Attempts int
	// RetryConnect, RetryReset, RetryServerError, RetryFirstByte and RetryStall set which failures are tried elsewhere: the
	// engine was not reached, it closed the connection after it had received some of the request, it answered with a server
	// error, or not in time, or it shows no progress.
	RetryConnect, RetryReset, RetryServerError, RetryFirstByte, RetryStall bool
	// ContinueStreams lets another engine generate the rest of a stream that its engine aborts, where it can be the same answer.
	ContinueStreams bool
	// FirstByte is the longest wait for the first byte of an answer.
	FirstByte time.Duration
	// Comments is the time of silence after which a client that waits for a stream gets a comment; 0 for never.
	Comments time.Duration
	// Responses defines which answers are kept, for requests that come again.
	Responses ResponseCacheSpec
	// Handoffs defines which requests are prefilled by one endpoint and decoded by another.
	Handoffs HandoffSpec
	// Admission defines what happens to requests when the pool is full.
	Admission AdmissionSpec
	// LogPercent of requests enter the decision log.
	LogPercent int
	// AsksUsage: streams that do not ask for their usage are made to, where it can be taken out of the answer.
	AsksUsage bool
	// AnswerHeaders is Never, OnRequest or Always.
	AnswerHeaders string
}

// SessionKey is a place in the request that can name the session.
type SessionKey struct {
	// Type is Header, BodyField, Prefix or Body (a hash of all of the body).
	Type string
	// Name of the header or field.
	Name string
}
