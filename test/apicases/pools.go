package apicases

import "strings"

func poolsThatOwnTheirPods() Group {
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"a size is needed":                             {Spec: owned, Want: "set either replicas or autoscaling"},
		"replicas is a size":                           {Spec: owned + "replicas: 2"},
		"active autoscaling is a size":                 {Spec: owned + "autoscaling: {maxReplicas: 3}"},
		"there is one writer of the size":              {Spec: owned + "replicas: 2\nautoscaling: {maxReplicas: 3}", Want: "set either replicas or autoscaling"},
		"recommending is no size":                      {Spec: owned + "autoscaling: {maxReplicas: 3, mode: Recommend}", Want: "set either"},
		"recommending goes with replicas":              {Spec: owned + "replicas: 1\nautoscaling: {maxReplicas: 3, mode: Recommend}"},
		"adoption is for selected pods":                {Spec: owned + "replicas: 1\nadoption: {}", Want: "adoption is for pools with selector"},
		"the minimum is not above the maximum":         {Spec: owned + "autoscaling: {minReplicas: 4, maxReplicas: 3}", Want: "minReplicas must not exceed"},
		"a schedule is not above the maximum":          {Spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 * * 1-5, durationSeconds: 3600, minReplicas: 4}]}", Want: "schedule's minReplicas"},
		"a schedule has five fields":                   {Spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 *, durationSeconds: 3600, minReplicas: 1}]}", Want: "spec.autoscaling.schedules[0].start"},
		"a schedule's minute is one":                   {Spec: owned + schedule("60 8 * * *"), Want: "must be a cron expression"},
		"a schedule's month has a name":                {Spec: owned + schedule("'0 8 * Jan-mar,12 MON'")},
		"a schedule is no descriptor":                  {Spec: owned + schedule("'@every 1h30m 2s 3s x'"), Want: "must be a cron expression"},
		"a schedule's steps and lists":                 {Spec: owned + schedule("'*/15 8-18/2 1,15 ? *'")},
		"islands want no more than autoscaling gives":  {Spec: owned + islandsOf("{name: a, minReplicas: 2}, {name: b, minReplicas: 2}"), Want: "exceed autoscaling.maxReplicas"},
		"islands want as much as autoscaling gives":    {Spec: owned + islandsOf("{name: a, minReplicas: 2}, {name: b, minReplicas: 1}, {name: c}")},
		"islands have room for the least size":         {Spec: owned + islandsOf("{name: a, maxReplicas: 1}, {name: b, maxReplicas: 0}"), Want: "below autoscaling.minReplicas"},
		"one island without a maximum has room":        {Spec: owned + islandsOf("{name: a, maxReplicas: 1}, {name: b}")},
		"no islands":                                   {Spec: owned + islandsOf("")},
		"an island label is a label":                   {Spec: owned + "replicas: 1\nplacement: {islandLabel: a b}", Want: "must be a label"},
		"an island label has one slash":                {Spec: owned + "replicas: 1\nplacement: {islandLabel: a/b/c}", Want: "must be a label"},
		"an island label's name is short":              {Spec: owned + "replicas: 1\nplacement: {islandLabel: example.com/" + strings.Repeat("a", 64) + "}", Want: "must be a label"},
		"an island label is not the pool's":            {Spec: owned + "replicas: 1\nplacement: {islandLabel: kvasir.dev/pool}", Want: "Kvasir uses this label itself"},
		"an island label of the node's":                {Spec: owned + "replicas: 1\nplacement: {islandLabel: topology.kubernetes.io/zone}"},
		"a schedule is admitted":                       {Spec: owned + "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: 0 8 * * 1-5, durationSeconds: 3600, minReplicas: 0}]}"},
		"a rollout without surge needs another":        {Spec: owned + "replicas: 1\nrollout: {maxSurge: 0}", Want: "cannot both be 0"},
		"a rollout of zero percent is none":            {Spec: owned + "replicas: 1\nrollout: {maxSurge: 0%, maxUnavailable: 0%}", Want: "cannot both be 0"},
		"a rollout takes a percentage":                 {Spec: owned + "replicas: 1\nrollout: {maxSurge: 25%}"},
		"a rollout may remove first":                   {Spec: owned + "replicas: 1\nrollout: {maxSurge: 0, maxUnavailable: 1}"},
		"a rollout takes no word":                      {Spec: owned + "replicas: 1\nrollout: {maxSurge: x}", Want: "spec.rollout.maxSurge"},
		"a rollout takes at most 100 percent":          {Spec: owned + "replicas: 1\nrollout: {maxSurge: 101%}", Want: "spec.rollout.maxSurge"},
		"a rollout takes no negative number":           {Spec: owned + "replicas: 1\nrollout: {maxSurge: -1}", Want: "maxSurge and maxUnavailable must not be negative"},
		"a rollout without values":                     {Spec: owned + "replicas: 1\nrollout: {}"},
		"a rollout may be paused":                      {Spec: owned + "replicas: 1\npaused: Rollout"},
		"all may be paused":                            {Spec: owned + "replicas: 1\npaused: All"},
		"a pause is of something":                      {Spec: owned + "replicas: 1\npaused: Nothing", Want: "spec.paused"},
		"warm-up without values":                       {Spec: owned + "replicas: 1\nwarmUp: {}"},
		"an island's minimum is not above its maximum": {Spec: owned + "replicas: 1\nplacement: {islands: [{name: a, minReplicas: 3, maxReplicas: 1}]}", Want: "minReplicas must not exceed"},
		"a price is not negative":                      {Spec: owned + "replicas: 1\nplacement: {islands: [{name: a, hourlyPrice: '-1'}]}", Want: "spec.placement.islands[0].hourlyPrice"},
		"a price is a decimal number":                  {Spec: owned + "replicas: 1\nplacement: {islands: [{name: a, hourlyPrice: '2.49'}]}"},
		"islands have different names":                 {Spec: owned + "replicas: 1\nplacement: {islands: [{name: a}, {name: a}]}", Want: "Duplicate"},
		"a size is not negative":                       {Spec: owned + "replicas: -1", Want: "spec.replicas"},
		"pods may stay on cordoned nodes":              {Spec: owned + "replicas: 1\ndrain: {onCordon: Keep, nodeNotReadySeconds: 300}"},
		"a cordon does one of two things":              {Spec: owned + "replicas: 1\ndrain: {onCordon: Evict}", Want: "spec.drain.onCordon"},
		"the time of a node is not negative":           {Spec: owned + "replicas: 1\ndrain: {nodeNotReadySeconds: -1}", Want: "spec.drain.nodeNotReadySeconds"},
		"a size is bounded":                            {Spec: owned + "replicas: 2001", Want: "spec.replicas"},
	}}
}

