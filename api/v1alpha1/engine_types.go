package v1alpha1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// Engine defines how the engine of a pool speaks.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || !has(self.dataParallel) || (has(self.ports.events) ? self.ports.events : 5557) + self.dataParallel.ranks <= (has(self.ports.replay) ? self.ports.replay : 5657) || (has(self.ports.replay) ? self.ports.replay : 5657) + self.dataParallel.ranks <= (has(self.ports.events) ? self.ports.events : 5557)",message="ports.events and ports.replay overlap: each rank uses base + rank, keep them at least dataParallel.ranks apart"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || !has(self.dataParallel) || (self.ports.http + (self.dataParallel.addressing == 'PortPerRank' ? self.dataParallel.ranks : 1) <= (has(self.ports.events) ? self.ports.events : 5557) || (has(self.ports.events) ? self.ports.events : 5557) + self.dataParallel.ranks <= self.ports.http) && (self.ports.http + (self.dataParallel.addressing == 'PortPerRank' ? self.dataParallel.ranks : 1) <= (has(self.ports.replay) ? self.ports.replay : 5657) || (has(self.ports.replay) ? self.ports.replay : 5657) + self.dataParallel.ranks <= self.ports.http)",message="ports.http overlaps with ports.events or ports.replay: each rank uses base + rank"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || !has(self.dataParallel) || !has(self.events) || !has(self.events.reporter) || (self.events.reporter.drainPort + 1 <= (has(self.ports.events) ? self.ports.events : 5557) || (has(self.ports.events) ? self.ports.events : 5557) + self.dataParallel.ranks <= self.events.reporter.drainPort) && (self.events.reporter.drainPort + 1 <= (has(self.ports.replay) ? self.ports.replay : 5657) || (has(self.ports.replay) ? self.ports.replay : 5657) + self.dataParallel.ranks <= self.events.reporter.drainPort) && (self.events.reporter.drainPort + 1 <= self.ports.http || self.ports.http + (self.dataParallel.addressing == 'PortPerRank' ? self.dataParallel.ranks : 1) <= self.events.reporter.drainPort)",message="events.reporter.drainPort is also a port of the engine (http, events or replay, each with its ranks)"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || !has(self.dataParallel) || (has(self.ports.events) ? self.ports.events : 5557) + self.dataParallel.ranks <= 65536 && (has(self.ports.replay) ? self.ports.replay : 5657) + self.dataParallel.ranks <= 65536 && self.ports.http + (self.dataParallel.addressing == 'PortPerRank' ? self.dataParallel.ranks : 1) <= 65536",message="a port of the last rank is above 65535: each rank uses base + rank"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.protocol != 'H2C'",message="protocol H2C is HTTP/2 without TLS: leave out tls, or the protocol"
type Engine struct {
	// type of the engine. The layout of its events depends on it, so it cannot be changed. SGLang is experimental: Kvasir
	// reads its events and metrics, and no release of it has been tested.
	// +kubebuilder:default=VLLM
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="engine.type is immutable: the event layout depends on it; make a new pool and move the route"
	// +optional
	Type EngineType `json:"type,omitempty"`
	// containerName is the container that runs the engine. Absent, the first container.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ContainerName string `json:"containerName,omitempty"`
	// flags controls whether missing engine flags are added to the container's arguments (Inject) or left to the author
	// of the template (Manual). It acts on owned pods only.
	// +kubebuilder:default=Inject
	// +optional
	Flags FlagMode `json:"flags,omitempty"`
	// protocol of the engine's API: HTTP, or H2C for HTTP/2 without TLS.
	// +kubebuilder:default=HTTP
	// +optional
	Protocol EngineProtocol `json:"protocol,omitempty"`
	// tls makes the engine's API one over TLS, for all calls of Kvasir's own; what a gateway does is the gateway's
	// matter. Absent, there is none.
	// +optional
	TLS EngineTLS `json:"tls,omitzero"`
	// ports of the engine.
	// +kubebuilder:default={http: 8000}
	// +optional
	Ports EnginePorts `json:"ports,omitzero"`
	// dataParallel defines how many ranks a pod runs and how one is addressed.
	// +kubebuilder:default={ranks: 1}
	// +optional
	DataParallel DataParallel `json:"dataParallel,omitzero"`
	// events defines how the picker learns what the engine caches.
	// +kubebuilder:default={source: Auto}
	// +optional
	Events Events `json:"events,omitzero"`
	// apiKey is what Kvasir sends on its own calls to the engine, and in place of the client's key where clientAuth or
	// tenants say so.
	// +optional
	APIKey SecretKey `json:"apiKey,omitzero"`
	// clientAuth defines which key requests of clients bring to the engine. PassThrough leaves the client's Authorization
	// header as it is, so that the engine checks it. PoolKey replaces it by apiKey, so that any client of the picker
	// is served. With tenants the picker checks clients, and apiKey always replaces their keys.
	// +kubebuilder:default=PassThrough
	// +optional
	ClientAuth ClientAuth `json:"clientAuth,omitempty"`
	// media maps medium strings of the events to tiers, beyond the built-in ones; at most 16.
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=medium
	// +optional
	Media []Medium `json:"media,omitempty"`
	// networkPolicy defines which pods and addresses can connect to the engines.
	// +optional
	NetworkPolicy EngineNetworkPolicy `json:"networkPolicy,omitzero"`
}

