package extproc

import (
	"net/netip"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// subsetSpace and subsetKey name the metadata that restricts a request to some endpoints, servedKey (in
	// destinationSpace) the one that reports which endpoint has answered.
	subsetSpace = "envoy.lb.subset_hint"
	subsetKey   = "x-gateway-destination-endpoint-subset"
	servedKey   = "x-gateway-destination-endpoint-served"
)

// subset is the endpoints to which a gateway restricts a request: as ip:port, or as an address with any port.
type subset map[string]bool

const (
	// maxSubset is the most endpoints of a hint, subsetCost what one takes in a subset besides its name, in bytes.
	maxSubset, subsetCost = 8 << 10, 128
)

// subsetOf reads the hint of a message: a list of endpoints, or one string with commas between them. ok reports whether
// there is one; it can be empty, and one of another shape is, so that it allows nothing. size is about what it takes in
// memory. s is nil if the hint has too many endpoints.
func subsetOf(m *core.Metadata) (s subset, size int64, ok bool) {
	hint, ok := m.GetFilterMetadata()[subsetSpace].GetFields()[subsetKey]
	if !ok {
		return nil, 0, false
	}
	s = subset{}
	if !s.add(hint) {
		return nil, 0, true
	}
	for name := range s {
		size += int64(len(name)) + subsetCost
	}
	return s, size, true
}

// add adds the endpoints of a hint. It is false if they are too many.
func (s subset) add(v *structpb.Value) bool {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_ListValue:
		for _, item := range kind.ListValue.GetValues() {
			if !s.add(item) {
				return false
			}
		}
	case *structpb.Value_StringValue:
		for name := range strings.SplitSeq(kind.StringValue, ",") {
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if s[canonical(name)] = true; len(s) > maxSubset {
				return false
			}
		}
	}
	return true
}

// canonical writes an address in the one way that can be compared: [2001:db8::1]:80 can be written in others.
func canonical(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	if a, err := netip.ParseAddr(strings.Trim(address, "[]")); err == nil {
		return a.Unmap().String()
	}
	return strings.Clone(address) // without what stands beside it
}

// has reports whether an endpoint is among them.
func (s subset) has(ep *endpoint.Endpoint) bool {
	if s[ep.Address] {
		return true
	}
	a, err := netip.ParseAddrPort(ep.Address)
	if err != nil {
		return false
	}
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	return s[a.String()] || s[a.Addr().String()]
}

const (
	// attributeSpace has the attributes of a message, where the gateway is configured to send them (response_attributes):
	// upstreamAddress is the endpoint that Envoy has sent the request to, upstreamAttempts how many it has sent it to.
	attributeSpace   = "envoy.filters.http.ext_proc"
	upstreamAddress  = "upstream.address"
	upstreamAttempts = "upstream.request_attempt_count"
)

// servedBy reads which endpoint has answered; empty when the gateway does not report it. Headers of the answer do not
// count: the endpoint itself could have written them.
func servedBy(m *pb.ProcessingRequest) string {
	if s := m.GetMetadataContext().GetFilterMetadata()[destinationSpace].GetFields()[servedKey].GetStringValue(); s != "" {
		return canonical(s)
	}
	if a := m.GetAttributes()[attributeSpace].GetFields()[upstreamAddress].GetStringValue(); a != "" {
		return canonical(a)
	}
	return ""
}

// attemptsOf reads to how many endpoints the gateway has sent the request; 0 when it does not report that. Like the endpoint
// that has answered, it is not read from headers of the answer (x-envoy-attempt-count).
func attemptsOf(m *pb.ProcessingRequest) int {
	n := m.GetAttributes()[attributeSpace].GetFields()[upstreamAttempts].GetNumberValue()
	if !(n >= 1) { // also if it is not a number
		return 0
	}
	return int(min(n, maxAttempts))
}

// maxAttempts is more than any retry policy allows.
const maxAttempts = 1 << 10
