package podtemplate

import (
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// modelFiles lets the sidecar read the model's files on the volume on which the engine has them. Where the pool names a directory, it
// must be on a volume; otherwise that of the engine's command line is taken, if it is.
func (w *work) modelFiles(c *corev1.Container) {
	const flag = "--model-dir"
	source := modelfiles.Source{Dir: w.wiring.ModelDir}
	if source.Dir == "" {
		if !w.options.FindModel {
			return
		}
		source = w.findModel()
	}
	at := source.Dir
	if source.Cache != "" {
		at = source.Cache
	}
	if at == "" {
		return
	}
	m := mountOf(w.engine, at)
	why := "no volume of the engine holds " + at
	if m != nil {
		why = notForSidecar(m)
	}
	if why != "" {
		if w.wiring.ModelDir != "" {
			w.skip(c.Name, flag, why)
		}
		return
	}
	read := *m.DeepCopy()
	read.ReadOnly, read.MountPropagation = true, nil
	c.VolumeMounts = append(c.VolumeMounts, read)
	if source.Cache != "" {
		c.Env = append(c.Env, later("CACHE", source.Cache), later("REPOSITORY", source.Repository.Name))
		if source.Repository.Revision != "" {
			c.Env = append(c.Env, later("REVISION", source.Repository.Revision))
		}
		return
	}
	c.Args = append(c.Args, flag+"="+source.Dir)
	if root := path.Clean(m.MountPath); root != path.Clean(source.Dir) {
		c.Env = append(c.Env, later("ROOT", root))
	}
}

// later sets a flag about the model that reporters of earlier releases do not have. As a variable they ignore it.
func later(name, value string) corev1.EnvVar {
	return corev1.EnvVar{Name: "KVASIR_MODEL_" + name, Value: value}
}

// notForSidecar is why a mount of the engine cannot be one of the sidecar; empty if it can. With a wrong one the pod would not start.
func notForSidecar(m *corev1.VolumeMount) string {
	at := path.Clean(m.MountPath)
	within := func(a, b string) bool { return a == b || strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/") }
	for _, own := range []string{pathState, pathProof, "/etc", "/dev", "/proc", "/sys", "/kvasir"} {
		if within(at, own) || within(own, at) {
			return "the volume at " + at + " would hide what the sidecar has at " + own
		}
	}
	if m.SubPathExpr != "" {
		return "the volume at " + at + " has a subPathExpr, with variables of the engine's container"
	}
	return ""
}

// findModel is where the engine has its model and tokenizer from, by its command line: a directory, or a repository in the cache of the
// Hugging Face tools. It names nothing if that is not certain.
func (w *work) findModel() modelfiles.Source {
	env := w.environment()
	line := words(w.engine, env)
	var name, revision string
	switch v1alpha1.EngineType(w.wiring.Type) {
	case v1alpha1.EngineVLLM:
		name, revision = valueOf(line, "--model"), valueOf(line, "--revision")
		if name == "" {
			name = served(line)
		}
		if other := valueOf(line, "--tokenizer"); other != "" {
			name, revision = other, ""
		}
		if other := valueOf(line, "--tokenizer-revision"); other != "" {
			revision = other
		}
	case v1alpha1.EngineSGLang:
		name, revision = valueOf(line, "--model-path", "--model"), valueOf(line, "--revision")
		if other := valueOf(line, "--tokenizer-path"); other != "" {
			name = other
		}
	}
	if strings.ContainsAny(name+revision, "$`\"'\\") {
		return modelfiles.Source{}
	}
	if path.IsAbs(name) {
		return modelfiles.Source{Dir: path.Clean(name)}
	}
	r := modelfiles.Repository{Name: name, Revision: revision}
	cache := w.hubCache(env)
	if name == "" || r.Check() != nil || cache == "" || env["VLLM_USE_MODELSCOPE"] != "" {
		return modelfiles.Source{}
	}
	return modelfiles.Source{Cache: cache, Repository: r}
}

// environment are the variables of the engine's container whose values are known.
func (w *work) environment() map[string]string { return environmentOf(w.engine) }

func environmentOf(c *corev1.Container) map[string]string {
	env := map[string]string{}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			env[v.Name] = v.Value
		}
	}
	return env
}

// hubCache is the directory in which the Hugging Face tools keep what they download: where the engine's variables say, or else the
// usual place below the home directory, if a volume is mounted there. Empty if that is not known.
func (w *work) hubCache(env map[string]string) string {
	const below = ".cache/huggingface"
	dir := ""
	switch {
	case env["HF_HUB_CACHE"] != "":
		dir = env["HF_HUB_CACHE"]
	case env["HUGGINGFACE_HUB_CACHE"] != "":
		dir = env["HUGGINGFACE_HUB_CACHE"]
	case env["HF_HOME"] != "":
		dir = path.Join(env["HF_HOME"], "hub")
	case env["XDG_CACHE_HOME"] != "":
		dir = path.Join(env["XDG_CACHE_HOME"], "huggingface/hub")
	case env["HOME"] != "":
		dir = path.Join(env["HOME"], below, "hub")
	default:
		for _, m := range w.engine.VolumeMounts {
			if at := path.Clean(m.MountPath); strings.HasSuffix(at, "/"+below) || strings.HasSuffix(at, "/"+below+"/hub") {
				dir = path.Join(strings.TrimSuffix(at, "/hub"), "hub")
				break
			}
		}
	}
	if !path.IsAbs(dir) || strings.Contains(dir, "$") {
		return ""
	}
	return path.Clean(dir)
}

// words are those of the engine's command line: those of the script, if a shell starts it. References to variables ($(NAME)) are replaced
// as the kubelet does.
func words(c *corev1.Container, env map[string]string) []string {
	line := slices.Concat(c.Command, c.Args)
	for i, word := range line {
		if slices.Contains(shells, path.Base(word)) && i <= 3 {
			if at := slices.IndexFunc(line[i+1:], isScript); at >= 0 && i+at+2 < len(line) {
				line = strings.Fields(strings.ReplaceAll(line[i+at+2], "\\\n", " "))
				break
			}
		}
	}
	var replace []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		replace = append(replace, "$("+name+")", env[name])
	}
	variables := strings.NewReplacer(replace...)
	for i, word := range line {
		line[i] = variables.Replace(word)
	}
	return line
}

// valueOf is the value of the last of some flags of a command line.
func valueOf(line []string, flags ...string) (value string) {
	for i, word := range line {
		name, inOne, is := strings.Cut(word, "=")
		if name = strings.ReplaceAll(name, "_", "-"); !slices.Contains(flags, name) {
			continue
		}
		switch {
		case is:
			value = inOne
		case i+1 < len(line):
			value = line[i+1]
		}
	}
	return value
}

// served is the model of "vllm serve MODEL", and of arguments alone that begin with MODEL: the images' own command is that.
func served(line []string) string {
	if at := slices.Index(line, "serve"); at >= 0 {
		line = line[at+1:]
	} else if len(line) > 0 && (strings.Contains(line[0], "python") || path.Base(line[0]) == "vllm") {
		return ""
	}
	if len(line) > 0 && !strings.HasPrefix(line[0], "-") && strings.Contains(line[0], "/") {
		return line[0]
	}
	return ""
}
