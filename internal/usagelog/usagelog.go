// Package usagelog makes a record of what each request has used, for billing and audit: who asked which model for what, how
// it ended, and how many tokens it took.
//
// A record has no text of a prompt or an answer, no key, and of a client's header only a request id that is a correlation id
// (picker.RequestID) and the name of its tenant (picker.Facts). Requests of clients that no pool knows have no record, so that
// strangers cannot fill the disk or push out the records of others: metrics count them.
package usagelog

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/linefile"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Record is what one request has used. It has many fields because it is a line of a file that others read: each is one fact, and
// groups of them would be groups there.
type Record struct {
	// Time when the request has arrived.
	Time time.Time `json:"time"`
	// Request is the request's id, as the client's answer has it, and EngineRequest the engine's, where it is another one.
	Request       string `json:"request"`
	EngineRequest string `json:"engine_request,omitempty"`
	// Entrance is proxy or gateway.
	Entrance string `json:"entrance"`
	// Namespace and Pool that was asked; empty for requests that were refused before a pool was known.
	Namespace string `json:"namespace,omitempty"`
	Pool      string `json:"pool,omitempty"`
	// Tenant and its Class; empty where the policy distinguishes none, other for a name that no Secret lists.
	Tenant string `json:"tenant,omitempty"`
	Class  string `json:"class,omitempty"`
	// Model that the request asked for, if the pool knows it; ServedModel is the pool's model, of requests that were sent to an
	// endpoint, and Adapter the adapter that was asked for.
	Model       string `json:"model,omitempty"`
	ServedModel string `json:"served_model,omitempty"`
	Adapter     string `json:"adapter,omitempty"`
	// Route is the path of the API, empty for one that the picker does not know. Stream: the answer was asked for as a stream.
	Route  string `json:"route,omitempty"`
	Stream bool   `json:"stream"`
	// Endpoint is pod/rank of the one that had the request last.
	Endpoint string `json:"endpoint,omitempty"`
	// Outcome is completed, client_gone, failed, rejected (by the engine), unreported (by the gateway) or refused (by the
	// picker). Reason is the one of a refusal, or panic; Status is the HTTP status that the client got, 0 where that is not known.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	Status  int    `json:"status,omitempty"`
	// PromptTokens and CompletionTokens, each with its Source: engine (its own count), picker (the exact tokens of the prompt),
	// estimate, or response_cache. CachedTokens are those of the prompt that the engine found in its cache, nil where that is not known.
	PromptTokens     int    `json:"prompt_tokens"`
	PromptSource     Source `json:"prompt_tokens_source,omitempty"`
	CachedTokens     *int   `json:"cached_tokens,omitempty"`
	CompletionTokens int    `json:"completion_tokens"`
	CompletionSource Source `json:"completion_tokens_source,omitempty"`
	// ChargedTokens are those that count for the tenant, 0 where tenants are not distinguished.
	ChargedTokens int64 `json:"charged_tokens"`
	// Duration until the end, and until the FirstToken of a stream, 0 without one, in milliseconds.
	Duration   float64 `json:"duration_ms"`
	FirstToken float64 `json:"first_token_ms,omitempty"`
}

// Source is where a count of tokens is from.
type Source string

// The sources. ResponseCache is the engine's count of an answer that was kept, for another request.
const (
	Engine        Source = "engine"
	Picker        Source = "picker"
	Estimate      Source = "estimate"
	ResponseCache Source = "response_cache"
)

// The entrances.
const (
	Proxy   = "proxy"
	Gateway = "gateway"
)

// FileOptions are those of a file of records.
type FileOptions struct {
	// Dir holds usage.jsonl, and older files, usage-TIME.jsonl. FileBytes is the size at which a file is ended; Files is how many
	// are kept, the present one included.
	Dir       string
	FileBytes int64
	Files     int
}

// File keeps records in files, one JSON object a line.
type File = linefile.Writer[Record]

// OpenFile begins or continues a file of records.
func OpenFile(o FileOptions) (*File, error) {
	return linefile.Open[Record](linefile.Options{
		Title: "usage log", Dir: o.Dir, Name: "usage", FileBytes: o.FileBytes, Files: o.Files,
	})
}

// Sink takes records, which are not changed afterwards. It must not block.
type Sink interface{ Write(*Record) }

// Log makes records of requests. It is safe for concurrent use; nil makes none.
type Log struct{ sinks []Sink }

// New makes a log that writes each record to all sinks.
func New(sinks ...Sink) *Log { return &Log{sinks} }

// Request is one request, for one goroutine at a time. Nil records nothing.
type Request struct {
	log    *Log
	facts  picker.Facts
	had    *picker.Facts // those of the last decision that has ended; nil without one
	record Record
}

