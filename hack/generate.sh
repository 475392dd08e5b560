#!/bin/sh
# Generates the deep copies and the CustomResourceDefinitions from api/v1alpha1, and the parts of the chart that have
# their source elsewhere.
#
#   hack/generate.sh          writes api/v1alpha1/zz_generated.deepcopy.go, config/crd/bases, docs/api.md, and
#                             charts/kvasir/templates/crds, files and README.md
#   hack/generate.sh --check  writes nothing; fails when they are stale
set -eu
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT INT TERM

# Labels and annotations of embedded pod templates are kept (generateEmbeddedObjectMeta); the descriptions below them
# are not, since with them the pool's definition is larger than what kubectl apply can annotate.
go tool -modfile=hack/tools/go.mod controller-gen \
	paths=./api/v1alpha1 \
	object output:object:dir="$out/api" \
	crd:generateEmbeddedObjectMeta=true output:crd:dir="$out/crd"
go run ./hack/crdstrip "$out"/crd/*.yaml
go -C hack/crdcheck run . "$out"/crd/*.yaml
go -C hack/promcheck run . "$PWD"/config/monitoring/rules.yaml "$PWD"/config/monitoring/dashboards/*.json
go run ./hack/chart -definitions "$out/crd" -out "$out/chart"
go run ./hack/apidoc "$out"/crd/*.yaml >"$out/api.md"

if [ "${1:-}" = --check ]; then
	diff -u api/v1alpha1/zz_generated.deepcopy.go "$out/api/zz_generated.deepcopy.go" &&
		diff -ru config/crd/bases "$out/crd" &&
		diff -u docs/api.md "$out/api.md" &&
		diff -ru charts/kvasir/templates/crds "$out/chart/templates/crds" &&
		diff -ru charts/kvasir/files "$out/chart/files" &&
		diff -u charts/kvasir/README.md "$out/chart/README.md" || {
		echo "generated files are stale: run hack/generate.sh" >&2
		exit 1
	}
	exit 0
fi

cp "$out/api/zz_generated.deepcopy.go" api/v1alpha1/
cp "$out/api.md" docs/
rm -rf config/crd/bases charts/kvasir/templates/crds charts/kvasir/files
cp -R "$out/crd" config/crd/bases
cp -R "$out/chart/." charts/kvasir