// ServesAnyone reports whether requests of unauthenticated clients are sent with the pool's key. tenants reports
// whether the active policy has tenants.
func (e *Engine) ServesAnyone(tenants bool) bool {
	return e.APIKey.Name != "" && e.ClientAuth == ClientAuthPoolKey && !tenants
}

// SecretNames are the names of the Secrets that the engine needs.
func (e *Engine) SecretNames() []string {
	var names []string
	for _, ref := range []SecretKey{e.APIKey, e.TLS.CASecretRef} {
		if ref.Name != "" {
			names = append(names, ref.Name)
		}
	}
	return names
}

// EngineType names an inference engine. SGLang is experimental.
//
// +kubebuilder:validation:Enum=VLLM;SGLang
type EngineType string

// The engines.
const (
	EngineVLLM   EngineType = "VLLM"
	EngineSGLang EngineType = "SGLang"
)

// FlagMode selects what sets the engine's flags.
//
// +kubebuilder:validation:Enum=Inject;Manual
type FlagMode string

// The flag modes.
const (
	FlagsInject FlagMode = "Inject"
	FlagsManual FlagMode = "Manual"
)

// ClientAuth defines which key requests of clients bring to an engine.
//
// +kubebuilder:validation:Enum=PassThrough;PoolKey
type ClientAuth string

// The ways.
const (
	ClientAuthPassThrough ClientAuth = "PassThrough"
	ClientAuthPoolKey     ClientAuth = "PoolKey"
)

// EngineProtocol is the protocol of an engine's API.
//
// +kubebuilder:validation:Enum=HTTP;H2C
type EngineProtocol string

// The protocols.
const (
	ProtocolHTTP EngineProtocol = "HTTP"
	ProtocolH2C  EngineProtocol = "H2C"
)

// EngineTLS defines how the certificates of engines are checked.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.serverName) == (self.verification == 'Full')",message="serverName is required when verification is Full, and only then: engines are called by the addresses of their pods, which no certificate names"
// +kubebuilder:validation:XValidation:rule="!has(self.caSecretRef) || self.verification == 'Full'",message="caSecretRef is for verification Full"
type EngineTLS struct {
	// verification Full checks the issuer of the certificate, and that it is for serverName; None checks nothing, so
	// that any process that can answer at a pod's address sees prompts and API keys.
	// +kubebuilder:default=Full
	// +optional
	Verification Verification `json:"verification,omitempty"`
	// serverName is the DNS name that the certificates of all the pool's engines are for.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// caSecretRef is the entry with the CA certificates, in PEM. One of them must have signed the engines' certificates.
	// Absent, the ones that the picker's system trusts.
	// +optional
	CASecretRef SecretKey `json:"caSecretRef,omitzero"`
}

// Verification is how a certificate is checked.
//
// +kubebuilder:validation:Enum=Full;None
type Verification string

// The ways to check.
const (
	VerificationFull Verification = "Full"
	VerificationNone Verification = "None"
)

// EnginePorts are the ports of rank 0. Rank r sends events on events + r and replays on replay + r; with addressing
// PortPerRank it answers on http + r.
//
// +kubebuilder:validation:MinProperties=1
type EnginePorts struct {
	// http is the port of the engine's API.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=8000
	// +optional
	HTTP int32 `json:"http,omitempty"`
	// events is the port where the engine publishes its KV events. Absent, the picker asks the engine (vLLM 0.31 and
	// newer); where the engine does not report it, and for engines that Kvasir configures, it is 5557.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Events int32 `json:"events,omitempty"`
	// replay is the port where missed events are asked for. Absent, the picker asks the engine as for events; otherwise
	// it is 5657.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Replay int32 `json:"replay,omitempty"`
}

