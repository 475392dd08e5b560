package config

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/hooks"
)

// hookSpec translates the hooks of a policy.
func hookSpec(h *v1alpha1.Hooks) hooks.Spec {
	spec := hooks.Spec{Headers: h.Headers, BodyFields: h.BodyFields}
	for i := range h.Steps {
		s := &h.Steps[i]
		step := hooks.Step{
			Name: s.Name, When: s.When, Model: s.Model, Priority: s.Priority, Session: s.SessionExpression,
			CostLimit: int(s.CostLimit), Open: s.FailureMode == v1alpha1.FailOpen,
			Refuse: hooks.Refusal{Status: int(s.Refuse.Status), Message: s.Refuse.Message},
			Call:   hooks.Call{URL: s.Call.URL, Timeout: time.Duration(s.Call.TimeoutMilliseconds) * time.Millisecond},
		}
		spec.Steps = append(spec.Steps, step)
	}
	return spec
}

// hookErrors are the errors of steps that do not compile.
func hookErrors(spec *hooks.Spec) (errs field.ErrorList) {
	_, faults := hooks.Compile(*spec, nil)
	path := field.NewPath("spec", "hooks")
	for _, f := range faults {
		switch f.Field {
		case "headers":
			errs = append(errs, field.Invalid(path.Child(f.Field).Index(f.Index), spec.Headers[f.Index], f.Detail))
		case "bodyFields":
			errs = append(errs, field.Invalid(path.Child(f.Field).Index(f.Index), spec.BodyFields[f.Index], f.Detail))
		case "when":
			errs = append(errs, field.Invalid(path.Child("steps").Index(f.Step).Child(f.Field), spec.Steps[f.Step].When, f.Detail))
		default:
			errs = append(errs, field.Invalid(path.Child("steps").Index(f.Step).Child(f.Field), spec.Steps[f.Step].Session, f.Detail))
		}
	}
	for i := range spec.Steps {
		s := &spec.Steps[i]
		if s.Call.URL == "" {
			continue
		}
		if detail := callout.Fault(s.Call.URL); detail != "" {
			errs = append(errs, field.Invalid(path.Child("steps").Index(i).Child("call", "url"), s.Call.URL, "step "+s.Name+": "+detail))
		}
	}
	return errs
}

// hookPriorities are the errors of steps that name a priority which the policy does not have.
func hookPriorities(s *v1alpha1.RoutingPolicySpec) (errs field.ErrorList) {
	for i := range s.Hooks.Steps {
		name := s.Hooks.Steps[i].Priority
		if name != "" && !slices.ContainsFunc(s.Admission.Priorities, func(p v1alpha1.Priority) bool { return p.Name == name }) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "hooks", "steps").Index(i).Child("priority"), name,
				"step "+s.Hooks.Steps[i].Name+": admission.priorities has no such name"))
		}
	}
	return errs
}
