// Package apicases is a table of specs that are admitted, or refused with a message. internal/config/crdadmission is held
// against it, and a real API server: what one of them says, the other must say, too.
package apicases

import "strings"

// Case is a spec that is admitted, or refused with a message.
type Case struct {
	// Name of the object; p where empty.
	Name string
	// Old is the spec before, in YAML; empty for a new object.
	Old string
	// Spec in YAML; empty for an object that has none.
	Spec string
	// Want is a part of the message; empty where the spec is admitted.
	Want string
}

// Group is cases about one thing.
type Group struct {
	// Kind of the objects.
	Kind string
	// Cases by what they show.
	Cases map[string]Case
}

// Texts returns the object of a case as YAML, and the one before it, nil for a new object.
func (g Group) Texts(c Case) (before, after []byte) {
	if c.Old != "" {
		before = g.text(c.Name, c.Old)
	}
	return before, g.text(c.Name, c.Spec)
}

func (g Group) text(name, spec string) []byte {
	if name == "" {
		name = "p"
	}
	text := "apiVersion: kvasir.dev/v1alpha1\nkind: " + g.Kind + "\nmetadata: {name: " + name + ", namespace: default}\n"
	if spec != "" {
		text += "spec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
	}
	return []byte(text)
}

// Groups returns all cases, by what they are about.
func Groups() map[string]Group {
	return map[string]Group{
		"pools that own their pods":   poolsThatOwnTheirPods(),
		"pools with roles":            poolsWithRoles(),
		"pools of selected pods":      poolsOfSelectedPods(),
		"managed pickers":             managedPickers(),
		"models":                      models(),
		"engines":                     engines(),
		"pickers and gateways":        pickersAndGateways(),
		"network policies of engines": enginesNetworks(),
		"fleets":                      fleets(),
		"pools of fleets":             poolsOfFleets(),
		"changes of pools":            changesOfPools(),
		"targets of policies":         targetsOfPolicies(),
		"strategies":                  strategies(),
		"members of strategies":       membersOfStrategies(),
		"shadows and tiers":           shadowsAndTiers(),
		"sessions":                    sessions(),
		"admission":                   admission(),
		"hooks":                       hooks(),
		"response cache":              responseCache(),
		"fallback and decisions":      fallbackAndDecisions(),
		"routes":                      routes(),
		"matches and fallbacks":       matchesAndFallbacks(),
		"mirrors and limits":          mirrorsAndLimits(),
	}
}

// Fragments of specs, in YAML.
const (
	model    = "model: {name: m}\n"
	selector = "selector: {matchLabels: {app: m}}\n"
	template = `
template:
  metadata: {labels: {a: b}}
  spec:
    containers:
    - {name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m]}
`
	adopted = model + selector
	// external are pickers that the operator does not run.
	external = "picker: {mode: External, external: {serviceName: x}}\n"
	owned    = model + template

	targets = "targetRefs: [{name: p}]\n"
	tenants = "identification: APIKey, secretRefs: [{name: t}]"
)
