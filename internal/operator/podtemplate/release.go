package podtemplate

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// ReleaseUnknown is why a flag is left out that some releases of vLLM do not have: they exit on it.
const ReleaseUnknown = "the release of vLLM in the image is not known"

// vllmRelease is a release of vLLM without its patch number.
type vllmRelease struct{ major, minor int }

// withEvents is the first release with KV events, and so the first that a pool can use. It has all flags that are added
// whatever the release is.
var withEvents = vllmRelease{0, 9}

func (r vllmRelease) before(other vllmRelease) bool {
	return cmp.Or(cmp.Compare(r.major, other.major), cmp.Compare(r.minor, other.minor)) < 0
}

// String implements fmt.Stringer.
func (r vllmRelease) String() string { return fmt.Sprintf("%d.%d", r.major, r.minor) }

// release returns the release of vLLM in the engine's image: what the template states, or else what the image's tag shows.
func (w *work) release() (vllmRelease, bool) {
	if stated, ok := w.pod.Annotations[v1alpha1.AnnotationEngineRelease]; ok {
		return parseRelease(stated)
	}
	return releaseOf(w.engine.Image)
}

// ownNames are the names that the project vLLM and its builds give to images. Vendors number images of other names by
// themselves: NVIDIA's vllm-runtime:1.0.0 and Red Hat's vllm-cuda-rhel9:3.2 contain other releases.
var ownNames = regexp.MustCompile(`^vllm(-openai)?(-cpu|-rocm|-tpu|-xpu|-cpu-release-repo)?$`)

// releaseOf returns the release in the tag of an image of vLLM. Images of vLLM's name can be others' as well, and have numbers of their
// own, such as NVIDIA's vllm:26.01-py3. Those that no release of vLLM has, or none that a pool can use, are not taken for one.
func releaseOf(image string) (vllmRelease, bool) {
	image, _, _ = strings.Cut(image, "@")
	name, tag, _ := strings.Cut(path.Base(image), ":")
	if !ownNames.MatchString(strings.ToLower(name)) {
		return vllmRelease{}, false
	}
	r, ok := parseRelease(tag)
	return r, ok && r.major == 0 && !r.before(withEvents)
}

var releasePattern = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})([.+-]|$)`)

func parseRelease(text string) (vllmRelease, bool) {
	m := releasePattern.FindStringSubmatch(text)
	if m == nil {
		return vllmRelease{}, false
	}
	major, errA := strconv.Atoi(m[1])
	minor, errB := strconv.Atoi(m[2])
	return vllmRelease{major, minor}, errA == nil && errB == nil
}
