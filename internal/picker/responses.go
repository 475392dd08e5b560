package picker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// ResponseCacheSpec defines which answers are kept, and how long.
type ResponseCacheSpec struct {
	// MaxBytes that the cache can take; 0: there is none.
	MaxBytes int64
	// Life of an answer.
	Life time.Duration
	// OnRequest: only answers to requests whose clients ask for it are kept and used.
	OnRequest bool
	// Similar requests are answered, too.
	Similar SimilarSpec
	// Redis shares answers between replicas; without an address, there is none.
	Redis respcache.Redis
}

// CacheHeader is the header by which clients ask for an answer from the response cache, and by which answers say hit or miss.
const CacheHeader = "x-kvasir-cache"

// maxCachedRequest is the largest body of a request that is compared with others, in bytes.
const maxCachedRequest = 1 << 20

// CachedAnswer is the error of a pick for a request that the response cache has the answer to: no endpoint is needed.
type CachedAnswer struct {
	*respcache.Answer
	// Age of the answer.
	Age time.Duration
	// Similarity of the request that it is the answer to; 0 if that is equal to this one.
	Similarity float64
	// Namespace and Pool whose cache had it.
	Namespace, Pool string
	// Rates of the tenant. The request counts for them, its tokens do not.
	Rates tenant.Rates
}

func (a *CachedAnswer) Error() string { return "the response cache has the answer" }

// responseCache makes the cache of a view. That of the old view is kept only if nothing has changed that the answer to a request could
// depend on: all of the pool and its policy, but its endpoints.
func (p *Picker) responseCache(v, old *view) *respcache.Cache {
	c := &v.spec.Policy.Responses
	if c.MaxBytes <= 0 {
		return nil
	}
	if old != nil && old.cache != nil {
		before, now := *old.spec, *v.spec
		before.Endpoints, now.Endpoints = nil, nil
		if reflect.DeepEqual(before, now) {
			v.store = old.store
			return old.cache
		}
	}
	if c.Redis.Address != "" && c.Redis.Missing == "" && p.options.OpenStore != nil {
		store, err := p.options.OpenStore(&c.Redis, v.spec.Seed.Secret(), &v.responses)
		if err != nil {
			v.responses.CountStorage(p.now(), respcache.StoreFailed, err.Error())
		} else {
			v.store = store
		}
	}
	return respcache.New(c.MaxBytes, c.Life, &v.responses)
}

// shared returns the answer that the store of the pool has; nil if there is none.
func (p *Picker) shared(ctx context.Context, v *view, key respcache.Key, c *caller, wish *cacheWish) *respcache.Answer {
	switch redis := &v.spec.Policy.Responses.Redis; {
	case redis.Missing != "":
		v.responses.CountStorage(p.now(), respcache.StoreNotCalled, redis.Missing)
		return nil
	case v.store == nil || wish.maxAge == 0:
		return nil
	}
	return v.cache.Shared(ctx, v.store, p.now, key, c.name, wish.maxAge)
}

// answered looks a request up in the response cache: what it finds is the answer. If a request that can be answered so is not there, the
// answer of the engine is to be recorded. The client has passed the hooks and the limits of its tenant.
func (p *Picker) answered(ctx context.Context, v *view, s *scratch, in *Request, c *caller, steps *hooked, start time.Time) *CachedAnswer {
	if in.Headers == nil || in.Again != nil {
		return nil
	}
	in.Recording = nil
	if v.cache == nil || in.Unparsed || in.Light {
		return nil
	}
	if accepted := v.spec.checkKey(in.Header) == nil; !accepted { // the engine answers that
		return nil
	}
	wish := wishOf(in.Headers)
	key, why := v.lookedUp(in, &s.request, c, &wish)
	if why != respcache.Miss {
		v.responses.Count(why)
		return nil
	}
	now, similarity := p.now(), 0.0
	a := v.cache.Get(now, key, wish.maxAge)
	if a == nil {
		a = p.shared(ctx, v, key, c, &wish)
	}
	if a == nil {
		var likeness *respcache.Likeness
		if a, similarity, likeness = p.similar(ctx, v, in, &s.request, c, &wish); a == nil {
			v.responses.Count(respcache.Miss)
			in.Recording = v.cache.Record(key, c.name)
			if v.store != nil {
				in.Recording.Share(v.store)
			}
			if likeness != nil {
				in.Recording.Like(likeness)
			}
			return nil
		}
	}
	now = p.now()
	p.recordAnswered(v, s, in, steps, start)
	return &CachedAnswer{
		Answer: a, Age: now.Sub(a.Stored), Similarity: similarity,
		Namespace: v.spec.Namespace, Pool: v.spec.Name, Rates: c.pass.Rates(now),
	}
}

