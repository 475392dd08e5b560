package config

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// Settings are what translation needs besides objects.
type Settings struct {
	// ModelRoot is the directory of tokenizer directories; without it, pools that name one have no files.
	ModelRoot string
	// Hub reports whether the picker has a model hub, or a cache of one.
	Hub bool
	// Root is the key root of pools that have no Secret, at least kvblock.MinSeedBytes long. Each pool gets a seed of
	// its own from it.
	Root []byte
	// Tokens returns what checks the tokens of the issuers of all policies; nil if no tokens are checked, and none is known.
	Tokens func([]tenant.Issuer) []tenant.TokenChecker
}

// Secrets by namespace and name.
type Secrets map[types.NamespacedName]*corev1.Secret

// ConfigMaps by namespace and name.
type ConfigMaps map[types.NamespacedName]*corev1.ConfigMap

// Pool translates a pool, except for its policy and its endpoints. The pool must have been admitted.
func Pool(p *v1alpha1.InferencePool, secrets Secrets, maps ConfigMaps, settings *Settings) (picker.Spec, field.ErrorList) {
	batch := ptr.Deref(p.Spec.Engine.Events.Reporter.BatchMilliseconds, v1alpha1.DefaultBatchMilliseconds)
	spec := picker.Spec{
		Namespace:        p.Namespace,
		Name:             p.Name,
		Generation:       p.Generation,
		Model:            string(p.Spec.Model.Name),
		Aliases:          names(p.Spec.Model.Aliases),
		Adapters:         names(p.Spec.Model.Adapters.Names),
		DiscoverAdapters: p.Spec.Model.Adapters.Discovery == v1alpha1.Enabled,
		FromZero:         p.Spec.FromZero(),
		Engine:           string(p.Spec.Engine.Type),
		NoEvents:         !subscribes(p) && !listens(p) && !reported(p),
		Reports:          reported(p),
		ReportBatch:      time.Duration(batch) * time.Millisecond,
		BlockTokens:      int(p.Spec.KeySpace.BlockTokens),
		IndexMemory:      p.Spec.Picker.IndexMemory.Value(),
		MaxRequestBody:   p.Spec.Picker.MaxRequestBody.Value(),

		OrderedDestinations: p.Spec.Gateway.Destinations == v1alpha1.DestinationOrdered,
	}
	var errs field.ErrorList
	fail := func(err *field.Error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if p.Spec.Placement != nil {
		spec.Islands = map[string]time.Duration{}
		for i := range p.Spec.Placement.Islands {
			island := &p.Spec.Placement.Islands[i]
			spec.Islands[island.Name] = milliseconds(value(island.LatencyMilliseconds))
		}
	}
	var err *field.Error
	spec.Media = media(p.Spec.Engine.Media)
	spec.PassClientAuth = p.Spec.Engine.ClientAuth != v1alpha1.ClientAuthPoolKey
	spec.EngineAPIKey, err = apiKey(p, secrets)
	fail(err)
	spec.Seed, err = seed(p, secrets, settings.Root)
	fail(err)
	spec.Tokenizer, err = tokenizer(p, secrets, maps, settings)
	fail(err)
	spec.Wire, err = wire(p, secrets)
	fail(err)
	return spec, errs
}

func names(list []v1alpha1.ModelName) []string {
	var all []string
	for _, name := range list {
		all = append(all, string(name))
	}
	return all
}

// media maps lower-case medium strings to tiers.
func media(list []v1alpha1.Medium) map[string]kvblock.Tier {
	if len(list) == 0 {
		return nil
	}
	tiers := map[string]kvblock.Tier{}
	for _, m := range list {
		tiers[strings.ToLower(m.Medium)] = tier(string(m.Tier))
	}
	return tiers
}

// tier of an API name, which the schema has checked.
func tier(name string) kvblock.Tier {
	for t := range kvblock.Tier(kvblock.NumTiers) {
		if t.String() == name {
			return t
		}
	}
	return kvblock.Remote
}

func apiKey(p *v1alpha1.InferencePool, secrets Secrets) (string, *field.Error) {
	ref := p.Spec.Engine.APIKey
	if ref.Name == "" {
		return "", nil
	}
	value, err := secretEntry(p, ref, secrets, field.NewPath("spec", "engine", "apiKey"))
	// Secrets made by hand often end in a line feed, which no header can carry.
	return strings.TrimSpace(value), err
}

// secretEntry is what a Secret of the pool's namespace has under a key.
func secretEntry(p *v1alpha1.InferencePool, ref v1alpha1.SecretKey, secrets Secrets, path *field.Path) (string, *field.Error) {
	secret := secrets[types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}]
	if secret == nil {
		return "", field.NotFound(path.Child("name"), "Secret "+p.Namespace+"/"+ref.Name)
	}
	value, ok := secret.Data[ref.Key]
	if !ok || len(value) == 0 {
		return "", field.NotFound(path.Child("key"), "entry "+ref.Key+" of Secret "+p.Namespace+"/"+ref.Name)
	}
	return string(value), nil
}

