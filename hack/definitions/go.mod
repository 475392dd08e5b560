// Modules whose definitions (CustomResourceDefinitions) the tests of the chart and of the manifests in docs give to the
// API server. Their code is not used, so this file is not tidied: go mod download fetches them.
module github.com/kvasir-dev/kvasir/hack/definitions

go 1.26.0

require (
	github.com/envoyproxy/gateway v1.8.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	istio.io/api v1.31.1
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.6.0
)