// rolesOf is the list of roles of a pool.
func rolesOf(roles string) string { return "roles: [" + roles + "]\n" }

func poolsWithRoles() Group {
	const two = "{name: Prefill, replicas: 1}, {name: Decode, replicas: 3}"
	labelled := strings.Replace(owned, "labels: {", "labels: {kvasir.dev/role: prefill, ", 1)
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"two roles":      {Spec: owned + rolesOf(two)},
		"one role":       {Spec: owned + rolesOf("{name: Both, replicas: 1}")},
		"a role at zero": {Spec: owned + rolesOf("{name: Prefill, replicas: 0}, {name: Decode, replicas: 1}")},
		"what differs in a role": {Spec: owned + rolesOf("{name: Prefill, replicas: 1, engine: {extraArgs: [--max-num-batched-tokens=16384], "+
			"resources: {limits: {nvidia.com/gpu: 4}}}}, {name: Both, replicas: 1}")},
		"nothing differs in a role":        {Spec: owned + rolesOf("{name: Decode, replicas: 1, engine: {}}")},
		"roles are not in an empty list":   {Spec: owned + "replicas: 1\nroles: []", Want: "spec.roles"},
		"roles differ":                     {Spec: owned + rolesOf("{name: Decode, replicas: 1}, {name: Decode, replicas: 2}"), Want: "Duplicate"},
		"a role is one of three":           {Spec: owned + rolesOf("{name: Encode, replicas: 1}"), Want: "spec.roles[0].name"},
		"a role has a name":                {Spec: owned + rolesOf("{replicas: 1}"), Want: "spec.roles[0].name"},
		"some role decodes":                {Spec: owned + rolesOf("{name: Prefill, replicas: 1}"), Want: "roles need one that decodes"},
		"a role has a size":                {Spec: owned + rolesOf("{name: Decode}"), Want: "in each role"},
		"a role has one size":              {Spec: owned + rolesOf("{name: Decode, replicas: 1, autoscaling: {maxReplicas: 2}}"), Want: "in each role"},
		"a role's size is chosen":          {Spec: owned + rolesOf("{name: Prefill, replicas: 1}, {name: Decode, autoscaling: {maxReplicas: 2}}")},
		"a role's size is recommended":     {Spec: owned + rolesOf("{name: Decode, replicas: 1, autoscaling: {maxReplicas: 2, mode: Recommend}}")},
		"recommending is no role's size":   {Spec: owned + rolesOf("{name: Decode, autoscaling: {maxReplicas: 2, mode: Recommend}}"), Want: "in each role"},
		"a role's minimum":                 {Spec: owned + rolesOf("{name: Decode, autoscaling: {minReplicas: 3, maxReplicas: 2}}"), Want: "minReplicas must not exceed"},
		"a role's schedule":                {Spec: owned + rolesOf("{name: Decode, autoscaling: {maxReplicas: 2, schedules: [{name: a, start: 0 8 * * *, durationSeconds: 60, minReplicas: 2}]}}")},
		"a role's schedule above its most": {Spec: owned + rolesOf("{name: Decode, autoscaling: {maxReplicas: 2, schedules: [{name: a, start: 0 8 * * *, durationSeconds: 60, minReplicas: 3}]}}"), Want: "schedule's minReplicas"},
		"a role's schedule is cron":        {Spec: owned + rolesOf("{name: Decode, autoscaling: {maxReplicas: 2, schedules: [{name: a, start: 60 8 * * *, durationSeconds: 60, minReplicas: 2}]}}"), Want: "must be a cron expression"},
		"a size beside roles":              {Spec: owned + rolesOf(two) + "replicas: 4", Want: "each role has its own replicas or autoscaling"},
		"autoscaling beside roles":         {Spec: owned + rolesOf(two) + "autoscaling: {maxReplicas: 4}", Want: "each role has its own replicas or autoscaling"},
		"roles of selected pods":           {Spec: adopted + rolesOf(two), Want: "roles need template"},
		"roles on islands":                 {Spec: owned + rolesOf(two) + "placement: {islands: [{name: a}]}", Want: "roles cannot be combined with placement.islands"},
		"roles without islands":            {Spec: owned + rolesOf(two) + "placement: {islands: []}"},
		"roles of another engine":          {Spec: owned + rolesOf(two) + "engine: {type: SGLang}", Want: "roles need engine.type VLLM"},
		"a label beside roles":             {Spec: labelled + rolesOf(two), Want: "leave the label kvasir.dev/role out of the template"},
		"a label without roles":            {Spec: labelled + "replicas: 1"},
		"roles come":                       {Old: owned + "replicas: 4", Spec: owned + rolesOf(two)},
		"roles go":                         {Old: owned + rolesOf(two), Spec: owned + "replicas: 4"},
	}}
}

