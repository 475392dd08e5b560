package settings

import (
	"strconv"
	"testing"

	"sigs.k8s.io/yaml"
)

// foreign are fields whose types are not ours, by their names, with a value of each.
var foreign = map[string]any{
	"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"added": "x"}}, "spec": map[string]any{
		"containers": []any{map[string]any{"name": "vllm", "image": "other", "args": []any{"--model", "m"}},
			map[string]any{"name": "second", "image": "i", "args": []any{"x"}}}}},
	"resources":         map[string]any{"limits": map[string]any{"memory": "7Gi"}},
	"tolerations":       []any{map[string]any{"key": "added", "operator": "Exists"}},
	"affinity":          map[string]any{"nodeAffinity": map[string]any{}},
	"parentRefs":        []any{map[string]any{"name": "other"}},
	"image":             map[string]any{"reference": "registry.example.com/other:1"},
	"podSelector":       map[string]any{"matchLabels": map[string]any{"added": "x"}},
	"namespaceSelector": map[string]any{"matchLabels": map[string]any{"added": "x"}},
	"imagePullSecrets":  []any{map[string]any{"name": "other"}},
}

const ownedPool = `
model: {name: m, aliases: [m2], adapters: {names: [a]}, tokenizer: {type: Volume, chatTemplate: t.jinja, volume: {persistentVolumeClaim: {name: c}, path: a/b}}}
engine:
  type: VLLM
  containerName: vllm
  tls: {verification: Full, serverName: e.llm, caSecretRef: {name: key, key: ca.crt}}
  ports: {http: 8000, events: 5557, replay: 5657}
  dataParallel: {ranks: 2, addressing: Header}
  events: {source: Auto, reporter: {drainPort: 9445, batchMilliseconds: 5}}
  apiKey: {name: key, key: token}
  clientAuth: PassThrough
  media: [{medium: nvme, tier: Disk}]
  networkPolicy: {mode: Closed, from: [{podSelector: {}, namespaceSelector: {}}]}
keySpace: {secretRef: {name: root}}
template:
  metadata: {labels: {a: b}}
  spec:
    containers:
    - {name: vllm, image: "vllm/vllm-openai:v0.30.0", args: [--model, m]}
    - {name: second, image: i, args: [x]}
replicas: 2
rollout: {type: RollingUpdate, maxSurge: 1, maxUnavailable: 1, progressDeadlineSeconds: 1800, revisionHistoryLimit: 3}
warmUp: {maxSeconds: 60, maxTokens: 10000}
placement:
  islandLabel: site
  pricesFrom: {name: prices}
  islands:
  - {name: here, nodeSelector: {a: b}, hourlyPrice: "2", latencyMilliseconds: 1, minReplicas: 0, maxReplicas: 4,
     provisionTimeoutSeconds: 900, provisioningClassName: c, engine: {extraArgs: [--x]}}
  - {name: away}
drain: {deadlineSeconds: 600}
picker:
  replicas: 2
  indexMemory: 1Gi
  tls: {type: Secret, secretRef: {name: key}}
  pod: {labels: {a: b}, annotations: {a: b}, nodeSelector: {a: b}}
  island: here
  tracing: {endpoint: "http://c:4317", protocol: GRPC, samplePercent: 100, headersSecretRef: {name: key, key: token}, caSecretRef: {name: key, key: token}}
  proxyTLS: {secretRef: {name: t}, clientCASecretRef: {name: key, key: token}, clientCertificates: Optional}
  decisionLog: {size: 256Mi}
  usageRecords: {file: {size: 256Mi}, otlp: {endpoint: "http://c:4317", protocol: GRPC, headersSecretRef: {name: key, key: token}, caSecretRef: {name: key, key: token}}}
gateway: {mode: Auto, parentRefs: [{name: g}], hostnames: [a.b], requestTimeout: Limited, requestTimeoutSeconds: 600, trafficPolicies: Managed}
`

const adoptedPool = `
model: {name: m, tokenizer: {type: Directory, directory: {path: a}}}
engine: {protocol: HTTP, networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}, events: {source: Reporter}}
selector: {matchLabels: {app: m}}
adoption: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}
autoscaling:
  mode: Active
  minReplicas: 2
  maxReplicas: 4
  up: {waitingPerReplica: 4, timeToFirstTokenP99Milliseconds: 1000, hitRatioFloorPercent: 10, stabilizationSeconds: 1, maxStep: 2}
  down: {waitingPerReplica: 1, utilizationFloorPercent: 20, stabilizationSeconds: 10, maxStep: 1, zeroAfterSeconds: 600}
  schedules: [{name: day, start: "0 6 * * *", timeZone: Europe/Berlin, durationSeconds: 3600, minReplicas: 3}]
picker: {mode: External, external: {serviceName: s, port: 9002}}
`

