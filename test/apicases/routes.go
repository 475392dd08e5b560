package apicases

import (
	"fmt"
	"strings"
)

// Parts of the spec of a route.
const (
	routeModels  = "models: [chat]\n"
	routeBackend = "backends: [{pool: m}]"
)

// ofRule is a route of one rule.
func ofRule(fields string) string { return routeModels + "rules: [{" + fields + "}]" }

func routes() Group {
	many := func(n int, item string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(item, i))
		}
		return strings.Join(all, ", ")
	}
	limits := routeModels + "rules: [" + many(16, "{matches: [{tenant: t%d}], "+routeBackend+"}") + "]"
	return Group{Kind: "ModelRoute", Cases: map[string]Case{
		"the smallest route":          {Spec: ofRule(routeBackend)},
		"as many rules as there can":  {Spec: limits},
		"as many backends as can be":  {Spec: ofRule("backends: [" + many(8, "{pool: m%d, weight: 1000000}") + "]")},
		"a name with a slash":         {Spec: "models: [Qwen/Qwen3-32B]\nrules: [{" + routeBackend + "}]"},
		"a pool with a long name":     {Spec: ofRule("backends: [{pool: " + strings.Repeat("a.", 126) + "a}]")},
		"a canary":                    {Spec: ofRule("backends: [{pool: a, weight: 95}, {pool: b, weight: 5, modelName: b}, {pool: b, weight: 0}], sticky: None")},
		"no models":                   {Spec: "models: []\nrules: [{" + routeBackend + "}]", Want: "spec.models"},
		"17 models":                   {Spec: "models: [" + many(17, "m%d") + "]\nrules: [{" + routeBackend + "}]", Want: "spec.models"},
		"a model twice":               {Spec: "models: [chat, chat]\nrules: [{" + routeBackend + "}]", Want: "spec.models[1]"},
		"a model with a blank":        {Spec: "models: [a b]\nrules: [{" + routeBackend + "}]", Want: "spec.models[0]"},
		"no rules":                    {Spec: routeModels + "rules: []", Want: "spec.rules"},
		"rules that are left out":     {Spec: "models: [chat]", Want: "spec.rules"},
		"17 rules":                    {Spec: strings.Replace(limits, "rules: [", "rules: [{"+routeBackend+"}, ", 1), Want: "spec.rules"},
		"no backends":                 {Spec: ofRule("sticky: None"), Want: "spec.rules[0].backends"},
		"9 backends":                  {Spec: ofRule("backends: [" + many(9, "{pool: m%d}") + "]"), Want: "spec.rules[0].backends"},
		"backends without a pool":     {Spec: ofRule("backends: [{weight: 1}]"), Want: "spec.rules[0].backends[0].pool"},
		"a pool of another namespace": {Spec: ofRule("backends: [{pool: other/m}]"), Want: "spec.rules[0].backends[0].pool"},
		"no weight":                   {Spec: ofRule("backends: [{pool: a, weight: 0}, {pool: b, weight: 0}]"), Want: "all weights are 0, so that no backend gets a request"},
		"a negative weight":           {Spec: ofRule("backends: [{pool: a, weight: -1}]"), Want: "spec.rules[0].backends[0].weight"},
		"a weight above all":          {Spec: ofRule("backends: [{pool: a, weight: 1000001}]"), Want: "spec.rules[0].backends[0].weight"},
		"a backend twice":             {Spec: ofRule("backends: [{pool: a, weight: 1}, {pool: a, weight: 2}]"), Want: "no two backends may have the same pool and the same modelName"},
		"stickiness of another kind":  {Spec: ofRule("sticky: Always, " + routeBackend), Want: "spec.rules[0].sticky"},
		"a field that is none":        {Spec: ofRule("backends: [{pool: a, weights: 1}]"), Want: `unknown field "spec.rules[0].backends[0].weights"`},
		"a time for requests":         {Spec: ofRule(routeBackend) + "\ntimeouts: {requestSeconds: 86400}"},
		"no time for requests":        {Spec: ofRule(routeBackend) + "\ntimeouts: {requestSeconds: 0}", Want: "spec.timeouts"},
		"two days for requests":       {Spec: ofRule(routeBackend) + "\ntimeouts: {requestSeconds: 172800}", Want: "spec.timeouts.requestSeconds"},
		"limits of nothing":           {Spec: ofRule(routeBackend) + "\ntimeouts: {}", Want: "spec.timeouts"},
	}}
}