func poolsOfSelectedPods() Group {
	const scaleTarget = "adoption: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\n"
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"the smallest pool":                       {Spec: adopted},
		"neither template nor selector":           {Spec: model, Want: "exactly one of the fields in [template selector] must be set"},
		"both template and selector":              {Spec: owned + selector + "replicas: 1", Want: "exactly one"},
		"no label":                                {Spec: model + "selector: {matchLabels: {}}", Want: "spec.selector.matchLabels"},
		"an empty selector":                       {Spec: model + "selector: {}", Want: "spec.selector.matchLabels: Required value"},
		"replicas belongs to the owner":           {Spec: adopted + "replicas: 1", Want: "leave it out with selector"},
		"rollout belongs to the owner":            {Spec: adopted + "rollout: {}", Want: "rollout and warmUp need template"},
		"warm-up belongs to the owner":            {Spec: adopted + "warmUp: {}", Want: "rollout and warmUp need template"},
		"there is no rollout to pause":            {Spec: adopted + "paused: Rollout", Want: "nothing is rolled out to selected pods"},
		"scaling may be paused":                   {Spec: adopted + "paused: All"},
		"adoption without a target":               {Spec: adopted + "adoption: {}"},
		"autoscaling needs a target":              {Spec: adopted + "autoscaling: {maxReplicas: 3}", Want: "adoption.scaleTargetRef"},
		"autoscaling of a target":                 {Spec: adopted + "autoscaling: {maxReplicas: 3}\n" + scaleTarget},
		"recommending needs no target":            {Spec: adopted + "autoscaling: {maxReplicas: 3, mode: Recommend}"},
		"islands do not place selected pods":      {Spec: adopted + "placement: {islands: [{name: a, minReplicas: 1}]}", Want: "islands of selected pods"},
		"islands of selected pods have a latency": {Spec: adopted + "placement: {islandLabel: topology.kubernetes.io/region, islands: [{name: eu-west-1, latencyMilliseconds: 2}]}"},
		"an unknown field":                        {Spec: adopted + "foo: 1", Want: "unknown field"},
		"a name of 46 letters":                    {Name: strings.Repeat("a", 46), Spec: adopted, Want: "metadata.name must be"},
		"a name of 45 letters":                    {Name: strings.Repeat("a", 45), Spec: adopted},
		"a name that begins with a digit":         {Name: "1a", Spec: adopted, Want: "metadata.name must be"},
		"a name with a dot":                       {Name: "a.b", Spec: adopted, Want: "metadata.name must be"},
	}}
}