// lookedUp returns Miss and the key of a request that is looked up, else why it is not.
func (v *view) lookedUp(in *Request, r *openai.Request, c *caller, wish *cacheWish) (key respcache.Key, why respcache.Result) {
	if why = v.cacheable(in, r, c, wish); why != respcache.Miss {
		return key, why
	}
	key, ok := v.responseKey(in, r, c)
	if !ok {
		return key, respcache.Unreadable
	}
	return key, respcache.Miss
}

// explainAnswered reports what the response cache would do with a request; nil without a cache. It counts nothing. The headers are those
// of the question, so a client whose headers differ can get another result. The embedding service is not asked: it would get the prompt
// of a person who need not be a client of the pool.
func (p *Picker) explainAnswered(v *view, in *Request, r *openai.Request, c *caller) *api.CacheResult {
	if v.cache == nil || in.Unparsed {
		return nil
	}
	wish, now := wishOf(in.Headers), p.now()
	key, why := v.lookedUp(in, r, c, &wish)
	out := &api.CacheResult{}
	if why == respcache.Miss {
		if a := v.cache.Peek(now, key, wish.maxAge); a != nil {
			why, out.AgeSeconds = respcache.Hit, int64(now.Sub(a.Stored)/time.Second)
		}
	}
	if out.Result = why.String(); why == respcache.Miss && v.comparesRequest(in, r, c, &wish) {
		out.Similar = true
	}
	return out
}

// cacheable returns Miss for a request that is looked up, else why it is not.
func (v *view) cacheable(in *Request, r *openai.Request, c *caller, wish *cacheWish) respcache.Result {
	raw := func(name string) string { value, _ := r.Raw(name); return string(value) }
	switch {
	case wish.noStore:
		return respcache.Declined
	case v.spec.Policy.Responses.OnRequest && !wish.asks:
		return respcache.NotAsked
	case r.Stateful, r.Background, r.Steering&^openai.SteersPriority != 0, raw("store") == "true", raw("session_params") != "":
		return respcache.Stateful
	case !wish.asks && !deterministic(r):
		return respcache.NotDeterministic
	case v.spec.Policy.Admission.Tenants != nil && c.name == "":
		return respcache.NoTenant
	case len(in.Body) > maxCachedRequest:
		return respcache.Unreadable
	}
	return respcache.Miss
}

// deterministic reports whether a request has one answer: embeddings, or what is generated without chance. Links to images can lead to
// others, and engines can call the tools of Responses themselves.
func deterministic(r *openai.Request) bool {
	if r.Multimodal {
		return false
	}
	if r.Route == openai.Embeddings {
		return true
	}
	for _, name := range [...]string{"best_of", "use_beam_search"} {
		if value, ok := r.Raw(name); value != nil || !ok {
			return false
		}
	}
	if r.N != 1 || r.Route == openai.Responses && r.Tools != nil {
		return false
	}
	temperature, _ := r.Raw("temperature")
	number, err := strconv.ParseFloat(string(temperature), 64)
	return err == nil && number == 0
}

// cacheWish is what a client wants of the response cache.
type cacheWish struct {
	asks, noStore bool
	exact         bool          // no answers to similar requests
	maxAge        time.Duration // of an answer; negative for any
}

// wishOf reads the headers of a request: x-kvasir-cache, which is a bool or exact, and the directives no-store, no-cache and max-age of
// Cache-Control (RFC 9111, 5.2.1). A max-age that cannot be read lets nothing be answered from the cache.
func wishOf(headers map[string][]string) cacheWish {
	w := cacheWish{maxAge: -1}
	for _, value := range headers["X-Kvasir-Cache"] {
		w.exact = w.exact || strings.EqualFold(value, "exact")
		asks, err := strconv.ParseBool(value)
		w.asks = err == nil && asks
	}
	for _, list := range headers["Cache-Control"] {
		for directive := range strings.SplitSeq(strings.ToLower(list), ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
			switch name {
			case "no-store":
				w.noStore = true
			case "no-cache":
				w.maxAge = 0
			case "max-age":
				seconds, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32)
				if age := time.Duration(seconds) * time.Second; err != nil || seconds < 0 {
					w.maxAge = 0
				} else if w.maxAge < 0 || age < w.maxAge {
					w.maxAge = age
				}
			}
		}
	}
	return w
}

