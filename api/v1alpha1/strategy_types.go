package v1alpha1

// StrategyType names a way to rank endpoints.
//
// +kubebuilder:validation:Enum=MarginalCost;StickyLeastLoaded;LongestPrefix;LMetric;LeastPendingWork;Unified;Sticky;LeastLoad;RoundRobin;Random;Rendezvous;ApproximatePrefix
type StrategyType string

// The strategies.
const (
	StrategyMarginalCost      StrategyType = "MarginalCost"
	StrategyStickyLeastLoaded StrategyType = "StickyLeastLoaded"
	StrategyLongestPrefix     StrategyType = "LongestPrefix"
	StrategyLMetric           StrategyType = "LMetric"
	StrategyLeastPendingWork  StrategyType = "LeastPendingWork"
	StrategyUnified           StrategyType = "Unified"
	StrategySticky            StrategyType = "Sticky"
	StrategyLeastLoad         StrategyType = "LeastLoad"
	StrategyRoundRobin        StrategyType = "RoundRobin"
	StrategyRandom            StrategyType = "Random"
	StrategyRendezvous        StrategyType = "Rendezvous"
	StrategyApproximatePrefix StrategyType = "ApproximatePrefix"
)

// Strategy ranks the endpoints for a request. At most the member of its type is set; absent, the member has all
// defaults.
//
// +kubebuilder:validation:XValidation:rule="!has(self.marginalCost) || self.type == 'MarginalCost'",message="marginalCost is only for type MarginalCost"
// +kubebuilder:validation:XValidation:rule="!has(self.stickyLeastLoaded) || self.type == 'StickyLeastLoaded'",message="stickyLeastLoaded is only for type StickyLeastLoaded"
// +kubebuilder:validation:XValidation:rule="!has(self.longestPrefix) || self.type == 'LongestPrefix'",message="longestPrefix is only for type LongestPrefix"
// +kubebuilder:validation:XValidation:rule="!has(self.lMetric) || self.type == 'LMetric'",message="lMetric is only for type LMetric"
// +kubebuilder:validation:XValidation:rule="!has(self.unified) || self.type == 'Unified'",message="unified is only for type Unified"
// +kubebuilder:validation:XValidation:rule="!has(self.rendezvous) || self.type == 'Rendezvous'",message="rendezvous is only for type Rendezvous"
// +kubebuilder:validation:XValidation:rule="!has(self.approximatePrefix) || self.type == 'ApproximatePrefix'",message="approximatePrefix is only for type ApproximatePrefix"
type Strategy struct {
	// type of the strategy.
	// +required
	Type StrategyType `json:"type,omitempty"`
	// marginalCost sends a request where it costs the least additional time.
	// +optional
	MarginalCost *MarginalCost `json:"marginalCost,omitempty"`
	// stickyLeastLoaded keeps a prefix on its first endpoint, and sends a new one to the least loaded endpoint.
	// +optional
	StickyLeastLoaded *StickyLeastLoaded `json:"stickyLeastLoaded,omitempty"`
	// longestPrefix prefers the longest match.
	// +optional
	LongestPrefix *LongestPrefix `json:"longestPrefix,omitempty"`
	// lMetric multiplies the tokens to prefill by the batch size.
	// +optional
	LMetric *LMetric `json:"lMetric,omitempty"`
	// unified prefers the cache above a hit ratio and the load below it.
	// +optional
	Unified *Unified `json:"unified,omitempty"`
	// rendezvous hashes sessions or prefixes to endpoints.
	// +optional
	Rendezvous *Rendezvous `json:"rendezvous,omitempty"`
	// approximatePrefix matches chunks of text against what was routed before, without events.
	// +optional
	ApproximatePrefix *ApproximatePrefix `json:"approximatePrefix,omitempty"`
}

// MarginalCost parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type MarginalCost struct {
	// priorPrefillTokensPerSecond is the prefill rate assumed until one is learned. Absent, a built-in one.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +optional
	PriorPrefillTokensPerSecond int32 `json:"priorPrefillTokensPerSecond,omitempty"`
	// decodeHarmPercent weighs what the request costs those in flight at an endpoint. For each of them, decoding or not, a
	// built-in part of the time that the request waits and is prefilled there is added to the endpoint's cost; this
	// multiplies that part. 100 leaves it as it is, 200 doubles it, 0 counts none: then requests in flight break ties only.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=100
	// +optional
	DecodeHarmPercent *int32 `json:"decodeHarmPercent,omitempty"`
}

// StickyLeastLoaded parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type StickyLeastLoaded struct {
	// prefixTokens is the length of the prefix that decides, in tokens.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:default=64
	// +optional
	PrefixTokens int32 `json:"prefixTokens,omitempty"`
}