func managedPickers() Group {
	const islands = "placement: {islands: [{name: here}, {name: away}]}\n"
	socket := strings.Replace(owned, "metadata: {", "metadata: {annotations: {kvasir.dev/http-socket: /run/e.sock}, ", 1)
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"a role is no field any more":           {Spec: adopted + "role: Both", Want: "unknown field"},
		"engines connect to one picker":         {Spec: adopted + "engine: {events: {source: Listen}}\npicker: {replicas: 1}"},
		"engines connect to no second picker":   {Spec: adopted + "engine: {events: {source: Listen}}", Want: "Listen needs picker.replicas 1"},
		"engines connect to others' pickers":    {Spec: adopted + "engine: {events: {source: Listen}}\n" + external},
		"a directory of the picker":             {Spec: selector + "model: {name: m, tokenizer: {type: Directory, directory: {path: x}}}", Want: "managed pickers lack"},
		"a directory of another's picker":       {Spec: selector + "model: {name: m, tokenizer: {type: Directory, directory: {path: x}}}\n" + external},
		"a socket in a template":                {Spec: socket + "replicas: 1", Want: "kvasir.dev/http-socket is for pickers that read files"},
		"an island of the pickers":              {Spec: adopted + islands + "picker: {island: here}"},
		"an island that the pool does not name": {Spec: adopted + islands + "picker: {island: there}", Want: "picker.island must be one of"},
		"an island where pods name theirs":      {Spec: adopted + "picker: {island: here}"},
		"an island is a label":                  {Spec: adopted + "picker: {island: 'a b'}", Want: "spec.picker.island"},
		"traces":                                {Spec: adopted + "picker: {tracing: {endpoint: 'http://collector:4317'}}"},
		"traces over TLS": {Spec: adopted + "picker: {tracing: {endpoint: 'https://[2001:db8::1]:4318/v1/traces', protocol: HTTP, samplePercent: 0, " +
			"headersSecretRef: {name: k, key: headers}, caSecretRef: {name: k, key: ca.crt}}}"},
		"traces go to a URL":          {Spec: adopted + "picker: {tracing: {endpoint: 'collector:4317'}}", Want: "spec.picker.tracing.endpoint"},
		"traces carry no user":        {Spec: adopted + "picker: {tracing: {endpoint: 'http://u:p@collector:4317'}}", Want: "spec.picker.tracing.endpoint"},
		"traces go somewhere":         {Spec: adopted + "picker: {tracing: {samplePercent: 1}}", Want: "spec.picker.tracing.endpoint"},
		"traces of more than all":     {Spec: adopted + "picker: {tracing: {endpoint: 'http://c', samplePercent: 101}}", Want: "samplePercent"},
		"what others' pickers do":     {Spec: adopted + "picker: {mode: External, external: {serviceName: x}, profiling: Enabled}", Want: "external pickers have flags"},
		"metrics and profiles":        {Spec: adopted + "picker: {compatibilityMetrics: Enabled, profiling: Disabled}"},
		"records of use":              {Spec: adopted + "picker: {usageRecords: {file: {size: 1Gi}}}"},
		"records of use go somewhere": {Spec: adopted + "picker: {usageRecords: {}}", Want: "spec.picker.usageRecords"},
		"records of use in files":     {Spec: adopted + "picker: {usageRecords: {file: {}}}"},
		"files of use are not little": {Spec: adopted + "picker: {usageRecords: {file: {size: 1Mi}}}", Want: "size must be at least 4Mi"},
		"records of use as logs": {Spec: adopted + "picker: {usageRecords: {file: {}, otlp: {endpoint: 'https://collector:4318/v1/logs', protocol: HTTP, " +
			"headersSecretRef: {name: collector, key: headers}, caSecretRef: {name: collector, key: ca.crt}}}}"},
		"logs by the usual way":        {Spec: adopted + "picker: {usageRecords: {otlp: {endpoint: 'http://collector:4317'}}}"},
		"logs go to a URL":             {Spec: adopted + "picker: {usageRecords: {otlp: {endpoint: 'collector:4317'}}}", Want: "spec.picker.usageRecords.otlp.endpoint"},
		"logs go somewhere":            {Spec: adopted + "picker: {usageRecords: {otlp: {protocol: HTTP}}}", Want: "spec.picker.usageRecords.otlp.endpoint"},
		"logs by some way":             {Spec: adopted + "picker: {usageRecords: {otlp: {endpoint: 'http://c', protocol: Carrier}}}", Want: "spec.picker.usageRecords.otlp.protocol"},
		"use of others' pickers":       {Spec: adopted + "picker: {mode: External, external: {serviceName: x}, usageRecords: {file: {}}}", Want: "external pickers have flags"},
		"TLS for clients":              {Spec: adopted + "picker: {proxyTLS: {secretRef: {name: s}}}"},
		"certificates of clients":      {Spec: adopted + "picker: {proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: ca.crt}, clientCertificates: Optional}}"},
		"TLS has a certificate":        {Spec: adopted + "picker: {proxyTLS: {clientCASecretRef: {name: c, key: ca.crt}}}", Want: "spec.picker.proxyTLS.secretRef"},
		"clients are checked by a CA":  {Spec: adopted + "picker: {proxyTLS: {secretRef: {name: s}, clientCertificates: Required}}", Want: "clientCertificates needs clientCASecretRef"},
		"certificates are of two uses": {Spec: adopted + "picker: {proxyTLS: {secretRef: {name: s}, clientCASecretRef: {name: c, key: ca.crt}, clientCertificates: None}}", Want: "clientCertificates"},
		"TLS of no proxy":              {Spec: adopted + "picker: {proxy: Disabled, proxyTLS: {secretRef: {name: s}}}", Want: "proxyTLS needs the proxy"},
		"TLS of others' pickers":       {Spec: adopted + "picker: {mode: External, external: {serviceName: x}, proxyTLS: {secretRef: {name: s}}}", Want: "external pickers have flags"},
		"a decision log":               {Spec: adopted + "picker: {decisionLog: {size: 1Gi}}"},
		"an empty decision log":        {Spec: adopted + "picker: {decisionLog: {}}"},
		"a decision log is not little": {Spec: adopted + "picker: {decisionLog: {size: 1Mi}}", Want: "size must be at least 4Mi"},
	}}
}