// Ports of events that are neither configured nor announced by an engine.
const (
	DefaultEventsPort int32 = 5557
	DefaultReplayPort int32 = 5657
)

// EventsPort is the port of rank 0's events, unless the engine reports another.
func (p *EnginePorts) EventsPort() int32 { return cmp.Or(p.Events, DefaultEventsPort) }

// ReplayPort is the port of rank 0's replays, unless the engine reports another.
func (p *EnginePorts) ReplayPort() int32 { return cmp.Or(p.Replay, DefaultReplayPort) }

// DataParallel defines how many ranks a pod runs and how one is addressed.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="self.ranks <= 8 || self.addressing != 'PortPerRank'",message="PortPerRank allows at most 8 ranks per pod (a gateway pool has at most 8 target ports)"
type DataParallel struct {
	// ranks per pod, 1 to 64. Each is an endpoint of its own.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	Ranks int32 `json:"ranks,omitempty"`
	// addressing of a rank: Header (one HTTP port, the rank in a header) or PortPerRank (HTTP port + rank, at most 8).
	// +kubebuilder:default=Header
	// +optional
	Addressing RankAddressing `json:"addressing,omitempty"`
}

// RankAddressing defines how one data-parallel rank of a pod is addressed.
//
// +kubebuilder:validation:Enum=Header;PortPerRank
type RankAddressing string

// The ways to address a rank.
const (
	AddressByHeader RankAddressing = "Header"
	AddressByPort   RankAddressing = "PortPerRank"
)

// Events defines how the picker learns what the engines cache.
//
// +kubebuilder:validation:MinProperties=1
type Events struct {
	// source of the events: Auto (a reporter where one speaks, else subscribe), Reporter, Subscribe (the picker
	// connects to the engine), Listen (the engine connects to the picker, which has one replica then) or None.
	// +kubebuilder:default=Auto
	// +optional
	Source EventSource `json:"source,omitempty"`
	// reporter configures the sidecar beside the engine.
	// +kubebuilder:default={drainPort: 9445}
	// +optional
	Reporter Reporter `json:"reporter,omitzero"`
}

// EventSource names the way that events take.
//
// +kubebuilder:validation:Enum=Auto;Reporter;Subscribe;Listen;None
type EventSource string

// The sources of events.
const (
	EventsAuto      EventSource = "Auto"
	EventsReporter  EventSource = "Reporter"
	EventsSubscribe EventSource = "Subscribe"
	EventsListen    EventSource = "Listen"
	EventsNone      EventSource = "None"
)

// Reporter configures the sidecar that mirrors an engine's cache. It is injected into owned pods.
//
// +kubebuilder:validation:MinProperties=1
type Reporter struct {
	// drainPort is where the engine's preStop hook waits until the engine is idle.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=9445
	// +optional
	DrainPort int32 `json:"drainPort,omitempty"`
	// batchMilliseconds is the longest that a change can wait to be sent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=5
	// +optional
	BatchMilliseconds *int32 `json:"batchMilliseconds,omitempty"`
	// resources of the sidecar.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Medium maps one medium string of an engine's events to a tier.
type Medium struct {
	// medium as the engine writes it; matched without regard to case.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	Medium string `json:"medium,omitempty"`
	// tier where such a block lies.
	// +required
	Tier Tier `json:"tier,omitempty"`
}

// Tier says where a block lies.
//
// +kubebuilder:validation:Enum=GPU;CPU;Disk;Remote
type Tier string

// The tiers, nearest first.
const (
	TierGPU    Tier = "GPU"
	TierCPU    Tier = "CPU"
	TierDisk   Tier = "Disk"
	TierRemote Tier = "Remote"
)

// KeySpace defines the block keys of a pool.
//
// +kubebuilder:validation:MinProperties=1
type KeySpace struct {
	// blockTokens is the number of tokens per key, 8 to 1024, a multiple of 8. Engine blocks of another size are split
	// or joined. Every key depends on it, so it cannot be changed.
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=1024
	// +kubebuilder:validation:MultipleOf=8
	// +kubebuilder:default=16
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="keySpace.blockTokens is immutable: every key in every picker and reporter depends on it"
	// +optional
	BlockTokens int32 `json:"blockTokens,omitempty"`
	// secretRef names a Secret whose entry root holds at least 32 random bytes. Absent, the operator makes one with
	// the name of the pool and -key.
	// +optional
	SecretRef LocalName `json:"secretRef,omitzero"`
}