const certManagerPool = `
model: {name: m, tokenizer: {type: Reporter, reporter: {path: /models/m}}}
template: {spec: {containers: [{name: vllm, image: i, args: [x], volumeMounts: [{name: v, mountPath: /models}, {name: w, mountPath: /other}]}]}}
replicas: 1
picker: {tls: {type: CertManager, issuerRef: {kind: Issuer, name: i}}}
placement: {islands: [{name: here}]}
gateway: {parentRefs: [{name: g}]}
`

const configMapPool = `
model: {name: m, tokenizer: {type: Volume, volume: {configMap: {name: files}}}}
selector: {matchLabels: {app: m}}
engine: {dataParallel: {ranks: 2}, events: {source: Listen}, protocol: HTTP}
picker: {replicas: 1}
`

const imagePool = `
model: {name: m, tokenizer: {type: Volume, volume: {image: {reference: registry.example.com/m:1}}}}
selector: {matchLabels: {app: m}}
engine: {networkPolicy: {mode: Closed}}
picker: {tls: {type: SelfSigned}}
`

const hubPool = `
model: {name: m, tokenizer: {type: Hub, hub: {repository: a/b, revision: main, tokenSecretRef: {name: key, key: token}}}}
selector: {matchLabels: {app: m}}
`

const foundPool = `
model: {name: m, tokenizer: {type: Auto, chatTemplate: t.jinja, hub: {repository: a/b, revision: main, tokenSecretRef: {name: key, key: token}}}}
selector: {matchLabels: {app: m}}
`

const plainPool = `
model: {name: m, tokenizer: {type: None}}
gateway: {mode: Auto}
selector: {matchLabels: {app: m}}
`

const plainPolicy = `
targetRefs: [{name: p}]
strategy: {type: RoundRobin}
disaggregation: {type: Never}
shadow: [{name: s, strategy: {type: RoundRobin}}]
admission:
  priorities: [{name: high, level: 10}]
  tenants: {identification: APIKey, secretRefs: [{name: tenants}], classes: [{name: one}, {name: default}]}
`

const fullPolicy = `
targetRefs: [{name: p}]
strategy: {type: MarginalCost, marginalCost: {decodeHarmPercent: 100}}
shadow: [{name: s, samplePercent: 10, strategy: {type: MarginalCost, marginalCost: {decodeHarmPercent: 100}}}]
tiers: [{tier: CPU, creditPercent: 50, reloadTokensPerSecond: 1000}]
session: {keys: [{type: Header, name: x}], idleSeconds: 60}
guards: {maxKVUsagePercent: 90, islandCrossing: Never, circuit: {consecutiveFailures: 5, openSeconds: 10}}
tokens: {budgetMilliseconds: 5, engine: Never, engineBudgetMilliseconds: 100}
speculation: {mode: RequestLifetime, maxSeconds: 300}
admission:
  mode: Queue
  queue: {maxRequests: 10, maxBytes: 1Mi, timeToLiveSeconds: 60}
  priorities: [{name: high, level: 10, timeToLiveSeconds: 5}, {name: low, level: -10}]
  defaultPriority: high
  tenants:
    identification: Header
    headerName: X-Tenant
    secretRefs: [{name: tenants}]
    classes: [{name: default, weight: 1, maxPriority: high}, {name: other}]
    defaultClass: default
hooks:
  headers: [x-tier]
  bodyFields: [user]
  steps:
  - {name: first, when: "true", model: m, priority: high, sessionExpression: "'a'", costLimit: 5, failureMode: FailOpen}
fallback: {attempts: 3}
decisions: {logPercent: 0, answerHeaders: Never}
streams: {commentSeconds: 5}
responseCache: {type: Exact, requests: OnRequest, maxBytes: 8Mi, timeToLiveSeconds: 60}
disaggregation: {type: Threshold, uncachedTokens: 1000, sidecar: LLMD, connector: Mooncake, connectorPort: 9000}
`

// strategies with members of their own, for the policy and for its shadow.
var strategies = []string{
	"type: StickyLeastLoaded, stickyLeastLoaded: {prefixTokens: 64}",
	"type: LongestPrefix, longestPrefix: {variant: Guarded, minMatchPercent: 25, maxLoadPercent: 150}",
	"type: LMetric, lMetric: {variant: PlusOne}",
	"type: Unified, unified: {minHitPercent: 50, maxLoadPercent: 200}",
	"type: Rendezvous, rendezvous: {key: Prefix, prefixTokens: 1024}",
	"type: ApproximatePrefix, approximatePrefix: {chunkBytes: 64, maxChunks: 256, chunksPerEndpoint: 31250, prefixWeight: 3, queueWeight: 2, kvWeight: 2}",
}

