package picker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// read parses the request and finds the pool that serves it.
func (p *Picker) read(s *snapshot, in *Request, r *openai.Request) (*view, error) {
	if in.Unparsed {
		v, err := s.any(in)
		if v != nil && v.adapts(in.askedModel()) {
			r.Model = in.askedModel()
		}
		return v, err
	}
	err := openai.Parse(in.Route, in.Body, r)
	if errors.Is(err, openai.ErrNoModel) {
		if model, ok := s.sole(in); ok {
			err = openai.ParseFor(in.Route, in.Body, model, r)
		}
	}
	if err != nil {
		return nil, badRequest(err)
	}
	if len(s.routes) > 0 || in.Routing != nil {
		if v, err := p.routed(s, in, r); v != nil || err != nil {
			return v, err
		}
	}
	v := s.pool(r.Model)
	if v == nil || in.Pool != "" && v.name != in.Pool {
		return nil, UnknownModel(r.Model)
	}
	return v, nil
}

// find parses the request, finds the pool that serves it, and takes the steps of the pool's policy. It fails with an *Error.
func (p *Picker) find(ctx context.Context, in *Request, s *scratch, start time.Time) (v *view, h *hooked, err error) {
	pools, r := p.current.Load(), &s.request
	if v, err = p.read(pools, in, r); err != nil {
		return nil, nil, p.refusal(in, err)
	}
	if in.Again != nil {
		return v, in.Again.hooked, nil
	}
	v, h, err = p.hook(ctx, pools, v, in, r)
	h.count()
	if err == nil && v.spec.MaxRequestBody > 0 && int64(len(in.Body)) > v.spec.MaxRequestBody {
		err = tooLarge(v.spec.MaxRequestBody)
	}
	if err == nil {
		return v, h, nil
	}
	if refusal := (*Error)(nil); h != nil && errors.As(err, &refusal) {
		in.Facts.placed(v, in, r)
		p.refusedByHooks(v, s, in, h, start, refusal)
	}
	return nil, nil, p.refusal(in, err)
}

// named is the model that a request is for, as far as a tenant's limits have to know; empty where it cannot be read.
func (v *view) named(in *Request, r *openai.Request) string {
	if in.Unparsed && v.spec.Policy.Admission.Tenants != nil {
		return in.bodyModel()
	}
	return r.Model
}

// any finds a pool for a request that does not name its model: the first one that has an endpoint for it.
func (s *snapshot) any(in *Request) (*view, error) {
	var refused, only *view
	found := 0
	err := noPool()
	pools := s.pools
	if model := s.unreadable(in); model != "" {
		return nil, UnknownModel(model)
	}
	if in.Pool == "" && len(pools) > 1 {
		if v := s.pool(in.askedModel()); v != nil {
			pools = []*view{v}
		}
	}
	for _, v := range pools {
		if in.Pool != "" && v.name != in.Pool {
			continue
		}
		for i := range v.spec.Endpoints {
			ep := &v.spec.Endpoints[i]
			if ep.Pickable() && ep.Role.Decodes() && (in.Allow == nil || in.Allow(ep)) && (!in.Remote || ep.Socket == "") {
				return v, nil
			}
		}
		only = v
		found++
		refused, err = v, noEndpoint(v.spec.Name)
	}
	if in.Hidden && found == 1 {
		return only, nil
	}
	if refused != nil {
		refused.stats.refused.Add(1)
	}
	return nil, err
}

// unreadable is the model of a request that only a route serves, which needs to read the request; else empty.
func (s *snapshot) unreadable(in *Request) string {
	if len(s.routes) == 0 || in.Pool != "" {
		return ""
	}
	if model := in.askedModel(); s.routes[model] != nil && s.pool(model) == nil {
		return model
	}
	return ""
}

// bodyModel is modelOf of the body of an unparsed request, which is read once.
func (in *Request) bodyModel() string {
	if in.models.named == nil {
		model := modelOf(in.Body)
		in.models.named = &model
	}
	return *in.models.named
}

// askedModel is the model that the body of an unparsed request names, also a form. Only the place of the request depends on it, and what
// records say: its rights depend on bodyModel, because an engine can read a form otherwise.
func (in *Request) askedModel() string {
	if in.models.asked != nil {
		return *in.models.asked
	}
	model := in.bodyModel()
	if model == "" && in.Header != nil && len(in.Body) > 0 {
		model = openai.FormModel(in.Header("content-type"), in.Body)
	}
	in.models.asked = &model
	return model
}

// modelOf is the model that a JSON body names, if it does, as engines read it: by its exact name, the last one.
func modelOf(body []byte) (model string) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["model"], &model) != nil {
		return ""
	}
	return model
}
