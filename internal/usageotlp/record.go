package usageotlp

import (
	otlplog "go.opentelemetry.io/otel/log"

	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// eventName is that of all records.
const eventName = "kvasir.usage"

// logRecord has the fields of a record as attributes, those that its JSON line has and by the same names. The time is that of the
// log record.
func logRecord(r *usagelog.Record) (out otlplog.Record) {
	out.SetTimestamp(r.Time)
	out.SetEventName(eventName)
	out.SetSeverity(otlplog.SeverityInfo)
	out.SetBody(otlplog.StringValue(eventName)) // there are collectors that show no record without one
	fields := make([]otlplog.KeyValue, 0, 24)
	text := func(name, value string) {
		if value != "" {
			fields = append(fields, otlplog.String(name, value))
		}
	}
	fields = append(fields, otlplog.String("request", r.Request))
	text("engine_request", r.EngineRequest)
	fields = append(fields, otlplog.String("entrance", r.Entrance))
	text("namespace", r.Namespace)
	text("pool", r.Pool)
	text("tenant", r.Tenant)
	text("class", r.Class)
	text("model", r.Model)
	text("served_model", r.ServedModel)
	text("adapter", r.Adapter)
	text("route", r.Route)
	fields = append(fields, otlplog.Bool("stream", r.Stream))
	text("endpoint", r.Endpoint)
	fields = append(fields, otlplog.String("outcome", r.Outcome))
	text("reason", r.Reason)
	if r.Status != 0 {
		fields = append(fields, otlplog.Int("status", r.Status))
	}
	fields = append(fields, otlplog.Int("prompt_tokens", r.PromptTokens))
	text("prompt_tokens_source", string(r.PromptSource))
	if r.CachedTokens != nil {
		fields = append(fields, otlplog.Int("cached_tokens", *r.CachedTokens))
	}
	fields = append(fields, otlplog.Int("completion_tokens", r.CompletionTokens))
	text("completion_tokens_source", string(r.CompletionSource))
	fields = append(fields, otlplog.Int64("charged_tokens", r.ChargedTokens), otlplog.Float64("duration_ms", r.Duration))
	if r.FirstToken != 0 {
		fields = append(fields, otlplog.Float64("first_token_ms", r.FirstToken))
	}
	out.AddAttributes(fields...)
	return out
}
