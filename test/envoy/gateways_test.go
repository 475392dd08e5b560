package envoy

import "slices"

// gateway is how the translator of a gateway configures Envoy for one pool.
type gateway struct {
	name string
	// request and response are ext_proc's body modes.
	request, response string
	// destination is how Envoy finds the endpoint that was picked.
	destination string
	// forward and receive name the metadata that the filter shows to the picker and takes from it.
	forward, receive []string
	// messages is the filter's message_timeout, calls the timeout of its gRPC service.
	messages, calls string
	// retryOn are the conditions under which a request is sent again, at most twice.
	retryOn string
	// fallback is the policy for requests without a destination that is at hand.
	fallback string
	// lists: the gateway follows a list of destinations.
	lists bool
	// failOpen: requests go on without the picker when it does not answer.
	failOpen bool

	attempts bool   // the picker gets Envoy's count of attempts
	observe  bool   // observability_mode
	http1    bool   // to the picker, as Istio speaks to a port without appProtocol
	connects string // the time limit for connections to engines; 10s where it is empty
	timeout  string // of the route; 0s where it is empty
	pickers  string // how the pickers' health is known; checked where it is empty
	trusted  string // a file with the authority of the pickers' certificate; unchecked where it is empty
}

// How Envoy finds the endpoint that was picked.
const (
	byHeader   = "header"   // ORIGINAL_DST by header
	byMetadata = "metadata" // ORIGINAL_DST by metadata
	override   = "override" // override_host by metadata
	subset     = "subset"   // a subset of the endpoints by metadata
)

// How the health of pickers is known.
const (
	checked = "checked" // by Envoy's gRPC health checks on the port of ext_proc
	outlier = "outlier" // by outlier detection, with what the operator writes into a DestinationRule
	assumed = "assumed"
)

const (
	fullDuplex = "FULL_DUPLEX_STREAMED"
	buffered   = "BUFFERED"
	streamed   = "STREAMED"
	none       = "NONE"
)

const (
	leastRequest = "least_request.v3.LeastRequest"
	roundRobin   = "round_robin.v3.RoundRobin"
)

const (
	lb         = "envoy.lb"
	subsetHint = "envoy.lb.subset_hint"
)

// gateways are those that configure Envoy, as their sources of August 2026 do, with the policies that the operator adds.
// Addresses are read from files in place of the API server and DNS.
var gateways = []gateway{
	// pilot/pkg: the filter per route, the cluster with override_host and selected_host_key; the default retries.
	{name: "Istio", request: fullDuplex, response: fullDuplex, destination: override, fallback: roundRobin, lists: true,
		forward: []string{lb}, receive: []string{lb}, messages: "1000s", pickers: outlier,
		retryOn: "connect-failure,refused-stream,unavailable,cancelled"},
	// internal/extensionserver: the cluster takes the header, the filter has no metadata; the operator's BackendTrafficPolicy.
	{name: "Envoy AI Gateway", request: fullDuplex, response: fullDuplex, destination: byHeader,
		messages: "300s", pickers: assumed, retryOn: "connect-failure,reset-before-request"},
	{name: "Envoy AI Gateway, `buffered`", request: buffered, response: buffered, destination: byHeader,
		messages: "300s", pickers: assumed, retryOn: "connect-failure,reset-before-request"},
	// What is announced for pools with FailOpen.
	{name: "Envoy AI Gateway, `FailOpen`", request: fullDuplex, response: fullDuplex, destination: override, fallback: leastRequest,
		forward: []string{lb}, receive: []string{lb}, messages: "300s", pickers: assumed, failOpen: true,
		retryOn: "connect-failure,reset-before-request"},
	// The plugin endpointpicker: a subset of the endpoints, by metadata that a filter makes of the header.
	{name: "kgateway", request: fullDuplex, response: fullDuplex, destination: subset,
		forward: []string{subsetHint}, receive: []string{lb}, messages: "5s", calls: "10s", pickers: assumed},
	// As far as published: the protocol of the inference extension, with lists, retries, and the endpoint that served.
	{name: "GKE", request: fullDuplex, response: fullDuplex, destination: override, fallback: roundRobin, lists: true,
		forward: []string{lb, subsetHint}, receive: []string{lb}, messages: "1000s", pickers: checked,
		retryOn: "connect-failure,refused-stream,reset-before-request"},
}

func gatewayOf(name string) gateway {
	return gateways[slices.IndexFunc(gateways, func(g gateway) bool { return g.name == name })]
}

// cells are all combinations of body modes and destinations, although no translator writes most of them today.
func cells() []gateway {
	var all []gateway
	for _, request := range []string{fullDuplex, buffered, streamed, none} {
		for _, response := range []string{fullDuplex, streamed, buffered, none} {
			for _, destination := range []string{byHeader, byMetadata, override, subset} {
				all = append(all, gateway{
					name: request + "-" + response + "-" + destination, request: request, response: response, destination: destination,
					fallback: roundRobin, forward: []string{lb}, receive: []string{lb}, messages: "300s",
				})
			}
		}
	}
	return all
}
