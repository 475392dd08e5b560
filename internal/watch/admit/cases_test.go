package admit

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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
	owned   = model + template

	targets = "targetRefs: [{name: p}]\n"
	tenants = "identification: APIKey, secretRefs: [{name: t}]"
)

// specCase is a spec that is admitted, or refused with a message.
type specCase struct {
	// name of the object; p where empty.
	name string
	// old is the spec before, empty for a new object.
	old string
	// spec in YAML.
	spec string
	// want is a part of the message; empty where the spec is admitted.
	want string
}

func runCases(t *testing.T, kind string, cases map[string]specCase) {
	t.Helper()
	a := newAdmitter(t)
	text := func(name, spec string) []byte {
		if name == "" {
			name = "p"
		}
		return []byte("apiVersion: kvasir.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec:\n  " +
			strings.ReplaceAll(spec, "\n", "\n  ") + "\n")
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			var old *unstructured.Unstructured
			if tc.old != "" {
				old = mustAdmit(t, text(tc.name, tc.old), nil)
			}
			_, err := a.Admit(t.Context(), text(tc.name, tc.spec), old)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("got the error %v, want a refusal", err)
			}
			found := slices.ContainsFunc(refused.Problems, func(p Problem) bool { return strings.Contains(p.String(), tc.want) })
			if !found {
				t.Errorf("got %v, want %q", refused, tc.want)
			}
		})
	}
}

func TestPoolsThatOwnTheirPods(t *testing.T) {
	runCases(t, "InferencePool", map[string]specCase{
		"a size is needed":                             {spec: owned, want: "set either replicas or autoscaling"},
		"replicas is a size":                           {spec: owned + "replicas: 2"},
		"active autoscaling is a size":                 {spec: owned + "autoscaling: {maxReplicas: 3}"},
		"there is one writer of the size":              {spec: owned + "replicas: 2\nautoscaling: {maxReplicas: 3}", want: "set either replicas or autoscaling"},
		"recommending is no size":                      {spec: owned + "autoscaling: {maxReplicas: 3, mode: Recommend}", want: "set either"},
		"recommending goes with replicas":              {spec: owned + "replicas: 1\nautoscaling: {maxReplicas: 3, mode: Recommend}"},
		"adoption is for selected pods":                {spec: owned + "replicas: 1\nadoption: {}", want: "adoption is for pools with selector"},
		"the minimum is not above the maximum":         {spec: owned + "autoscaling: {minReplicas: 4, maxReplicas: 3}", want: "minReplicas must not exceed"},
		"a schedule is not above the maximum":          {spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 * * 1-5, durationSeconds: 3600, minReplicas: 4}]}", want: "schedule's minReplicas"},
		"a schedule has five fields":                   {spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 *, durationSeconds: 3600, minReplicas: 1}]}", want: "spec.autoscaling.schedules[0].start"},
		"a schedule is admitted":                       {spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 * * 1-5, durationSeconds: 3600, minReplicas: 0}]}"},
		"a rollout without surge needs another":        {spec: owned + "replicas: 1\nrollout: {maxSurge: 0}", want: "cannot both be 0"},
		"a rollout of zero percent is none":            {spec: owned + "replicas: 1\nrollout: {maxSurge: 0%, maxUnavailable: 0%}", want: "cannot both be 0"},
		"a rollout takes a percentage":                 {spec: owned + "replicas: 1\nrollout: {maxSurge: 25%}"},
		"a rollout may remove first":                   {spec: owned + "replicas: 1\nrollout: {maxSurge: 0, maxUnavailable: 1}"},
		"a rollout takes no word":                      {spec: owned + "replicas: 1\nrollout: {maxSurge: x}", want: "spec.rollout.maxSurge"},
		"a rollout takes at most 100 percent":          {spec: owned + "replicas: 1\nrollout: {maxSurge: 101%}", want: "spec.rollout.maxSurge"},
		"a rollout takes no negative number":           {spec: owned + "replicas: 1\nrollout: {maxSurge: -1}", want: "maxSurge and maxUnavailable must not be negative"},
		"warm-up without values":                       {spec: owned + "replicas: 1\nwarmUp: {}"},
		"an island's minimum is not above its maximum": {spec: owned + "replicas: 1\nplacement: {islands: [{name: a, minReplicas: 3, maxReplicas: 1}]}", want: "minReplicas must not exceed"},
		"a price is not negative":                      {spec: owned + "replicas: 1\nplacement: {islands: [{name: a, hourlyPrice: '-1'}]}", want: "spec.placement.islands[0].hourlyPrice"},
		"a price is a decimal number":                  {spec: owned + "replicas: 1\nplacement: {islands: [{name: a, hourlyPrice: '2.49'}]}"},
		"islands have different names":                 {spec: owned + "replicas: 1\nplacement: {islands: [{name: a}, {name: a}]}", want: "Duplicate"},
		"a size is not negative":                       {spec: owned + "replicas: -1", want: "spec.replicas"},
		"a size is bounded":                            {spec: owned + "replicas: 2001", want: "spec.replicas"},
	})
}

