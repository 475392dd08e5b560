package picker

import (
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Headers of inference gateways that mean the same under two names, here without the prefix.
const (
	oldPrefix = "x-gateway-"
	newPrefix = "x-llm-d-"
)

// inferenceHeaders are those that have both prefixes.
var inferenceHeaders = map[string]bool{
	"inference-objective":   true,
	"inference-fairness-id": true,
	"model-name-rewrite":    true,
}

// The names by which to ask for them with HeaderOf.
const (
	// ObjectiveHeader names the request's priority.
	ObjectiveHeader = oldPrefix + "inference-objective"
	// FairnessHeader names the party that the request is accounted to.
	FairnessHeader = oldPrefix + "inference-fairness-id"
	// RewriteHeader is the model that the request is for, in place of the one in its body.
	RewriteHeader = oldPrefix + "model-name-rewrite"
)

// EachRateHeader passes put the headers in which clients of the OpenAI API look for what is left of their limits.
func EachRateHeader(rates tenant.Rates, put func(name, value string)) {
	for _, r := range []struct {
		of string
		tenant.Rate
	}{{"requests", rates.Requests}, {"tokens", rates.Tokens}} {
		if r.PerMinute > 0 {
			put("x-ratelimit-limit-"+r.of, strconv.FormatInt(r.PerMinute, 10))
			put("x-ratelimit-remaining-"+r.of, strconv.FormatInt(r.Left, 10))
			put("x-ratelimit-reset-"+r.of, r.Full.Round(time.Millisecond).String())
		}
	}
}

// EachRateHeader is EachRateHeader for the tenant of a decided request.
func (d *Decision) EachRateHeader(put func(name, value string)) {
	if d.caller.pass != nil {
		EachRateHeader(d.caller.pass.Rates(d.now()), put)
	}
}

// HeaderOf reads a request header by its lower-case name. A header that inference gateways send under either of two
// names is found under both. header can be nil.
func HeaderOf(header func(name string) string, name string) string {
	if header == nil {
		return ""
	}
	value := header(name)
	if value != "" {
		return value
	}
	if bare, ok := strings.CutPrefix(name, oldPrefix); ok && inferenceHeaders[bare] {
		return header(newPrefix + bare)
	}
	if bare, ok := strings.CutPrefix(name, newPrefix); ok && inferenceHeaders[bare] {
		return header(oldPrefix + bare)
	}
	return ""
}