func models() Group {
	tokenizer := func(fields string) string {
		return selector + "model: {name: m, tokenizer: {" + fields + "}}"
	}
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"an alias is not the name":                {Spec: selector + "model: {name: m, aliases: [m]}", Want: "aliases must not repeat"},
		"aliases differ":                          {Spec: selector + "model: {name: m, aliases: [a, a]}", Want: "Duplicate"},
		"an adapter is not an alias":              {Spec: selector + "model: {name: m, aliases: [a], adapters: {names: [a]}}", Want: "an adapter cannot"},
		"an adapter is not the model":             {Spec: selector + "model: {name: m, adapters: {names: [m]}}", Want: "an adapter cannot"},
		"a name has no blanks":                    {Spec: selector + "model: {name: a b}", Want: "spec.model.name"},
		"a volume is needed":                      {Spec: tokenizer("type: Volume"), Want: "volume is required"},
		"a volume is for its type":                {Spec: tokenizer("volume: {persistentVolumeClaim: {name: x}}"), Want: "volume is required when"},
		"a volume":                                {Spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, path: a/b}")},
		"a volume of an image":                    {Spec: tokenizer("type: Volume, volume: {image: {reference: registry.example.com/models/m:1}}")},
		"a volume has one source":                 {Spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, configMap: {name: z}}"), Want: "exactly one"},
		"a volume's path stays inside":            {Spec: tokenizer("type: Volume, volume: {persistentVolumeClaim: {name: x}, path: ../b}"), Want: "relative path"},
		"a reporter needs a path":                 {Spec: tokenizer("type: Reporter"), Want: "reporter is required"},
		"a reporter":                              {Spec: tokenizer("type: Reporter, reporter: {path: /models/x}")},
		"a directory":                             {Spec: tokenizer("type: Directory, directory: {path: x}") + "\n" + external},
		"a directory stays inside":                {Spec: tokenizer("type: Directory, directory: {path: ../x}"), Want: "must not contain '..'"},
		"a chat template":                         {Spec: tokenizer("chatTemplate: chat.jinja")},
		"a reporter's path has no way up":         {Spec: tokenizer("type: Reporter, reporter: {path: /models/../x}"), Want: "must not contain '..'"},
		"a chat template stays inside":            {Spec: tokenizer("chatTemplate: /etc/passwd"), Want: "relative path"},
		"a hub":                                   {Spec: tokenizer("type: Hub")},
		"a hub, with all":                         {Spec: tokenizer("type: Hub, chatTemplate: a/b.jinja, hub: {repository: Qwen/Qwen3-32B, revision: refs/pr/1, tokenSecretRef: {name: hf, key: token}}")},
		"a hub is for its type":                   {Spec: tokenizer("type: Engine, hub: {repository: a/b}"), Want: "hub is only for the types Auto and Hub"},
		"files are looked for":                    {Spec: tokenizer("type: Auto")},
		"by default, too, in a repository":        {Spec: tokenizer("chatTemplate: a.jinja, hub: {repository: a/b, tokenSecretRef: {name: hf, key: token}}")},
		"files are looked for, for any name":      {Spec: selector + "model: {name: /models/q, tokenizer: {type: Auto, hub: {revision: x}}}"},
		"a volume is not for type Auto":           {Spec: tokenizer("type: Auto, volume: {persistentVolumeClaim: {name: x}}"), Want: "volume is required when"},
		"a hub is not a URL":                      {Spec: tokenizer("type: Hub, hub: {repository: 'http://h/x'}"), Want: "no URL"},
		"a repository is not below a path":        {Spec: tokenizer("type: Hub, hub: {repository: a/b/c}"), Want: "NAME or ORGANIZATION/NAME"},
		"a repository stays inside":               {Spec: tokenizer("type: Hub, hub: {repository: a/..}"), Want: "without '..'"},
		"a repository has no way up":              {Spec: tokenizer("type: Hub, hub: {repository: a..b}"), Want: "without '..'"},
		"a repository has no double hyphen":       {Spec: tokenizer("type: Hub, hub: {repository: a--b/c}"), Want: "without '..' and '--'"},
		"a repository has no query":               {Spec: tokenizer("type: Hub, hub: {repository: 'a/b?x'}"), Want: "no URL"},
		"a revision stays inside":                 {Spec: tokenizer("type: Hub, hub: {revision: ../x}"), Want: "without '..'"},
		"a revision has no hidden part":           {Spec: tokenizer("type: Hub, hub: {revision: a/./b}"), Want: "without '..'"},
		"the model's name is the repository":      {Spec: selector + "model: {name: Qwen/Qwen3-32B, tokenizer: {type: Hub}}"},
		"a name that is no repository":            {Spec: selector + "model: {name: /models/q, tokenizer: {type: Hub}}", Want: "set tokenizer.hub.repository"},
		"a name that is none, and a repository":   {Spec: selector + "model: {name: /models/q, tokenizer: {type: Hub, hub: {repository: a/b}}}"},
		"a name with a way up":                    {Spec: selector + "model: {name: a/.., tokenizer: {type: Hub, hub: {revision: x}}}", Want: "set tokenizer.hub.repository"},
		"the source is one of seven":              {Spec: tokenizer("type: Disk"), Want: "Unsupported value"},
		"no tokenizer: approximate matching":      {Spec: tokenizer("type: None")},
		"a directory is not for type None either": {Spec: tokenizer("type: None, directory: {path: x}"), Want: "directory is required when"},
	}}
}