// LongestPrefix parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type LongestPrefix struct {
	// variant Guarded bounds the match from below and the load from above; Literal does neither.
	// +kubebuilder:default=Guarded
	// +optional
	Variant LongestPrefixVariant `json:"variant,omitempty"`
	// minMatchPercent of the prompt that must match for the match to count.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=25
	// +optional
	MinMatchPercent *int32 `json:"minMatchPercent,omitempty"`
	// maxLoadPercent of the mean number of running requests that an endpoint can have to be chosen for its match.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=150
	// +optional
	MaxLoadPercent int32 `json:"maxLoadPercent,omitempty"`
}

// LongestPrefixVariant is a variant of LongestPrefix.
//
// +kubebuilder:validation:Enum=Guarded;Literal
type LongestPrefixVariant string

// The variants of LongestPrefix.
const (
	LongestPrefixGuarded LongestPrefixVariant = "Guarded"
	LongestPrefixLiteral LongestPrefixVariant = "Literal"
)

// LMetric parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type LMetric struct {
	// variant PlusOne counts the new request into the batch; Literal does not, so that idle endpoints score 0
	// whatever they hold.
	// +kubebuilder:default=PlusOne
	// +optional
	Variant LMetricVariant `json:"variant,omitempty"`
}

// LMetricVariant is a variant of LMetric.
//
// +kubebuilder:validation:Enum=PlusOne;Literal
type LMetricVariant string

// The variants of LMetric.
const (
	LMetricPlusOne LMetricVariant = "PlusOne"
	LMetricLiteral LMetricVariant = "Literal"
)

// Unified parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type Unified struct {
	// minHitPercent of the prompt above which the cache decides.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=50
	// +optional
	MinHitPercent *int32 `json:"minHitPercent,omitempty"`
	// maxLoadPercent of the mean load above which the load decides whatever is cached.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=200
	// +optional
	MaxLoadPercent int32 `json:"maxLoadPercent,omitempty"`
}

// Rendezvous parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type Rendezvous struct {
	// key that is hashed: the session, or a prefix of the prompt.
	// +kubebuilder:default=Session
	// +optional
	Key RendezvousKey `json:"key,omitempty"`
	// prefixTokens is the length of that prefix, in tokens.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:default=1024
	// +optional
	PrefixTokens int32 `json:"prefixTokens,omitempty"`
}

// RendezvousKey is what Rendezvous hashes.
//
// +kubebuilder:validation:Enum=Session;Prefix
type RendezvousKey string

// The keys of Rendezvous.
const (
	RendezvousBySession RendezvousKey = "Session"
	RendezvousByPrefix  RendezvousKey = "Prefix"
)

// ApproximatePrefix parameterises the strategy of that name.
//
// +kubebuilder:validation:MinProperties=0
type ApproximatePrefix struct {
	// chunkBytes is the size of a chunk of text, in bytes.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:default=64
	// +optional
	ChunkBytes int32 `json:"chunkBytes,omitempty"`
	// maxChunks of a prompt that are matched.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:default=256
	// +optional
	MaxChunks int32 `json:"maxChunks,omitempty"`
	// chunksPerEndpoint that are remembered.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +kubebuilder:default=31250
	// +optional
	ChunksPerEndpoint int32 `json:"chunksPerEndpoint,omitempty"`
	// prefixWeight of the match in the score.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=3
	// +optional
	PrefixWeight *int32 `json:"prefixWeight,omitempty"`
	// queueWeight of the waiting requests in the score.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=2
	// +optional
	QueueWeight *int32 `json:"queueWeight,omitempty"`
	// kvWeight of the KV memory in use in the score.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=2
	// +optional
	KVWeight *int32 `json:"kvWeight,omitempty"`
}

// ShadowStrategy is scored and compared, never acted on.
type ShadowStrategy struct {
	// name of the shadow in metrics and logs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`
	// strategy that is scored.
	// +required
	Strategy Strategy `json:"strategy,omitzero"`
	// samplePercent of requests that are scored.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=100
	// +optional
	SamplePercent int32 `json:"samplePercent,omitempty"`
}

// LowerTier is a tier below the GPU.
//
// +kubebuilder:validation:Enum=CPU;Disk;Remote
type LowerTier string

// TierCredit says what a block of a lower tier is worth. A block on the GPU is worth 100 percent.
type TierCredit struct {
	// tier of the block.
	// +required
	Tier LowerTier `json:"tier,omitempty"`
	// creditPercent of a GPU block that a block of this tier is worth to strategies that count blocks.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +required
	CreditPercent *int32 `json:"creditPercent,omitempty"`
	// reloadTokensPerSecond prices the tier for MarginalCost until the rate is learned. Absent, a built-in one.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	// +optional
	ReloadTokensPerSecond int32 `json:"reloadTokensPerSecond,omitempty"`
}