// unheard are headers of requests that change nothing in the answer, by their canonical names; all others are part of the key. A prefix
// ends in a star.
var unheard = []string{
	"Accept-Encoding", "Accept-Language", "Baggage", "Cache-Control", "Connection", "Content-Length", "Date", "Dnt", "Expect", "Forwarded",
	"Keep-Alive", "Origin", "Pragma", "Proxy-*", "Referer", "Sec-*", "Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding",
	"Upgrade", "User-Agent", "Via", "X-B3-*", "X-Envoy-*", "X-Forwarded-*", "X-Kvasir-*", "X-Real-Ip", "X-Request-Id", "X-Session-Id",
	"X-Stainless-*",
}

// heard reports whether the answer can depend on a header. own: the engine gets the client's own key.
func heard(name string, own bool) bool {
	if name == "Authorization" || name == "X-Api-Key" {
		return own
	}
	return !slices.ContainsFunc(unheard, func(u string) bool {
		prefix, is := strings.CutSuffix(u, "*")
		return name == u || is && strings.HasPrefix(name, prefix)
	})
}

// responseKey is the key of a request in the cache of its pool: everything that the answer depends on, each part with its length, so that
// no two lists of parts are the same bytes. ok is false for bodies that cannot be compared. It holds no copy of the body, whose bytes are
// in the plan of the process's memory as those of the client.
func (v *view) responseKey(in *Request, r *openai.Request, c *caller) (key respcache.Key, ok bool) {
	h := sha256.New()
	v.writeAround(h, in, r, c)
	if !r.WriteCanonical(h) {
		return key, false
	}
	h.Sum(key[:0])
	return key, true
}

// writeAround writes all that the answer to a request depends on but the body.
func (v *view) writeAround(h hash.Hash, in *Request, r *openai.Request, c *caller) {
	write(h, v.name, strconv.Itoa(int(in.Route)), in.Query, c.name, r.CacheSalt, r.Model)
	_, own := v.spec.Authorization()
	names := make([]string, 0, len(in.Headers))
	for name := range in.Headers {
		if heard(name, own) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	write(h, strconv.Itoa(len(names)))
	for _, name := range names {
		write(h, name, strconv.Itoa(len(in.Headers[name])))
		write(h, in.Headers[name]...)
	}
}

func write(h hash.Hash, parts ...string) {
	for _, part := range parts {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
}

// recordAnswered records a request that was answered from the cache. It was no load for an engine, so the record has no prompt.
func (p *Picker) recordAnswered(v *view, s *scratch, in *Request, steps *hooked, start time.Time) {
	log := p.options.Decisions
	if log == nil || !v.logged.takes(v.spec.Policy.LogPercent) {
		return
	}
	state := &pickState{id: in.ID, start: start, routing: in.Routing, hooked: steps}
	record := v.recordOf(log.Salt(), s, &policy.Request{}, state)
	record.Outcome, record.Reason = "answered", "response_cache"
	record.Duration = milliseconds(p.now().Sub(start))
	log.Write(&record)
}

// ResponseStats are those of a pool's response cache.
type ResponseStats struct {
	Namespace, Pool string
	// Compares: similar questions are answered, too.
	Compares bool
	// Shares: answers are kept in a store, too.
	Shares bool
	respcache.Stats
}

// ResponseStats reads the caches of the pools that have one.
func (p *Picker) ResponseStats() (all []ResponseStats) {
	for _, v := range p.current.Load().pools {
		if v.cache != nil {
			all = append(all, ResponseStats{
				v.spec.Namespace, v.spec.Name, v.spec.Policy.Responses.Similar.Embeddings.URL != "", v.spec.Policy.Responses.Redis.Address != "",
				v.cache.Stats(&v.responses),
			})
		}
	}
	return all
}