func engines() Group {
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"ports of ranks overlap":             {Spec: adopted + "engine: {ports: {events: 5557, replay: 5558}, dataParallel: {ranks: 8}}", Want: "overlap"},
		"events overlap with the default":    {Spec: adopted + "engine: {ports: {events: 5650}, dataParallel: {ranks: 8}}", Want: "overlap"},
		"replays overlap with the default":   {Spec: adopted + "engine: {ports: {replay: 5560}, dataParallel: {ranks: 8}}", Want: "overlap"},
		"one port of events is enough":       {Spec: adopted + "engine: {ports: {events: 7000}, dataParallel: {ranks: 8}}"},
		"ports of one rank do not":           {Spec: adopted + "engine: {ports: {events: 5557, replay: 5558}}"},
		"HTTP is no port of events":          {Spec: adopted + "engine: {ports: {http: 5557}}", Want: "ports.http overlaps"},
		"HTTP is no port of a rank's replay": {Spec: adopted + "engine: {ports: {http: 5660}, dataParallel: {ranks: 4}}", Want: "ports.http overlaps"},
		"HTTP is beside the replays":         {Spec: adopted + "engine: {ports: {http: 5661}, dataParallel: {ranks: 4}}"},
		"HTTP of each rank is apart":         {Spec: adopted + "engine: {ports: {http: 5550}, dataParallel: {ranks: 8, addressing: PortPerRank}}", Want: "ports.http overlaps"},
		"the drain port is no other":         {Spec: adopted + "engine: {ports: {http: 9445}}", Want: "drainPort is also a port"},
		"the drain port is no rank's":        {Spec: adopted + "engine: {dataParallel: {ranks: 8}, events: {reporter: {drainPort: 5564}}}", Want: "drainPort is also a port"},
		"the last rank has a port":           {Spec: adopted + "engine: {ports: {events: 65530}, dataParallel: {ranks: 8}}", Want: "above 65535"},
		"the last rank has the last port":    {Spec: adopted + "engine: {ports: {events: 65528}, dataParallel: {ranks: 8}}"},
		"replay may come first":              {Spec: adopted + "engine: {ports: {events: 5565, replay: 5557}, dataParallel: {ranks: 8}}"},
		"sixteen ranks are no ports":         {Spec: adopted + "engine: {dataParallel: {ranks: 16, addressing: PortPerRank}}", Want: "at most 8 ranks"},
		"sixteen ranks in a header":          {Spec: adopted + "engine: {dataParallel: {ranks: 16}}"},
		"a port is a port":                   {Spec: adopted + "engine: {ports: {http: 65536}}", Want: "spec.engine.ports.http"},
		"a batch may be sent at once":        {Spec: adopted + "engine: {events: {reporter: {batchMilliseconds: 0}}}"},
		"media have different names":         {Spec: adopted + "engine: {media: [{medium: a, tier: Disk}, {medium: a, tier: CPU}]}", Want: "Duplicate"},
		"a medium needs a tier":              {Spec: adopted + "engine: {media: [{medium: a}]}", Want: "tier"},
		"a key has a multiple of 8 tokens":   {Spec: adopted + "keySpace: {blockTokens: 20}", Want: "spec.keySpace.blockTokens"},
		"the name of the engine is one of 2": {Spec: adopted + "engine: {type: TGI}", Want: "Unsupported value"},
		"TLS by a name":                      {Spec: adopted + "engine: {tls: {serverName: e.llm}}"},
		"TLS by a CA of one's own":           {Spec: adopted + "engine: {tls: {serverName: e.llm, caSecretRef: {name: k, key: ca.crt}}}"},
		"TLS that is not checked":            {Spec: adopted + "engine: {tls: {verification: None}}"},
		"TLS by no name":                     {Spec: adopted + "engine: {tls: {verification: Full}}", Want: "serverName is required"},
		"TLS that says nothing":              {Spec: adopted + "engine: {tls: {}}", Want: "serverName is required"},
		"a name that is not checked":         {Spec: adopted + "engine: {tls: {verification: None, serverName: e.llm}}", Want: "and only then"},
		"a CA that is not asked":             {Spec: adopted + "engine: {tls: {verification: None, caSecretRef: {name: k, key: ca.crt}}}", Want: "caSecretRef is for verification Full"},
		"a name is one of DNS":               {Spec: adopted + "engine: {tls: {serverName: 'e llm'}}", Want: "spec.engine.tls.serverName"},
		"verification is one of 2":           {Spec: adopted + "engine: {tls: {verification: Some, serverName: e.llm}}", Want: "Unsupported value"},
		"HTTP/2 without TLS":                 {Spec: adopted + "engine: {protocol: H2C}"},
		"HTTP/2 without TLS, with TLS":       {Spec: adopted + "engine: {protocol: H2C, tls: {verification: None}}", Want: "H2C is HTTP/2 without TLS"},
		"clients' keys are passed through":   {Spec: adopted + "engine: {apiKey: {name: k, key: token}, clientAuth: PassThrough}"},
		"clients get the pool's key":         {Spec: adopted + "engine: {apiKey: {name: k, key: token}, clientAuth: PoolKey}"},
		"clients' keys are one of 2 ways":    {Spec: adopted + "engine: {clientAuth: None}", Want: "Unsupported value"},
		"an empty engine has all defaults":   {Spec: adopted + "engine: {}"},
	}}
}