func mirrorsAndLimits() Group {
	mirror := func(m string) string { return ofRule("mirrors: [" + m + "], " + routeBackend) }
	limits := func(l string) string { return ofRule(routeBackend) + "\nlimits: {" + l + "}" }
	return Group{Kind: "ModelRoute", Cases: map[string]Case{
		"mirrors":                       {Spec: mirror("{pool: a}, {pool: a, modelName: b, percent: 0}, {pool: m, modelName: b, percent: 100}, {pool: c, percent: 1}")},
		"no mirrors":                    {Spec: mirror("")},
		"a mirror that is a canary too": {Spec: ofRule("backends: [{pool: a, weight: 95}, {pool: b, weight: 5}], mirrors: [{pool: b, percent: 10}]")},
		"a mirror by its first name":    {Spec: ofRule("backends: [{pool: a, modelName: x}], mirrors: [{pool: a}]")},
		"a mirror that is a fallback":   {Spec: ofRule("backends: [{pool: a}], fallback: [{pool: b}], mirrors: [{pool: b}]")},
		"a mirror that is the backend":  {Spec: mirror("{pool: m}"), Want: "a mirror must differ from the backends"},
		"the backend by its name":       {Spec: ofRule("backends: [{pool: a, modelName: x}], mirrors: [{pool: a, modelName: x}]"), Want: "a mirror must differ from the backends"},
		"a mirror twice":                {Spec: mirror("{pool: a, percent: 1}, {pool: a, percent: 2}"), Want: "no two mirrors may have the same pool and the same modelName"},
		"5 mirrors":                     {Spec: mirror("{pool: a}, {pool: b}, {pool: c}, {pool: d}, {pool: e}"), Want: "spec.rules[0].mirrors"},
		"a mirror of no pool":           {Spec: mirror("{percent: 5}"), Want: "spec.rules[0].mirrors[0].pool"},
		"a mirror elsewhere":            {Spec: mirror("{pool: other/a}"), Want: "spec.rules[0].mirrors[0].pool"},
		"101 percent":                   {Spec: mirror("{pool: a, percent: 101}"), Want: "spec.rules[0].mirrors[0].percent"},
		"less than no percent":          {Spec: mirror("{pool: a, percent: -1}"), Want: "spec.rules[0].mirrors[0].percent"},
		"half a percent":                {Spec: mirror("{pool: a, percent: 0.5}"), Want: "spec.rules[0].mirrors[0].percent"},
		"limits of requests":            {Spec: limits("requestsPerMinute: 1000000, maxConcurrent: 100000")},
		"one limit":                     {Spec: limits("maxConcurrent: 1")},
		"limits without one":            {Spec: limits(""), Want: "spec.limits"},
		"no request per minute":         {Spec: limits("requestsPerMinute: 0"), Want: "spec.limits"},
		"too many requests":             {Spec: limits("requestsPerMinute: 1000001"), Want: "spec.limits.requestsPerMinute"},
		"too many at once":              {Spec: limits("maxConcurrent: 100001"), Want: "spec.limits.maxConcurrent"},
	}}
}

func matchesAndFallbacks() Group {
	match := func(m string) string { return ofRule("matches: [" + m + "], " + routeBackend) }
	fallback := func(f string) string { return ofRule(f + ", " + routeBackend) }
	return Group{Kind: "ModelRoute", Cases: map[string]Case{
		"a tenant":                 {Spec: match("{tenant: t}")},
		"a tenant or headers":      {Spec: match(`{tenant: t}, {headers: [{name: X-Canary, value: "true"}, {name: "a!#$%&'*+.^_` + "`" + `|~-9", value: "\t é"}]}`)},
		"a tenant with no header":  {Spec: match("{tenant: t, headers: []}")},
		"a match of nothing":       {Spec: match("{}"), Want: "spec.rules[0].matches[0]"},
		"a match of no header":     {Spec: match("{headers: []}"), Want: "a tenant or headers are required"},
		"a header twice":           {Spec: match("{headers: [{name: a, value: b}, {name: A, value: c}]}"), Want: "no two headers may have the same name, whatever its case"},
		"a header with a blank":    {Spec: match("{headers: [{name: a b, value: c}]}"), Want: "spec.rules[0].matches[0].headers[0].name"},
		"a header of no value":     {Spec: match(`{headers: [{name: a, value: ""}]}`), Want: "spec.rules[0].matches[0].headers[0].value"},
		"a value of two lines":     {Spec: match(`{headers: [{name: a, value: "b\nc"}]}`), Want: "spec.rules[0].matches[0].headers[0].value"},
		"no tenant":                {Spec: match(`{tenant: ""}`), Want: "spec.rules[0].matches[0]"},
		"fallbacks":                {Spec: fallback("fallback: [{pool: a}, {pool: a, modelName: b}, {pool: c}, {pool: d}], fallbackOn: [Full, Cold, Down], fallbackWithinMilliseconds: 600000")},
		"a fallback for one cause": {Spec: fallback("fallback: [{pool: a}], fallbackOn: [Cold]")},
		"a fallback twice":         {Spec: fallback("fallback: [{pool: a}, {pool: a}]"), Want: "no two fallbacks may have the same pool and the same modelName"},
		"5 fallbacks":              {Spec: fallback("fallback: [{pool: a}, {pool: b}, {pool: c}, {pool: d}, {pool: e}]"), Want: "spec.rules[0].fallback"},
		"a fallback's pool":        {Spec: fallback("fallback: [{pool: A_B}]"), Want: "spec.rules[0].fallback[0].pool"},
		"another cause":            {Spec: fallback("fallback: [{pool: a}], fallbackOn: [Slow]"), Want: "spec.rules[0].fallbackOn[0]"},
		"the same cause twice":     {Spec: fallback("fallback: [{pool: a}], fallbackOn: [Full, Full]"), Want: "spec.rules[0].fallbackOn[1]"},
		"no cause":                 {Spec: fallback("fallback: [{pool: a}], fallbackOn: []"), Want: "spec.rules[0].fallbackOn"},
		"causes without pools":     {Spec: fallback("fallbackOn: [Full]"), Want: "the pools that fallbackOn and fallbackWithinMilliseconds are about"},
		"a budget without pools":   {Spec: fallback("fallback: [], fallbackWithinMilliseconds: 1"), Want: "the pools that fallbackOn and fallbackWithinMilliseconds are about"},
		"no budget":                {Spec: fallback("fallback: [{pool: a}], fallbackWithinMilliseconds: 0"), Want: "spec.rules[0].fallbackWithinMilliseconds"},
		"a long budget":            {Spec: fallback("fallback: [{pool: a}], fallbackWithinMilliseconds: 600001"), Want: "spec.rules[0].fallbackWithinMilliseconds"},
	}}
}