func TestPoolsOfSelectedPods(t *testing.T) {
	const scaleTarget = "adoption: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\n"
	runCases(t, "InferencePool", map[string]specCase{
		"the smallest pool":                       {spec: adopted},
		"neither template nor selector":           {spec: model, want: "exactly one of the fields in [template selector] must be set"},
		"both template and selector":              {spec: owned + selector + "replicas: 1", want: "exactly one"},
		"no label":                                {spec: model + "selector: {matchLabels: {}}", want: "spec.selector.matchLabels"},
		"an empty selector":                       {spec: model + "selector: {}", want: "spec.selector.matchLabels: Required value"},
		"replicas belongs to the owner":           {spec: adopted + "replicas: 1", want: "leave it out with selector"},
		"rollout belongs to the owner":            {spec: adopted + "rollout: {}", want: "rollout and warmUp need template"},
		"warm-up belongs to the owner":            {spec: adopted + "warmUp: {}", want: "rollout and warmUp need template"},
		"adoption without a target":               {spec: adopted + "adoption: {}"},
		"autoscaling needs a target":              {spec: adopted + "autoscaling: {maxReplicas: 3}", want: "adoption.scaleTargetRef"},
		"autoscaling of a target":                 {spec: adopted + "autoscaling: {maxReplicas: 3}\n" + scaleTarget},
		"recommending needs no target":            {spec: adopted + "autoscaling: {maxReplicas: 3, mode: Recommend}"},
		"islands do not place selected pods":      {spec: adopted + "placement: {islands: [{name: a, minReplicas: 1}]}", want: "islands of selected pods"},
		"islands of selected pods have a latency": {spec: adopted + "placement: {islandLabel: topology.kubernetes.io/region, islands: [{name: eu-west-1, latencyMilliseconds: 2}]}"},
		"an unknown field":                        {spec: adopted + "foo: 1", want: "unknown field"},
		"a name of 46 letters":                    {name: strings.Repeat("a", 46), spec: adopted, want: "metadata.name must be"},
		"a name of 45 letters":                    {name: strings.Repeat("a", 45), spec: adopted},
		"a name that begins with a digit":         {name: "1a", spec: adopted, want: "metadata.name must be"},
		"a name with a dot":                       {name: "a.b", spec: adopted, want: "metadata.name must be"},
	})
}

func TestRoles(t *testing.T) {
	const reserved = "prefill/decode disaggregation is reserved"
	runCases(t, "InferencePool", map[string]specCase{
		"both":        {spec: adopted + "role: Both"},
		"prefill":     {spec: adopted + "role: Prefill", want: reserved},
		"decode":      {spec: adopted + "role: Decode", want: reserved},
		"no such":     {spec: adopted + "role: Encode", want: `spec.role: Unsupported value: "Encode"`},
		"both, again": {old: adopted, spec: adopted + "role: Both"},
	})
}

func TestModels(t *testing.T) {
	tokenizer := func(fields string) string {
		return selector + "model: {name: m, tokenizer: {" + fields + "}}"
	}
	runCases(t, "InferencePool", map[string]specCase{
		"an alias is not the name":                {spec: selector + "model: {name: m, aliases: [m]}", want: "aliases must not repeat"},
		"aliases differ":                          {spec: selector + "model: {name: m, aliases: [a, a]}", want: "Duplicate"},
		"an adapter is not an alias":              {spec: selector + "model: {name: m, aliases: [a], adapters: {names: [a]}}", want: "an adapter cannot"},
		"an adapter is not the model":             {spec: selector + "model: {name: m, adapters: {names: [m]}}", want: "an adapter cannot"},
		"a name has no blanks":                    {spec: selector + "model: {name: a b}", want: "spec.model.name"},
		"a volume is needed":                      {spec: tokenizer("type: Volume"), want: "volume is required"},
		"a volume is for its type":                {spec: tokenizer("volume: {persistentVolumeClaim: {name: x}}"), want: "volume is required when"},
		"a volume":                                {spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, path: a/b}")},
		"a volume of an image":                    {spec: tokenizer("type: Volume, volume: {image: {reference: registry.example.com/models/m:1}}")},
		"a volume has one source":                 {spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, configMap: {name: z}}"), want: "exactly one"},
		"a volume's path stays inside":            {spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, path: ../b}"), want: "relative path"},
		"a reporter needs a path":                 {spec: tokenizer("type: Reporter"), want: "reporter is required"},
		"a reporter":                              {spec: tokenizer("type: Reporter, reporter: {path: /models/x}")},
		"a directory":                             {spec: tokenizer("type: Directory, directory: {path: x}")},
		"a directory stays inside":                {spec: tokenizer("type: Directory, directory: {path: ../x}"), want: "must not contain '..'"},
		"a chat template stays inside":            {spec: tokenizer("chatTemplate: /etc/passwd"), want: "relative path"},
		"the source is one of five":               {spec: tokenizer("type: Disk"), want: "Unsupported value"},
		"no tokenizer: approximate matching":      {spec: tokenizer("type: None")},
		"a directory is not for type None either": {spec: tokenizer("type: None, directory: {path: x}"), want: "directory is required when"},
	})
}

