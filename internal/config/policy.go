package config

import (
	"cmp"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// What blocks of lower tiers are worth, and how fast they are read back in tokens/s, where a policy does not say. The
// rates are those of an 8B model (128 KiB per token) over PCIe from host memory and from one NVMe drive; the credit is
// about the part of a prefill at 20,000 tokens/s that reading back saves.
var (
	defaultCredit = [kvblock.NumTiers]float64{kvblock.GPU: 1, kvblock.CPU: 0.8, kvblock.Disk: 0.3, kvblock.Remote: 0.3}
	defaultReload = [kvblock.NumTiers]float64{kvblock.CPU: 200_000, kvblock.Disk: 30_000, kvblock.Remote: 30_000}
)

var crossings = map[v1alpha1.IslandCrossing]picker.Crossing{
	v1alpha1.CrossWhenCheaper: picker.CrossWhenCheaper, v1alpha1.CrossLastResort: picker.CrossAsLastResort,
	v1alpha1.CrossNever: picker.CrossNever,
}

// handoffSpec translates which requests are handed over between endpoints.
func handoffSpec(d *v1alpha1.Disaggregation) picker.HandoffSpec {
	own := d.Sidecar == v1alpha1.SidecarKvasir
	spec := picker.HandoffSpec{UncachedTokens: int(d.UncachedTokens), Sidecar: own || d.Sidecar == v1alpha1.SidecarLLMD, Own: own}
	switch d.Connector {
	case v1alpha1.ConnectorMooncake:
		spec.Connector, spec.Port = picker.Mooncake, cmp.Or(int(d.ConnectorPort), 8998) // VLLM_MOONCAKE_BOOTSTRAP_PORT
	case v1alpha1.ConnectorOffloading:
		spec.Connector, spec.Port = picker.Offloading, cmp.Or(int(d.ConnectorPort), 5710) // VLLM_P2P_SIDE_CHANNEL_PORT
	}
	switch d.Type {
	case v1alpha1.DisaggregationThreshold:
		spec.Rule = picker.HandoffAbove
	case v1alpha1.DisaggregationNever:
		spec.Rule = picker.HandoffNever
	case v1alpha1.DisaggregationCost:
		spec.Rule = picker.HandoffByCost
	}
	return spec
}

// Policy translates a policy, which must have been admitted: all defaults are in it. It fails for what this version
// does not have, and for expressions that do not compile.
func Policy(p *v1alpha1.RoutingPolicy) (picker.PolicySpec, field.ErrorList) {
	return policySpec(p, nil)
}

// policySpec is Policy. Hooks that are those of last are not compiled again.
func policySpec(p *v1alpha1.RoutingPolicy, last *hooks.Spec) (picker.PolicySpec, field.ErrorList) {
	s := &p.Spec
	spec := picker.PolicySpec{
		Name:              p.Name,
		Generation:        p.Generation,
		Credit:            defaultCredit,
		ReloadRate:        defaultReload,
		TokenBudget:       milliseconds(s.Tokens.BudgetMilliseconds),
		EngineTokenBudget: milliseconds(s.Tokens.EngineBudgetMilliseconds),
		EngineTokens:      string(s.Tokens.Engine),
		SpeculationOff:    s.Speculation.Mode == v1alpha1.SpeculationOff,
		SpeculationMax:    seconds(s.Speculation.MaxSeconds),
		MaxKVUsage:        fraction(s.Guards.MaxKVUsagePercent),
		Crossing:          crossings[s.Guards.IslandCrossing],
		CircuitFailures:   int(s.Guards.Circuit.ConsecutiveFailures),
		CircuitOpen:       seconds(s.Guards.Circuit.OpenSeconds),
		Attempts:          int(s.Fallback.Attempts),
		FirstByte:         seconds(s.Fallback.FirstByteSeconds),
		Comments:          seconds(s.Streams.CommentSeconds),
		LogPercent:        int(value(s.Decisions.LogPercent)),
		AnswerHeaders:     string(s.Decisions.AnswerHeaders),
		AsksUsage:         s.Decisions.StreamUsage != v1alpha1.StreamUsageAsRequested,
		Admission:         admissionSpec(&s.Admission),
		Handoffs:          handoffSpec(&s.Disaggregation),
		Hooks:             hookSpec(&s.Hooks),
		Responses:         responseCacheSpec(&s.ResponseCache),
	}
	spec.SessionIdle = seconds(s.Session.IdleSeconds)
	for _, key := range s.Session.Keys {
		spec.SessionKeys = append(spec.SessionKeys, picker.SessionKey{Type: string(key.Type), Name: key.Name})
	}
	for _, cause := range s.Fallback.RetryOn {
		switch cause {
		case v1alpha1.RetryConnectFailure:
			spec.RetryConnect = true
		case v1alpha1.RetryReset:
			spec.RetryReset = true
		case v1alpha1.RetryServerError:
			spec.RetryServerError = true
		case v1alpha1.RetryFirstByteTimeout:
			spec.RetryFirstByte = true
		case v1alpha1.RetryStall:
			spec.RetryStall = true
		case v1alpha1.RetryBrokenStream:
			spec.ContinueStreams = true
		}
	}
	for _, t := range s.Tiers {
		at := tier(string(t.Tier))
		if t.CreditPercent != nil {
			spec.Credit[at] = fraction(*t.CreditPercent)
		}
		if t.ReloadTokensPerSecond > 0 {
			spec.ReloadRate[at] = float64(t.ReloadTokensPerSecond)
		}
	}
	for i := range s.Shadow {
		shadow := picker.ShadowSpec{Name: s.Shadow[i].Name, Strategy: Strategy(&s.Shadow[i].Strategy), Percent: int(s.Shadow[i].SamplePercent)}
		if _, err := policy.New(shadow.Strategy); err != nil {
			return spec, field.ErrorList{field.Invalid(field.NewPath("spec", "shadow").Index(i).Child("strategy", "type"),
				s.Shadow[i].Strategy.Type, err.Error())}
		}
		spec.Shadows = append(spec.Shadows, shadow)
	}
	spec.Strategy = Strategy(&s.Strategy)
	if _, err := policy.New(spec.Strategy); err != nil {
		return spec, field.ErrorList{field.Invalid(field.NewPath("spec", "strategy", "type"), s.Strategy.Type, err.Error())}
	}
	if text := s.Admission.Tenants.JWT.CACertificates; text != "" {
		if _, err := certs.ParseAuthorities(text); err != nil { // without the text: a private key can be in it by mistake
			path := field.NewPath("spec", "admission", "tenants", "jwt", "caCertificates")
			return spec, field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
		}
	}
	if last != nil && reflect.DeepEqual(spec.Hooks, *last) {
		return spec, append(hookPriorities(s), responseCacheErrors(&s.ResponseCache)...)
	}
	return spec, append(append(hookPriorities(s), hookErrors(&spec.Hooks)...), responseCacheErrors(&s.ResponseCache)...)
}

func milliseconds(n int32) time.Duration { return time.Duration(n) * time.Millisecond }

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// fraction of a percentage.
func fraction(percent int32) float64 { return float64(percent) / 100 }