// Begin begins the record of a request of an id, from a client whose tenant is known (picker.ShownTenant). path is the
// request's.
func (l *Log) Begin(entrance, id, tenant, path string, start time.Time) *Request {
	if l == nil {
		return nil
	}
	return &Request{log: l, record: Record{Entrance: entrance, Request: id, Tenant: tenant, Route: known(path), Time: start.UTC()}}
}

// known is a path if it is one of a few.
func known(path string) string {
	if _, ok := openai.RouteOf(path); ok || path == openai.CountTokens {
		return path
	}
	if _, ok := openai.ClientPath(path); ok {
		return path
	}
	if openai.UnreadPath(path) {
		return path
	}
	return ""
}

// Facts is what the pick fills in; nil when nothing is recorded.
func (r *Request) Facts() *picker.Facts {
	if r == nil {
		return nil
	}
	return &r.facts
}

// SentAs takes the id that the engine knows the request by.
func (r *Request) SentAs(id string) {
	if r != nil && id != r.record.Request {
		r.record.EngineRequest = id
	}
}

// Refused records that the request got no endpoint, for a reason of few values, or that a fault has ended it.
func (r *Request) Refused(reason string, after time.Duration) {
	if r == nil {
		return
	}
	if r.record.Outcome != "" {
		r.record.Reason = reason
		return
	}
	r.record.Outcome, r.record.Duration = "refused", milliseconds(after)
	if gone := picker.ClientGone.String(); reason == gone {
		r.record.Outcome = gone
	} else {
		r.record.Reason = reason
	}
}

// FirstToken records that the first generated token has arrived.
func (r *Request) FirstToken(after time.Duration) {
	if r != nil && r.record.FirstToken == 0 {
		r.record.FirstToken = milliseconds(after)
	}
}

// Ended takes a decision that has ended. A request that goes to a fallback of its route has several: the record is of the last one, but
// its tenant is charged for all.
func (r *Request) Ended(d *picker.Decision, outcome picker.Outcome, after time.Duration) {
	if r == nil {
		return
	}
	used, to := d.Used(), &r.record
	facts := r.facts
	if used.Facts != nil {
		facts = *used.Facts
	}
	r.had = &facts
	to.Outcome, to.Duration, to.Endpoint = outcome.String(), milliseconds(after), used.Endpoint
	to.ServedModel, to.Adapter = facts.Base, facts.Adapter
	to.PromptTokens, to.CompletionTokens = used.Prompt, used.Generated
	to.ChargedTokens += used.Charged
	to.CachedTokens = nil
	switch to.PromptSource = Estimate; {
	case used.PromptCounted:
		to.PromptSource = Engine
	case d.Tokens == picker.TokensGiven, d.Tokens == picker.TokensExact, d.Tokens == picker.TokensEngine:
		to.PromptSource = Picker
	}
	if to.CompletionSource = Estimate; used.GeneratedCounted {
		to.CompletionSource = Engine
	}
	if used.Cached >= 0 {
		to.CachedTokens = &used.Cached
	}
}

// Answered records that the response cache had the answer, with the tokens that the engine has once counted for it, -1 for none. gone: the
// client has left before its end.
func (r *Request) Answered(prompt, generated int, gone bool, after time.Duration) {
	if r == nil {
		return
	}
	to := &r.record
	to.Outcome, to.Duration, to.ServedModel, to.Adapter = picker.Completed.String(), milliseconds(after), r.facts.Base, r.facts.Adapter
	if gone {
		to.Outcome = picker.ClientGone.String()
	}
	to.PromptTokens, to.CompletionTokens = max(0, prompt), max(0, generated)
	to.PromptSource, to.CompletionSource = ResponseCache, ResponseCache
}

// Over records how a request has ended after its last decision.
func (r *Request) Over(outcome picker.Outcome, after time.Duration) {
	if r != nil {
		r.record.Outcome, r.record.Duration = outcome.String(), milliseconds(after)
	}
}

// Close writes the record of a request that was refused or has ended, with the status that the client got, 0 for none. Only the
// first call counts.
func (r *Request) Close(status int) {
	if r == nil || r.log == nil || r.record.Outcome == "" {
		return
	}
	record, f := r.record, &r.facts
	if r.had != nil {
		f = r.had
	}
	record.Status = status
	record.Namespace, record.Pool, record.Model, record.Stream, record.Class = f.Namespace, f.Pool, f.Model, f.Stream, f.Class
	if f.Pool != "" {
		record.Tenant = f.Tenant
	}
	if !record.Stream {
		record.FirstToken = 0
	}
	for _, sink := range r.log.sinks {
		sink.Write(&record)
	}
	r.log = nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