// The specs of fleets that together set every field.
const (
	fullFleet = `
replicas: 2
indexMemory: 1Gi
tls: {type: Secret, secretRef: {name: key}}
pod: {labels: {a: b}, annotations: {a: b}, nodeSelector: {a: b}}
island: here
tracing: {endpoint: "http://c:4317", protocol: GRPC, samplePercent: 100, headersSecretRef: {name: key, key: token}, caSecretRef: {name: key, key: token}}
decisionLog: {size: 256Mi}
usageRecords: {file: {size: 256Mi}, otlp: {endpoint: "http://c:4317", protocol: GRPC, headersSecretRef: {name: key, key: token}, caSecretRef: {name: key, key: token}}}
proxyTLS: {secretRef: {name: t}, clientCASecretRef: {name: key, key: token}, clientCertificates: Optional}
gateway: {mode: Auto, failureMode: FailClose, parentRefs: [{name: g}], hostnames: [h.example], requestTimeout: Limited, requestTimeoutSeconds: 60, trafficPolicies: Managed}
`
	certManagerFleet = `
tls: {type: CertManager, issuerRef: {kind: Issuer, name: i}}
gateway: {parentRefs: [{name: g}], requestTimeout: Unlimited}
`
	plainFleet = `
tls: {type: SelfSigned}
gateway: {mode: Auto}
`
	fleetPool = `
model: {name: m}
selector: {matchLabels: {app: m}}
picker: {mode: Fleet, fleetRef: {name: f}}
`
)

