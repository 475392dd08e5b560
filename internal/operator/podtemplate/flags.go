package podtemplate

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// Engine flags.
const (
	FlagEvents   = "--kv-events-config"
	FlagTokens   = "--enable-prompt-tokens-details"
	FlagShutdown = "--shutdown-timeout"
	FlagScaleOut = "--enable-scale-out"
	FlagHost     = "--host"
	FlagTransfer = "--kv-transfer-config"
)

// keepAlives are the variables that set for how many seconds engines keep idle connections, by type of engine.
// Their own default is 5.
var keepAlives = map[v1alpha1.EngineType]string{
	v1alpha1.EngineVLLM: "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", v1alpha1.EngineSGLang: "SGLANG_TIMEOUT_KEEP_ALIVE",
}

// keepAliveSeconds is longer than any gateway keeps an idle connection to an engine, so that the gateway closes it and no
// request meets a connection that the engine is just closing: Envoy's default is an hour, GKE's 600 s, NGINX's 60 s.
const keepAliveSeconds = 3900

// keepAlive has the engine keep idle connections for longer than gateways do.
func (w *work) keepAlive() {
	name, ok := keepAlives[v1alpha1.EngineType(w.wiring.Type)]
	if !ok || w.wiring.Flags != string(v1alpha1.FlagsInject) || w.leftOut(name) ||
		slices.ContainsFunc(w.engine.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		return
	}
	if len(w.engine.EnvFrom) > 0 {
		w.skip(w.engine.Name, name, "envFrom can set it, and env would take precedence")
		return
	}
	w.engine.Env = append(w.engine.Env, corev1.EnvVar{Name: name, Value: strconv.Itoa(keepAliveSeconds)})
	w.done = append(w.done, name)
}

// setting is a flag that an engine should have.
type setting struct {
	name, value string
	// since is the first release of vLLM that has the flag; the zero value for flags of other engines. Older ones exit on it.
	since vllmRelease
	// optional settings are not missed where they cannot be added.
	optional bool
}

// flags adds what the engine lacks and its release is known to have.
func (w *work) flags() {
	if w.wiring.Flags != string(v1alpha1.FlagsInject) {
		return
	}
	release, known := w.release()
	for _, f := range w.wanted() {
		if mentions(w.engine, f.name) || w.leftOut(f.name) {
			continue
		}
		if known && release.before(f.since) && f.since != withEvents {
			continue // the release does not have it
		}
		why := closed(w.engine)
		if why != "" && f.optional {
			continue
		}
		switch {
		case f.name == FlagEvents && w.cannotPublish():
			w.skip(w.engine.Name, f.name, "pods have addresses of IPv6 first, and vLLM's event sockets know IPv4 only: set engine.events.source to Reporter")
		case why != "":
			w.skip(w.engine.Name, f.name, why)
		case known && release.before(f.since):
			w.skip(w.engine.Name, f.name, fmt.Sprintf("vLLM %s is older than %s, the first release with KV events", release, withEvents))
		case !known && withEvents.before(f.since):
			w.skip(w.engine.Name, f.name, ReleaseUnknown)
		default:
			w.engine.Args = append(w.engine.Args, f.name)
			if f.value != "" {
				w.engine.Args = append(w.engine.Args, f.value)
			}
			w.done = append(w.done, f.name)
		}
	}
}

// cannotPublish reports whether no picker would receive the events of an engine. The ZeroMQ sockets of vLLM neither bind addresses of
// IPv6 nor connect to them; within a pod there is always 127.0.0.1.
func (w *work) cannotPublish() bool {
	return w.options.IPv6 && w.wiring.Type == string(v1alpha1.EngineVLLM) && !w.wiring.reports()
}

// wanted are the flags that the engine of the pool should have.
func (w *work) wanted() []setting {
	var out []setting
	vllm := w.wiring.Type == string(v1alpha1.EngineVLLM)
	if config := w.eventsConfig(); config != "" {
		events := setting{name: FlagEvents, value: config}
		if vllm {
			events.since = withEvents
		}
		out = append(out, events)
	}
	if !vllm {
		return out
	}
	if w.transfers {
		out = append(out, setting{name: FlagTransfer, value: `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, since: withEvents})
	}
	if w.options.IPv6 {
		// vLLM binds addresses of IPv4 alone if it is given none. This one is all addresses of both families.
		out = append(out, setting{name: FlagHost, value: "::"})
	}
	return append(out,
		setting{name: FlagTokens, since: withEvents},
		// The preStop hook has waited before, where there is one.
		setting{name: FlagShutdown, value: strconv.Itoa(int(EngineGrace.Seconds())), since: vllmRelease{0, 18}},
		// It opens the render routes, which return the exact tokens of every request. Without it /tokenize and the picker's own
		// tokenizer are used.
		setting{name: FlagScaleOut, since: vllmRelease{0, 30}, optional: true},
	)
}

// events is the engine's configuration of its publisher.
type events struct {
	Enable    bool   `json:"enable_kv_cache_events,omitempty"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic,omitempty"`
}

// eventsConfig is the value of FlagEvents, empty where the engine needs none that we know. A publisher connects to an
// address without a star, and binds one with it; the engine adds its rank to both ports.
func (w *work) eventsConfig() string {
	host, replay, topic := "127.0.0.1", "127.0.0.1", "" // no client outside the pod can listen
	switch v1alpha1.EventSource(w.wiring.Source) {
	case v1alpha1.EventsNone:
		return ""
	case v1alpha1.EventsListen:
		if w.options.Name == "" {
			return "" // the pods of another workload have no names yet, by which the picker would know them
		}
		host, replay = resources.Host(resources.PickerName(w.options.Pool), w.options.Namespace), "*"
		topic = fmt.Sprintf("kv@%s/%s@%s", w.options.Namespace, w.options.Name, w.options.Pool)
	case v1alpha1.EventsSubscribe:
		host, replay = "*", "*"
	case v1alpha1.EventsAuto, v1alpha1.EventsReporter:
	}
	raw, err := json.Marshal(events{
		Enable: w.wiring.Type == string(v1alpha1.EngineVLLM), Publisher: "zmq",
		Endpoint: fmt.Sprintf("tcp://%s:%d", host, w.wiring.Events),
		Replay:   fmt.Sprintf("tcp://%s:%d", replay, w.wiring.Replay), Topic: topic,
	})
	if err != nil {
		panic(err) // strings and a bool
	}
	return string(raw)
}

// mentions reports whether a container's command line has a flag, in any way that engines read: with a value behind a blank
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
		if i > 3 { // env, tini and similar commands precede a shell
			break
		}
		if slices.Contains(shells, path.Base(word)) && slices.ContainsFunc(line[i+1:], isScript) {
			return "it is started by a shell"
		}
	}
	return ""
}

// isScript reports whether a word is a shell's option that makes the next a script.
func isScript(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && strings.HasSuffix(word, "c")
}

// reporterResources are the pool's, or the defaults.
func (w *work) reporterResources() corev1.ResourceRequirements {
	switch {
	case w.options.ReporterResources != nil:
		return *w.options.ReporterResources.DeepCopy()
	case w.behind:
		return sidecarResources()
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
}
