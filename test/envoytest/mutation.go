package envoytest

import (
	"net/http"
	"net/textproto"
	"slices"
	"sort"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The names of the protocol (Gateway API Inference Extension, proposal 004).
const (
	destinationHeader = "x-gateway-destination-endpoint"
	lbSpace           = "envoy.lb"
	subsetSpace       = "envoy.lb.subset_hint"
	subsetKey         = destinationHeader + "-subset"
	servedKey         = destinationHeader + "-served"
)

// maySet are the headers that a picker can add to a request.
var maySet = []string{"x-request-id", destinationHeader, "x-data-parallel-rank", "authorization", "content-length",
	"x-amzn-sagemaker-adapter-identifier"}

// ignored are those whose changes Envoy ignores by default.
func ignored(name string) bool {
	return name == "host" || strings.HasPrefix(name, ":") || strings.HasPrefix(name, "x-envoy")
}

// headerMap shows a header as Envoy does: names in lower case, values raw, pseudo headers first.
func headerMap(pseudo [][2]string, h http.Header) *core.HeaderMap {
	m := &core.HeaderMap{}
	add := func(name, value string) {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	for _, p := range pseudo {
		add(p[0], p[1])
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, value := range h[name] {
			add(strings.ToLower(name), value)
		}
	}
	return m
}

// apply changes a header as Envoy would. A picker adds its own and takes off what clients must not say; it sends
// nothing back of what it was shown.
func (g *Gateway) apply(h http.Header, m *pb.HeaderMutation, may func(name string) bool) *failure {
	for _, name := range m.GetRemoveHeaders() {
		if ignored(name) {
			return g.violated("the picker removes %s", name)
		}
		h.Del(name)
	}
	for _, o := range m.GetSetHeaders() {
		name, value := o.GetHeader().GetKey(), o.GetHeader().GetRawValue()
		switch {
		case name != strings.ToLower(name):
			return g.violated("a header is set by a name that is not in lower case: %s", name)
		case o.GetHeader().GetValue() != "" || len(value) == 0:
			return g.violated("header %s is not set by raw_value", name)
		case ignored(name):
			return g.violated("the picker sets %s, which is ignored", name)
		case !may(name) && !slices.Contains(g.options.Allowed, name):
			return g.violated("the picker sets %s", name)
		}
		key := textproto.CanonicalMIMEHeaderKey(name)
		if o.GetAppendAction() == core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD {
			h[key] = append(h[key], string(value))
		} else {
			h[key] = []string{string(value)}
		}
	}
	return nil
}

// destinations reads where a request goes from a header answer: the header and the metadata must say the same.
func (g *Gateway) destinations(m *pb.ProcessingResponse, r *pb.CommonResponse, h http.Header) ([]string, *failure) {
	if !r.GetClearRouteCache() || r.GetHeaderMutation() == nil {
		return nil, g.violated("the route is not chosen again: clear_route_cache %v", r.GetClearRouteCache())
	}
	if f := g.apply(h, r.GetHeaderMutation(), func(name string) bool { return slices.Contains(maySet, name) }); f != nil {
		return nil, f
	}
	header := h.Values(destinationHeader)
	for name := range h {
		if strings.HasPrefix(strings.ToLower(name), destinationHeader+"-") {
			return nil, g.violated("the client's %s has come through", name)
		}
	}
	meta := m.GetDynamicMetadata().GetFields()[lbSpace].GetStructValue().GetFields()[destinationHeader].GetStringValue()
	if len(header) != 1 || header[0] != meta || meta == "" {
		return nil, g.violated("destination %q in the header, %q in the metadata", header, meta)
	}
	list := strings.Split(meta, ",")
	if g.options.Balance != ByList {
		list = list[:1]
	}
	return list, nil
}

// metadata is what the gateway says beside a message.
func (g *Gateway) metadata(place Place, served string) *core.Metadata {
	m := &core.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	if g.options.Subset != nil && g.options.SubsetOn&place != 0 {
		m.FilterMetadata[subsetSpace] = &structpb.Struct{Fields: map[string]*structpb.Value{subsetKey: g.options.Subset}}
	}
	if g.options.Served && served != "" {
		m.FilterMetadata[lbSpace] = &structpb.Struct{Fields: map[string]*structpb.Value{servedKey: structpb.NewStringValue(served)}}
	}
	if len(m.FilterMetadata) == 0 {
		return nil
	}
	return m
}

// hop are the headers that no gateway passes on.
var hop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Te", "Trailer"}

func endToEnd(h http.Header) http.Header {
	h = h.Clone()
	for _, name := range hop {
		h.Del(name)
	}
	return h
}