// bases are pools and policies that together set every field.
func bases(t *testing.T) []base {
	t.Helper()
	read := func(text string) map[string]any {
		spec := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	list := []base{
		{pool: read(ownedPool), policy: read(fullPolicy), fleet: read(fullFleet)},
		{pool: read(adoptedPool), policy: read("targetRefs: [{name: p}]")},
		{pool: read(plainPool), policy: read(plainPolicy), fleet: read(plainFleet)},
		{pool: read(fleetPool), policy: read("targetRefs: [{name: p}]"), fleet: read(certManagerFleet)},
	}
	for _, pool := range []string{certManagerPool, configMapPool, hubPool, foundPool, rolesPool} {
		list = append(list, base{pool: read(pool), policy: read("targetRefs: [{name: p}]")})
	}
	for _, does := range []string{"refuse: {status: 403, message: denied}", "call: {url: 'http://opa:8181/v1', timeoutMilliseconds: 50}"} {
		list = append(list, base{pool: read(imagePool), policy: read(
			"targetRefs: [{name: p}]\nhooks: {steps: [{name: a, when: 'false', " + does + "}]}")})
	}
	list = append(list, base{pool: read(imagePool), policy: read(
		"targetRefs: [{name: p}]\nadmission: {tenants: {identification: JWT, classes: [{name: default}], jwt: {" +
			"issuer: 'https://idp.example', audiences: [a], keysURL: 'https://idp.example/keys', tenantClaim: sub, caCertificates: " +
			strconv.Quote(certificate()) + "}}}")})
	list = append(list, base{pool: read(imagePool), policy: read("targetRefs: [{name: p}]\nresponseCache: {type: Semantic, semantic: {minSimilarityPercent: 90, " +
		"embeddings: {url: 'http://e:8000/v1/embeddings', model: m, keySecretRef: {name: key, key: token}, timeoutMilliseconds: 50}}, " +
		"store: {redis: {url: 'rediss://r:6379', username: u, passwordSecretRef: {name: key, key: token}, caSecretRef: {name: key, key: ca.crt}, " +
		"keyPrefix: p, timeoutMilliseconds: 20}}}")})
	for _, s := range strategies {
		list = append(list, base{pool: read(imagePool), policy: read("targetRefs: [{name: p}]\nstrategy: {" + s + "}\nshadow: [{name: s, strategy: {" + s + "}}]")})
	}
	return list
}

// rolesPool has two roles. The first one's pods are compared.
const rolesPool = `
model: {name: m}
template: {spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.24.0", args: [--model, m]}]}}
roles:
- name: Decode
  autoscaling: {minReplicas: 1, maxReplicas: 3, schedules: [{name: a, start: 0 8 * * *, durationSeconds: 60, minReplicas: 2}]}
  engine: {extraArgs: [--max-num-seqs=64], resources: {limits: {cpu: 1}}}
- {name: Both, replicas: 1}
`

// actedOn are fields whose effect is neither an object nor a configuration, but what a controller does: with the package that reads
// each, whose own tests show what it does. A field that selects between others, and cannot change without them, is listed with
// the package that acts on the selection.
var actedOn = map[string]string{
	"InferencePool.adoption.scaleTargetRef.apiVersion":                      controller,
	"InferencePool.adoption.scaleTargetRef.kind":                            controller,
	"InferencePool.adoption.scaleTargetRef.name":                            controller,
	"InferencePool.autoscaling.down.maxStep":                                scaling,
	"InferencePool.autoscaling.down.stabilizationSeconds":                   scaling,
	"InferencePool.autoscaling.down.utilizationFloorPercent":                scaling,
	"InferencePool.autoscaling.down.waitingPerReplica":                      scaling,
	"InferencePool.autoscaling.down.zeroAfterSeconds":                       scaling,
	"InferencePool.autoscaling.maxReplicas":                                 scaling,
	"InferencePool.autoscaling.mode":                                        controller,
	"InferencePool.autoscaling.schedules.[].durationSeconds":                scaling,
	"InferencePool.autoscaling.schedules.[].minReplicas":                    scaling,
	"InferencePool.autoscaling.schedules.[].start":                          scaling,
	"InferencePool.autoscaling.schedules.[].timeZone":                       scaling,
	"InferencePool.autoscaling.up.hitRatioFloorPercent":                     scaling,
	"InferencePool.autoscaling.up.maxStep":                                  scaling,
	"InferencePool.autoscaling.up.stabilizationSeconds":                     scaling,
	"InferencePool.autoscaling.up.timeToFirstTokenP99Milliseconds":          scaling,
	"InferencePool.autoscaling.up.waitingPerReplica":                        scaling,
	"InferencePool.autoscaling.schedules.[].name":                           scaling,
	"InferencePool.drain.nodeNotReadySeconds":                               controller,
	"InferencePool.drain.onCordon":                                          controller,
	"InferencePool.engine.tls.verification":                                 "internal/config",
	"InferencePool.paused":                                                  controller,
	"InferencePool.picker.fleetRef.name":                                    controller,
	"InferencePool.placement.islands.[].hourlyPrice":                        controller,
	"InferencePool.placement.islands.[].maxReplicas":                        controller,
	"InferencePool.placement.islands.[].minReplicas":                        controller,
	"InferencePool.placement.islands.[].provisionTimeoutSeconds":            controller,
	"InferencePool.replicas":                                                controller,
	"InferencePool.roles.[].autoscaling.down.maxStep":                       scaling,
	"InferencePool.roles.[].autoscaling.down.stabilizationSeconds":          scaling,
	"InferencePool.roles.[].autoscaling.down.utilizationFloorPercent":       scaling,
	"InferencePool.roles.[].autoscaling.down.waitingPerReplica":             scaling,
	"InferencePool.roles.[].autoscaling.down.zeroAfterSeconds":              scaling,
	"InferencePool.roles.[].autoscaling.maxReplicas":                        scaling,
	"InferencePool.roles.[].autoscaling.mode":                               controller,
	"InferencePool.roles.[].autoscaling.schedules.[].durationSeconds":       scaling,
	"InferencePool.roles.[].autoscaling.schedules.[].minReplicas":           scaling,
	"InferencePool.roles.[].autoscaling.schedules.[].start":                 scaling,
	"InferencePool.roles.[].autoscaling.schedules.[].timeZone":              scaling,
	"InferencePool.roles.[].autoscaling.up.hitRatioFloorPercent":            scaling,
	"InferencePool.roles.[].autoscaling.up.maxStep":                         scaling,
	"InferencePool.roles.[].autoscaling.up.stabilizationSeconds":            scaling,
	"InferencePool.roles.[].autoscaling.up.timeToFirstTokenP99Milliseconds": scaling,
	"InferencePool.roles.[].autoscaling.up.waitingPerReplica":               scaling,
	"InferencePool.roles.[].autoscaling.schedules.[].name":                  scaling,
	"InferencePool.roles.[].autoscaling.minReplicas":                        scaling,
	"InferencePool.roles.[].replicas":                                       controller,
	"InferencePool.rollout.maxSurge":                                        controller,
	"InferencePool.rollout.progressDeadlineSeconds":                         controller,
	"InferencePool.rollout.revisionHistoryLimit":                            controller,
	"InferencePool.rollout.type":                                            controller,
	"InferencePool.warmUp.maxSeconds":                                       controller,
	"InferencePool.warmUp.maxTokens":                                        controller,
}

const (
	controller = "internal/operator/controller/inferencepool"
	scaling    = "internal/operator/controller/autoscaling"
)

// without are fields that have no effect by design, with the reason.
var without = map[string]string{
	"RoutingPolicy.targetRefs.[].group": "a gateway's pool has the name of the pool that it is made for: both groups mean one pool",
	"RoutingPolicy.targetRefs.[].kind":  "Gateway API's contract for policies requires it; it has one value",
	"RoutingPolicy.responseCache.type":  "it has one value, so that others can be added",
}
