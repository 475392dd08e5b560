package inject

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Engine flags.
const (
	FlagEvents   = "--kv-events-config"
	FlagTokens   = "--enable-prompt-tokens-details"
	FlagShutdown = "--shutdown-timeout"
)

// setting is a flag that an engine should have.
type setting struct{ name, value string }

// flags adds what the engine lacks.
func (w *work) flags() {
	if w.wiring.Flags != string(v1alpha1.FlagsInject) {
		return
	}
	for _, f := range w.wanted() {
		if mentions(w.engine, f.name) {
			continue
		}
		if why := closed(w.engine); why != "" {
			w.skip(w.engine.Name, f.name, why)
			continue
		}
		w.engine.Args = append(w.engine.Args, f.name)
		if f.value != "" {
			w.engine.Args = append(w.engine.Args, f.value)
		}
		w.done = append(w.done, f.name)
	}
}

// wanted are the flags that the engine of the pool should have.
func (w *work) wanted() []setting {
	var out []setting
	if config := w.eventsConfig(); config != "" {
		out = append(out, setting{FlagEvents, config})
	}
	if w.wiring.Type != string(v1alpha1.EngineVLLM) {
		return out
	}
	out = append(out, setting{FlagTokens, ""})
	// Older engines refuse flags they do not know. The preStop hook has waited before, where there is one.
	if !older(w.engine.Image, 0, 18) {
		out = append(out, setting{FlagShutdown, strconv.Itoa(int(EngineGrace.Seconds()))})
	}
	return out
}

// events is the engine's configuration of its publisher.
type events struct {
	Enable    bool   `json:"enable_kv_cache_events,omitempty"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
}

// eventsConfig is the value of FlagEvents, empty where the engine needs none that we know. A publisher connects to an
// address without a star, and binds one with it; the engine adds its rank to both ports.
func (w *work) eventsConfig() string {
	host := "127.0.0.1" // nobody outside the pod can listen
	switch v1alpha1.EventSource(w.wiring.Source) {
	case v1alpha1.EventsNone, v1alpha1.EventsListen:
		return ""
	case v1alpha1.EventsSubscribe:
		host = "*"
	case v1alpha1.EventsAuto, v1alpha1.EventsReporter:
	}
	raw, err := json.Marshal(events{
		Enable: w.wiring.Type == string(v1alpha1.EngineVLLM), Publisher: "zmq",
		Endpoint: fmt.Sprintf("tcp://%s:%d", host, w.wiring.Events),
		Replay:   fmt.Sprintf("tcp://%s:%d", host, w.wiring.Replay),
	})
	if err != nil {
		panic(err) // strings and a bool
	}
	return string(raw)
}

// mentions is whether a container's command line has a flag, in any way that engines read: with a value behind a blank
// or an equals sign, with underscores, as keys of a document behind dots, or in the text of a shell's script.
func mentions(c *corev1.Container, name string) bool {
	return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
		arg = strings.ReplaceAll(arg, "_", "-")
		if rest, ok := strings.CutPrefix(arg, name); ok && (rest == "" || rest[0] == '=' || rest[0] == '.') {
			return true
		}
		return strings.ContainsAny(arg, " \n\t") && strings.Contains(arg, name)
	})
}

var shells = []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"}

// closed says why arguments that are added to a container would not reach its engine; empty when they would.
func closed(c *corev1.Container) string {
	line := slices.Concat(c.Command, c.Args)
	if len(line) == 0 {
		return "neither command nor args is set, so added args would replace the image's"
	}
	for i, word := range line {
		if i > 3 { // env, tini and the like stand before a shell
			break
		}
		if slices.Contains(shells, path.Base(word)) && slices.ContainsFunc(line[i+1:], isScript) {
			return "it is started by a shell"
		}
	}
	return ""
}

// isScript is whether a word is a shell's option that makes the next a script.
func isScript(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && strings.HasSuffix(word, "c")
}

var release = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(\.|-|$)`)

// older is whether the tag of an image is a release before major.minor. A tag that tells no release is new.
func older(image string, major, minor int) bool {
	image, _, _ = strings.Cut(image, "@")
	at := strings.LastIndexByte(image, ':')
	if at < 0 || strings.Contains(image[at:], "/") {
		return false
	}
	m := release.FindStringSubmatch(image[at+1:])
	if m == nil {
		return false
	}
	a, errA := strconv.Atoi(m[1])
	b, errB := strconv.Atoi(m[2])
	return errA == nil && errB == nil && (a < major || a == major && b < minor)
}

// reporterResources are the pool's, or the defaults.
func reporterResources(o *Options) corev1.ResourceRequirements {
	if o.ReporterResources != nil {
		return *o.ReporterResources.DeepCopy()
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
}
