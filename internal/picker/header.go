package picker

import "strings"

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
