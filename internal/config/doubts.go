package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// maxNamed is how many endpoints or classes of requests a condition names one by one.
const maxNamed = 3

// requestsOf describes a class of requests.
func requestsOf(kind openai.Kind, traits picker.Traits) string {
	var of []string
	if traits&picker.TraitAdapter != 0 {
		of = append(of, "for adapters")
	}
	if traits&picker.TraitSalt != 0 {
		of = append(of, "with a cache salt")
	}
	if traits&picker.TraitFields != 0 {
		of = append(of, "with fields that can concern the cache or are not known")
	}
	return strings.TrimSpace("requests of kind " + kind.String() + " " + strings.Join(of, " and "))
}

// mispredicting describes which matches are ignored, and what to check.
func mispredicting(list []picker.Distrust) string {
	var text strings.Builder
	text.WriteString("engines find less than half of what they announced and did not remove: ")
	for i := range list[:min(len(list), maxNamed)] {
		d := &list[i]
		if i > 0 {
			text.WriteString("; ")
		}
		of := requestsOf(d.Kind, d.Traits)
		fmt.Fprintf(&text, "%s for %s, tokens %s (%d of %d tokens found)", d.Endpoint, of, d.Tokens, d.Found, d.Announced)
	}
	text.WriteString(more(len(list)))
	text.WriteString(". Compare tokenizer, template, cache salts and block size. Until the engines find it, such requests are matched there against what was routed before, except for one in 16; all others are not affected")
	return text.String()
}

// tokensDoubted describes which tokens do not fit what engines count and announce, and why; both are empty if all fit.
func tokensDoubted(list []picker.Doubt) (reason, message string) {
	if len(list) == 0 {
		return "", ""
	}
	reason = status.ReasonTokensDoubted
	if list[0].Endpoint != "" {
		reason = status.ReasonEndpointDiffers
	}
	var text []string
	for i := range list[:min(len(list), maxNamed)] {
		d := &list[i]
		if d.Endpoint == "" {
			text = append(text, fmt.Sprintf("the tokens of %s, tokens %s, are not used until %s, because engines count or announce other ones (%d of %d answers)",
				requestsOf(d.Kind, d.Traits), d.Tokens, d.Until.UTC().Format(time.RFC3339), d.Misfits, d.Answers))
		} else {
			// Without its answers, whose number changes all the time.
			text = append(text, fmt.Sprintf("%s counts or announces other tokens than the other endpoints for %s, tokens %s",
				d.Endpoint, requestsOf(d.Kind, d.Traits), d.Tokens))
		}
	}
	return reason, strings.Join(text, "; ") + more(len(list)) + "; all other requests and endpoints are not affected"
}

// more is how many of a list are not named.
func more(n int) string {
	if n <= maxNamed {
		return ""
	}
	return fmt.Sprintf("; and %d more", n-maxNamed)
}