func TestEngines(t *testing.T) {
	runCases(t, "InferencePool", map[string]specCase{
		"ports of ranks overlap":             {spec: adopted + "engine: {ports: {events: 5557, replay: 5558}, dataParallel: {ranks: 8}}", want: "overlap"},
		"ports of one rank do not":           {spec: adopted + "engine: {ports: {events: 5557, replay: 5558}}"},
		"replay may come first":              {spec: adopted + "engine: {ports: {events: 5565, replay: 5557}, dataParallel: {ranks: 8}}"},
		"sixteen ranks are no ports":         {spec: adopted + "engine: {dataParallel: {ranks: 16, addressing: PortPerRank}}", want: "at most 8 ranks"},
		"sixteen ranks in a header":          {spec: adopted + "engine: {dataParallel: {ranks: 16}}"},
		"a port is a port":                   {spec: adopted + "engine: {ports: {http: 65536}}", want: "spec.engine.ports.http"},
		"a batch may be sent at once":        {spec: adopted + "engine: {events: {reporter: {batchMilliseconds: 0}}}"},
		"media have different names":         {spec: adopted + "engine: {media: [{medium: a, tier: Disk}, {medium: a, tier: CPU}]}", want: "Duplicate"},
		"a medium needs a tier":              {spec: adopted + "engine: {media: [{medium: a}]}", want: "tier"},
		"a key has a multiple of 8 tokens":   {spec: adopted + "keySpace: {blockTokens: 20}", want: "spec.keySpace.blockTokens"},
		"the name of the engine is one of 2": {spec: adopted + "engine: {type: TGI}", want: "Unsupported value"},
		"an empty engine has all defaults":   {spec: adopted + "engine: {}"},
	})
}

func TestPickersAndGateways(t *testing.T) {
	runCases(t, "InferencePool", map[string]specCase{
		"an external picker needs a name":     {spec: adopted + "picker: {mode: External}", want: "external is required"},
		"an external picker":                  {spec: adopted + "picker: {mode: External, external: {serviceName: x}}"},
		"a managed picker has no name":        {spec: adopted + "picker: {external: {serviceName: x}}", want: "external is required when"},
		"TLS of a Secret needs one":           {spec: adopted + "picker: {tls: {type: Secret}}", want: "secretRef is required"},
		"TLS of a Secret":                     {spec: adopted + "picker: {tls: {type: Secret, secretRef: {name: x}}}"},
		"TLS of cert-manager needs an issuer": {spec: adopted + "picker: {tls: {type: CertManager}}", want: "issuerRef is required"},
		"an index of 1 MiB is too small":      {spec: adopted + "picker: {indexMemory: 1Mi}", want: "indexMemory must be"},
		"an index is not negative":            {spec: adopted + "picker: {indexMemory: -1Gi}", want: "indexMemory must be"},
		"an index as a number of bytes":       {spec: adopted + "picker: {indexMemory: 1073741824}"},
		"bodies of no bytes":                  {spec: adopted + "picker: {maxRequestBody: 0}", want: "maxRequestBody must be"},
		"a route needs mode Auto":             {spec: adopted + "gateway: {mode: Disabled, parentRefs: [{name: g}]}", want: "parentRefs need mode Auto"},
		"host names need a route":             {spec: adopted + "gateway: {hostnames: [a.b]}", want: "hostnames need parentRefs"},
		"a route with a host name":            {spec: adopted + "gateway: {parentRefs: [{name: g}], hostnames: [a.b]}"},
		"a host name is one":                  {spec: adopted + "gateway: {parentRefs: [{name: g}], hostnames: [a_b]}", want: "spec.gateway.hostnames[0]"},
	})
}

func TestChangesOfPools(t *testing.T) {
	runCases(t, "InferencePool", map[string]specCase{
		"the model's name stays":             {old: adopted, spec: selector + "model: {name: other}", want: "model.name is immutable"},
		"the tokens of a key stay":           {old: adopted, spec: adopted + "keySpace: {blockTokens: 32}", want: "blockTokens is immutable"},
		"the tokens of a key cannot be left": {old: adopted + "keySpace: {blockTokens: 32}", spec: adopted, want: "blockTokens is immutable"},
		"the root's Secret may change":       {old: adopted, spec: adopted + "keySpace: {secretRef: {name: x}}"},
		"the engine stays":                   {old: adopted, spec: adopted + "engine: {type: SGLang}", want: "engine.type is immutable"},
		"the engine cannot be left out":      {old: adopted + "engine: {type: SGLang}", spec: adopted, want: "engine.type is immutable"},
		"the owner stays":                    {old: owned + "replicas: 1", spec: adopted, want: "cannot change between"},
		"the owner stays the other way":      {old: adopted, spec: owned + "replicas: 1", want: "cannot change between"},
		"the labels may change":              {old: adopted, spec: model + "selector: {matchLabels: {x: other}}"},
		"the writer of the size may change":  {old: owned + "replicas: 1", spec: owned + "autoscaling: {maxReplicas: 3}"},
		"aliases may change":                 {old: adopted, spec: selector + "model: {name: m, aliases: [a]}"},
	})
}