// wire is how the pool's engines are spoken to.
func wire(p *v1alpha1.InferencePool, secrets Secrets) (endpoint.Wire, *field.Error) {
	e := &p.Spec.Engine
	w := endpoint.Wire{
		H2C: e.Protocol == v1alpha1.ProtocolH2C, TLS: e.TLS.Verification != "", ServerName: e.TLS.ServerName,
		Unchecked: e.TLS.Verification == v1alpha1.VerificationNone,
	}
	if e.TLS.CASecretRef.Name == "" {
		return w, nil
	}
	path := field.NewPath("spec", "engine", "tls", "caSecretRef")
	ca, err := secretEntry(p, e.TLS.CASecretRef, secrets, path)
	if err != nil {
		return w, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(ca)) {
		return w, field.Forbidden(path, "entry "+e.TLS.CASecretRef.Key+" of Secret "+p.Namespace+"/"+e.TLS.CASecretRef.Name+" has no certificate")
	}
	w.CA = ca
	return w, nil
}

// seed finds the root of the pool's keys: the Secret that the pool names, else the Secret NAME-key, else what the
// process was given.
func seed(p *v1alpha1.InferencePool, secrets Secrets, fallback []byte) (kvblock.Seed, *field.Error) {
	path := field.NewPath("spec", "keySpace", "secretRef", "name")
	name := p.Name + "-key"
	if ref := p.Spec.KeySpace.SecretRef.Name; ref != "" {
		name = ref
	}
	secret := secrets[types.NamespacedName{Namespace: p.Namespace, Name: name}]
	if secret == nil {
		if p.Spec.KeySpace.SecretRef.Name != "" {
			return kvblock.Seed{}, field.NotFound(path, "Secret "+p.Namespace+"/"+name)
		}
		s, err := kvblock.NewSeed(poolRoot(p, fallback))
		if err != nil {
			return kvblock.Seed{}, field.InternalError(path, err)
		}
		return s, nil
	}
	root, ok := secret.Data[v1alpha1.SecretKeyRoot]
	if !ok {
		return kvblock.Seed{}, field.NotFound(path, "entry "+v1alpha1.SecretKeyRoot+" of Secret "+p.Namespace+"/"+name)
	}
	s, err := kvblock.NewSeed(root)
	if err != nil {
		return kvblock.Seed{}, field.Forbidden(path, fmt.Sprintf("Secret %s/%s, entry %s: %v", p.Namespace, name, v1alpha1.SecretKeyRoot, err))
	}
	return s, nil
}

// poolRoot is a root of a pool's own, so that equal prefixes have other keys in other pools.
func poolRoot(p *v1alpha1.InferencePool, root []byte) []byte {
	if len(root) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, root)
	mac.Write([]byte(p.Namespace + "/" + p.Name))
	return mac.Sum(nil)
}

