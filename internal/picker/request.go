package picker

import (
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// Request is the request to pick an endpoint for. It has many fields because each gateway and route shows something else of a request.
type Request struct {
	Route openai.Route
	Body  []byte
	// ID is the request's id as RequestID makes it, for logs and records; empty for none.
	ID string
	// Header reads a request header by its lower-case name; nil when there are none.
	Header func(name string) string
	// Unparsed: nothing is known of the body, or there is none. The request is routed by load, in the pool of its model if
	// the body is JSON that names one.
	Unparsed bool
	// Generates: though Unparsed, it is answered as a completion is, with choices and reasons to finish.
	Generates bool
	// Light requests compute nothing: they go by load, and nothing is remembered of their prompts.
	Light bool
	// Again is the previous decision for the same request, whose endpoints have all refused it because their queues are
	// full (Decision.Full). Its tenant has been admitted and charged, and its wait counts from its arrival. The pick ends
	// it.
	Again *Decision
	// Splits: the caller can send the request to two endpoints, one after the other, if the decision is for a PrefillLeg.
	Splits bool
	// Relays: the caller can send the request to one endpoint only, with a PrefillerHeader if Decision.Prefiller has a value for it.
	Relays bool
	// HandedOver: the endpoint of Again, a PrefillLeg, has prefilled and holds the blocks. The pick is for the DecodeLeg.
	HandedOver bool
	// Pool is the namespace/name of the only pool that is allowed to serve the request; empty for all.
	Pool string
	// Allow reports whether an endpoint is in the subset that a gateway has given; nil without a subset.
	Allow func(*endpoint.Endpoint) bool
	// Gateway is the address of the gateway that asks; empty without one.
	Gateway string
	// Remote: the caller is on another machine and cannot reach endpoints behind unix sockets.
	Remote bool
	// Observed: the caller only watches and routes by itself. The request waits for nothing.
	Observed bool
	// Hidden: the request is for the model's API, but the gateway does not show its body. It is Unparsed, too. While no
	// endpoint serves it waits as parsed requests do, where other unparsed requests are refused.
	Hidden bool
	// Guessed: the gateway does not show the path, and Route is a guess by the body.
	Guessed bool
	// Uncached: the engine looks up nothing in its prefix cache for the request, see openai.Computes.
	Uncached bool
	// Saltable: though Unparsed, the request can get a cache salt, in a top-level member of its body.
	Saltable bool
	// Invokes: the engine takes the model from a header, see Decision.InvokedModel.
	Invokes bool
	// AsksReport: the caller has made the body ask for a report, as an earlier decision for the request has asked for (Decision.AsksReport).
	AsksReport bool
	// CutsUsage: the caller can change the body, and take an event out of the answer.
	CutsUsage bool
	// Rename puts another name in place of the model that was parsed from Body, and returns the new body; false if there is no room for it.
	// Without it, the request goes by no ModelRoute.
	Rename func(r *openai.Request, model string) (body []byte, room bool)
	// Routing is set by the pick if a ModelRoute is for the model.
	Routing *Routing
	// Facts gets what the pick learns of the request; nil, as without records of use, costs nothing.
	Facts *Facts
	// Headers and Query are all that the client has sent besides the body, of a caller that sees the whole answer and can replace it: only
	// then the response cache is used. Headers are by their canonical names; nil: it is not used.
	Headers map[string][]string
	Query   string
	// Recording is set by the pick if the answer can be stored in the response cache. The caller must end it.
	Recording *respcache.Recording
	// Steps gets the times of the pick's steps; nil, as without tracing, costs nothing.
	Steps *Steps
	// Streams is called before the request waits for a pool, if its client asked for a stream, with the policy of the pool; nil is
	// not called.
	Streams func(policy *PolicySpec)

	models bodyModels
}

// bodyModels are what the body of an unparsed request names, nil where it was not read.
type bodyModels struct {
	named *string // see Request.bodyModel
	asked *string // see Request.askedModel
}