func pickersAndGateways() Group {
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"an external picker needs a name":      {Spec: adopted + "picker: {mode: External}", Want: "external is required"},
		"an external picker":                   {Spec: adopted + "picker: {mode: External, external: {serviceName: x}}"},
		"a managed picker has no name":         {Spec: adopted + "picker: {external: {serviceName: x}}", Want: "external is required when"},
		"TLS of a Secret needs one":            {Spec: adopted + "picker: {tls: {type: Secret}}", Want: "secretRef is required"},
		"TLS of a Secret":                      {Spec: adopted + "picker: {tls: {type: Secret, secretRef: {name: x}}}"},
		"TLS of cert-manager":                  {Spec: adopted + "picker: {tls: {type: CertManager, issuerRef: {name: x}}}"},
		"TLS of cert-manager needs an issuer":  {Spec: adopted + "picker: {tls: {type: CertManager}}", Want: "issuerRef is required"},
		"an index of 1 MiB is too small":       {Spec: adopted + "picker: {indexMemory: 1Mi}", Want: "indexMemory must be"},
		"an index is not negative":             {Spec: adopted + "picker: {indexMemory: -1Gi}", Want: "indexMemory must be"},
		"an index as a number of bytes":        {Spec: adopted + "picker: {indexMemory: 1073741824}"},
		"bodies of no bytes":                   {Spec: adopted + "picker: {maxRequestBody: 0}", Want: "maxRequestBody must be"},
		"a route needs mode Auto":              {Spec: adopted + "gateway: {mode: Disabled, parentRefs: [{name: g}]}", Want: "parentRefs need mode Auto"},
		"host names need a route":              {Spec: adopted + "gateway: {hostnames: [a.b]}", Want: "hostnames need parentRefs"},
		"a route with a host name":             {Spec: adopted + "gateway: {parentRefs: [{name: g}], hostnames: [a.b]}"},
		"a time limit of a route":              {Spec: adopted + "gateway: {requestTimeout: Limited, requestTimeoutSeconds: 600}"},
		"a limit names its seconds":            {Spec: adopted + "gateway: {requestTimeout: Limited}", Want: "requestTimeoutSeconds is required"},
		"seconds without a limit":              {Spec: adopted + "gateway: {requestTimeoutSeconds: 600}", Want: "requestTimeoutSeconds is required"},
		"seconds with the gateway's own limit": {Spec: adopted + "gateway: {requestTimeout: GatewayDefault, requestTimeoutSeconds: 600}", Want: "and only then"},
		"a limit of no time":                   {Spec: adopted + "gateway: {requestTimeout: Limited, requestTimeoutSeconds: 0}", Want: "requestTimeoutSeconds"},
		"a host name is one":                   {Spec: adopted + "gateway: {parentRefs: [{name: g}], hostnames: [a_b]}", Want: "spec.gateway.hostnames[0]"},
	}}
}