func tokenizer(p *v1alpha1.InferencePool, secrets Secrets, maps ConfigMaps, settings *Settings) (picker.TokenizerSpec, *field.Error) {
	t, modelRoot := p.Spec.Model.Tokenizer, settings.ModelRoot
	spec := picker.TokenizerSpec{Type: string(t.Type), ChatTemplate: t.ChatTemplate}
	switch {
	case t.Type == v1alpha1.TokenizerFromDirectory && modelRoot == "":
		spec.Missing = "directory " + t.Directory.Path + " cannot be read: the picker has no --model-root"
	case t.Type == v1alpha1.TokenizerFromDirectory:
		err := below(&spec, modelRoot, t.Directory.Path)
		return spec, err
	case t.Type == v1alpha1.TokenizerFromVolume && t.Volume.ConfigMap.Name != "":
		name := types.NamespacedName{Namespace: p.Namespace, Name: t.Volume.ConfigMap.Name}
		c := maps[name]
		if c == nil {
			spec.Missing = "ConfigMap " + name.String() + " does not exist"
			return spec, nil
		}
		files := modelfiles.Set{}
		for key, text := range c.Data {
			files[key] = []byte(text)
		}
		for key, data := range c.BinaryData {
			files[key] = data
		}
		spec.Files = files
		if t.Volume.Path != "" {
			spec.Missing = "a ConfigMap has no directories: volume.path must be left out"
		}
	case t.Type == v1alpha1.TokenizerFromVolume && modelRoot == "":
		spec.Missing = "the volume is not mounted: the picker has no --model-root"
	case t.Type == v1alpha1.TokenizerFromVolume:
		err := below(&spec, modelRoot, t.Volume.Path)
		return spec, err
	case t.Type == v1alpha1.TokenizerAuto && !settings.Hub:
		spec.Missing = "this installation has no model hub (hub.endpoint of the chart, --hub-endpoint of the picker)"
	case t.Type == v1alpha1.TokenizerFromHub && !settings.Hub:
		spec.Missing = "nothing is downloaded: the picker has no --hub-endpoint (hub.endpoint of the chart)"
	case t.Type == v1alpha1.TokenizerAuto, t.Type == v1alpha1.TokenizerFromHub:
		spec.Repository, spec.Missing = repository(p, secrets)
		spec.ByRoot = t.Type == v1alpha1.TokenizerAuto && t.Hub.Repository == "" && spec.Missing == ""
	}
	return spec, nil
}

// repository is where a model hub has the files of a pool's model, or why it cannot be asked. It has no name if the pool lets it be found,
// and the model's name is none of a repository.
func repository(p *v1alpha1.InferencePool, secrets Secrets) (r modelfiles.Repository, missing string) {
	h := &p.Spec.Model.Tokenizer.Hub
	r = modelfiles.Repository{Name: h.Repository, Revision: h.Revision, Template: p.Spec.Model.Tokenizer.ChatTemplate}
	auto := p.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerAuto
	if name := string(p.Spec.Model.Name); r.Name == "" && (!auto || modelfiles.NamesRepository(name)) {
		r.Name = name
	}
	if err := r.Check(); err != nil && (r.Name != "" || !auto) {
		return modelfiles.Repository{}, err.Error()
	}
	if h.TokenSecretRef.Name != "" {
		token, err := secretEntry(p, h.TokenSecretRef, secrets, field.NewPath("spec", "model", "tokenizer", "hub", "tokenSecretRef"))
		if err != nil {
			return modelfiles.Repository{}, err.Error()
		}
		r.Token = strings.TrimSpace(token)
	}
	return r, ""
}

// below makes the model directory one below the picker's root.
func below(spec *picker.TokenizerSpec, modelRoot, path string) *field.Error {
	root, err := filepath.Abs(modelRoot)
	if err != nil {
		return field.InternalError(field.NewPath("spec", "model", "tokenizer"), err)
	}
	spec.Dir = filepath.Join(root, filepath.FromSlash(path))
	return nil
}
