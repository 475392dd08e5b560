#!/usr/bin/env bash
# Makes the files of a release in dist/: programs, images with a list of what is in them, the chart, manifests, and the
# checksums of all. The same sources and the same Go make the same bytes.
#
#   hack/release.sh v1.2.3
#
# PLATFORMS are those of the programs that people run, ARCHES those of the images; both have defaults.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}
PLATFORMS=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}
ARCHES=${ARCHES:-amd64,arm64}
version=${1:-}
if [[ ! $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
  echo "usage: hack/release.sh vMAJOR.MINOR.PATCH" >&2
  exit 2
fi
# The time of the sources is that of all files.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
mkdir -p dist/bin dist/images

echo "== programs"
package=github.com/kvasir-dev/kvasir/internal/version
build="-X $package.release=$version -X $package.revision=$(git rev-parse HEAD)"
for platform in $PLATFORMS; do
  for program in kubectl-kvasir kvasir-bench kvasir-lab picker; do
    file="dist/bin/$program-${platform%/*}-${platform#*/}"
    # The types of Kubernetes' API are most of the plugin, and a tenth smaller without inlining. It does not compute with them.
    compiler=()
    if [ "$program" = kubectl-kvasir ]; then compiler=(-gcflags='k8s.io/...=-l'); fi
    CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} $GO build -trimpath -buildvcs=false -ldflags="-s -w $build" \
      ${compiler[@]+"${compiler[@]}"} -o "$file" "./cmd/$program"
    if [ "$program-$platform" = kubectl-kvasir-linux/amd64 ] && [ "$(wc -c <"$file")" -gt 40000000 ]; then
      echo "$file has more than 40 MB: see with \`go tool nm -size\` what has been added" >&2
      exit 1
    fi
  done
done

$GO run ./hack/krew -version "$version" -dist dist

echo "== images"
$GO run ./hack/images -arch "$ARCHES" -tag "$version" -revision "$(git rev-parse HEAD)" -out dist/images manager picker reporter vllmsim
find dist/images -type f ! -name '*.tar' ! -name '*.spdx.json' -delete # the programs, which are in the images

echo "== chart"
# Images have the tag of the release.
bin/helm package charts/kvasir --version "${version#v}" --app-version "$version" --destination "$work"
tar -xzf "$work/kvasir-${version#v}.tgz" -C "$work"
tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - kvasir |
  gzip --no-name --best >"dist/kvasir-${version#v}.tgz"

echo "== manifests"
# What config/default installs, with the images of the release.
mkdir "$work/install"
cat >"$work/install/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [config/default]
END
cp -R config "$work/install/config"
sed -i.bak "s#image: kvasir/manager\$#image: kvasir/manager:$version#" "$work/install/config/manager/deployment.yaml"
bin/kube/kubectl kustomize "$work/install" >dist/install.yaml
grep -q "image: kvasir/manager:$version\$" dist/install.yaml

(cd dist && find . -type f ! -name checksums.txt -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >checksums.txt)
echo "dist/ has the release $version:"
cat dist/checksums.txt