func enginesNetworks() Group {
	from := func(peers string) string { return adopted + "engine: {networkPolicy: {from: [" + peers + "]}}" }
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"the engines are closed":                     {Spec: adopted + "engine: {networkPolicy: {mode: Closed}}"},
		"the engines stay open":                      {Spec: owned + "replicas: 1\nengine: {networkPolicy: {mode: Open}}"},
		"the user makes the engines' policy":         {Spec: owned + "replicas: 1\nengine: {networkPolicy: {mode: None}}"},
		"there are three modes":                      {Spec: adopted + "engine: {networkPolicy: {mode: Shut}}", Want: "spec.engine.networkPolicy.mode"},
		"a network policy says something":            {Spec: adopted + "engine: {networkPolicy: {}}", Want: "spec.engine.networkPolicy"},
		"peers are for closed engines":               {Spec: adopted + "engine: {networkPolicy: {mode: Open, from: [{podSelector: {}}]}}", Want: "from needs mode Closed"},
		"external pickers are named":                 {Spec: adopted + external + "engine: {networkPolicy: {mode: Closed}}", Want: "from with the pods of the pickers"},
		"external pickers are named in a list":       {Spec: adopted + external + "engine: {networkPolicy: {mode: Closed, from: []}}", Want: "from with the pods of the pickers"},
		"external pickers of a name":                 {Spec: adopted + external + "engine: {networkPolicy: {mode: Closed, from: [{podSelector: {matchLabels: {app: epp}}}]}}"},
		"external pickers and open engines":          {Spec: adopted + external + "engine: {networkPolicy: {mode: Open}}"},
		"pods of a namespace are peers":              {Spec: from("{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: prometheus}}}")},
		"ranges of addresses are peers":              {Spec: from("{ipBlock: {cidr: 130.211.0.0/22}}, {ipBlock: {cidr: '2001:db8::/32', except: ['2001:db8:1::/48']}}")},
		"a peer that is nothing would be all":        {Spec: from("{}"), Want: "spec.engine.networkPolicy.from[0]"},
		"a peer is pods or addresses":                {Spec: from("{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}"), Want: "a peer is either ipBlock"},
		"a range of addresses has a number of bits":  {Spec: from("{ipBlock: {cidr: 10.0.0.1}}"), Want: "from[0].ipBlock.cidr"},
		"a range of addresses has at most 32 bits":   {Spec: from("{ipBlock: {cidr: 10.0.0.0/33}}"), Want: "from[0].ipBlock.cidr"},
		"a range of addresses is no name":            {Spec: from("{ipBlock: {cidr: prometheus}}"), Want: "from[0].ipBlock.cidr"},
		"what is left out is a range":                {Spec: from("{ipBlock: {cidr: 10.0.0.0/8, except: [all]}}"), Want: "from[0].ipBlock.except[0]"},
		"a peer has the fields of a NetworkPolicy's": {Spec: from("{pods: {}}"), Want: "unknown field"},
		"16 peers": {Spec: from(strings.Repeat("{podSelector: {}}, ", 16))},
		"17 peers": {Spec: from(strings.Repeat("{podSelector: {}}, ", 17)), Want: "spec.engine.networkPolicy.from"},
	}}
}

func changesOfPools() Group {
	return Group{Kind: "InferencePool", Cases: map[string]Case{
		"the model's name stays":             {Old: adopted, Spec: selector + "model: {name: other}", Want: "model.name is immutable"},
		"the tokens of a key stay":           {Old: adopted, Spec: adopted + "keySpace: {blockTokens: 32}", Want: "blockTokens is immutable"},
		"the tokens of a key cannot be left": {Old: adopted + "keySpace: {blockTokens: 32}", Spec: adopted, Want: "blockTokens is immutable"},
		"the root's Secret may change":       {Old: adopted, Spec: adopted + "keySpace: {secretRef: {name: x}}"},
		"the engine stays":                   {Old: adopted, Spec: adopted + "engine: {type: SGLang}", Want: "engine.type is immutable"},
		"the engine cannot be left out":      {Old: adopted + "engine: {type: SGLang}", Spec: adopted, Want: "engine.type is immutable"},
		"the owner stays":                    {Old: owned + "replicas: 1", Spec: adopted, Want: "cannot change between"},
		"the owner stays the other way":      {Old: adopted, Spec: owned + "replicas: 1", Want: "cannot change between"},
		"the labels may change":              {Old: adopted, Spec: model + "selector: {matchLabels: {x: other}}"},
		"the writer of the size may change":  {Old: owned + "replicas: 1", Spec: owned + "autoscaling: {maxReplicas: 3}"},
		"aliases may change":                 {Old: adopted, Spec: selector + "model: {name: m, aliases: [a]}"},
	}}
}

// schedule is autoscaling with one schedule that starts then.
func schedule(start string) string {
	return "autoscaling: {maxReplicas: 3, schedules: [{name: a, start: " + start + ", durationSeconds: 3600, minReplicas: 1}]}"
}

// islandsOf is autoscaling from 2 to 3 on these islands.
func islandsOf(islands string) string {
	return "autoscaling: {minReplicas: 2, maxReplicas: 3}\nplacement: {islands: [" + islands + "]}"
}
