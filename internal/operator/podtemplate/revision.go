package podtemplate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Wiring is the part of the pool's engine that shapes a pod. A new field must be left out of the JSON where it is zero, and
// no field can be removed: otherwise an upgrade of Kvasir would change every revision.
type Wiring struct {
	Type      string `json:"type,omitempty"`
	Container string `json:"container,omitempty"` // empty: the first
	Flags     string `json:"flags,omitempty"`
	Source    string `json:"source,omitempty"`
	HTTP      int32  `json:"http,omitempty"`
	Events    int32  `json:"events,omitempty"`
	Replay    int32  `json:"replay,omitempty"`
	Drain     int32  `json:"drain,omitempty"`
	Ranks     int32  `json:"ranks,omitempty"`
	// ModelDir is where the reporter finds the model's files; empty where it need not.
	ModelDir string `json:"modelDir,omitempty"`
	// PerRank is whether each rank answers on a port of its own, HTTP and those that follow.
	PerRank bool `json:"perRank,omitempty"`
	// Behind is the port of engines that decode behind the sidecar, which has HTTP there; 0 without it. It is not of the pool: see
	// BehindSidecar.
	Behind int32 `json:"behind,omitempty"`
	// TLS is how the engine's certificate is checked; nil where it has none.
	TLS *WiringTLS `json:"tls,omitempty"`
}

// WiringTLS is how the certificate of an engine is checked: for a name, by the CA in a Secret's entry or by what the
// system trusts; or not at all, without a name.
type WiringTLS struct {
	ServerName string `json:"serverName,omitempty"`
	CASecret   string `json:"caSecret,omitempty"`
	CAKey      string `json:"caKey,omitempty"`
}

// Shape is what shapes a pod, and what a revision is of.
type Shape struct {
	Template corev1.PodTemplateSpec `json:"template"`
	Wiring   Wiring                 `json:"wiring"`
	// Roles of the pods, by name. They have one revision, because engines of different ones hand nothing over. Empty for pods
	// without roles.
	Roles []ShapeRole `json:"roles,omitempty"`
}

// ShapeRole is what differs in the pods of one role. Its size is no part of it.
type ShapeRole struct {
	Name      v1alpha1.RoleName            `json:"name"`
	ExtraArgs []string                     `json:"extraArgs,omitempty"`
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// role returns a role; nil for pods without one.
func (s *Shape) role(name v1alpha1.RoleName) *ShapeRole {
	for i := range s.Roles {
		if s.Roles[i].Name == name {
			return &s.Roles[i]
		}
	}
	return nil
}

// ShapeOf is the shape of a pool's pods. It shares the template with the pool.
func ShapeOf(pool *v1alpha1.InferencePool) Shape {
	e := &pool.Spec.Engine
	s := Shape{Wiring: Wiring{
		Type: string(e.Type), Container: e.ContainerName, Flags: string(e.Flags), Source: string(e.Events.Source),
		HTTP: e.Ports.HTTP, Events: e.Ports.EventsPort(), Replay: e.Ports.ReplayPort(), Drain: e.Events.Reporter.DrainPort,
		Ranks: e.DataParallel.Ranks,
	}}
	if pool.Spec.Template != nil {
		s.Template = *pool.Spec.Template
	}
	s.Wiring.PerRank = e.DataParallel.Addressing == v1alpha1.AddressByPort && e.DataParallel.Ranks > 1
	if e.TLS.Verification != "" {
		s.Wiring.TLS = &WiringTLS{ServerName: e.TLS.ServerName, CASecret: e.TLS.CASecretRef.Name, CAKey: e.TLS.CASecretRef.Key}
	}
	for i := range pool.Spec.Roles {
		role := ShapeRole{Name: pool.Spec.Roles[i].Name}
		if e := pool.Spec.Roles[i].Engine; e != nil {
			role.ExtraArgs, role.Resources = e.ExtraArgs, e.Resources
		}
		s.Roles = append(s.Roles, role)
	}
	slices.SortFunc(s.Roles, func(a, b ShapeRole) int { return cmp.Compare(a.Name, b.Name) })
	if t := &pool.Spec.Model.Tokenizer; t.Type == v1alpha1.TokenizerFromReporter {
		s.Wiring.ModelDir = t.Reporter.Path
	}
	return s
}

// reports is true if a reporter runs beside the engine.
func (w *Wiring) reports() bool {
	return w.Source == string(v1alpha1.EventsAuto) || w.Source == string(v1alpha1.EventsReporter)
}

// engine is the container of the engine; nil when there is none.
func (w *Wiring) engine(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.Containers {
		if w.Container == "" || spec.Containers[i].Name == w.Container {
			return &spec.Containers[i]
		}
	}
	return nil
}

// Encode writes the shape, the same bytes for the same meaning, and names them: the revision, 10 characters that are valid
// in names and form no words.
func (s *Shape) Encode() (raw []byte, revision string, err error) {
	if raw, err = json.Marshal(s); err != nil {
		return nil, "", fmt.Errorf("encoding the shape: %w", err)
	}
	// Through maps, keys are sorted; without what types might begin or cease to write, an upgrade changes nothing.
	var document any
	numbers := json.NewDecoder(bytes.NewReader(raw))
	numbers.UseNumber()
	if err = numbers.Decode(&document); err == nil {
		raw, err = json.Marshal(prune(document))
	}
	if err != nil {
		return nil, "", fmt.Errorf("encoding the shape: %w", err)
	}
	return raw, name(sha256.Sum256(raw)), nil
}

// Decode reads what Encode wrote.
func Decode(raw []byte) (*Shape, error) {
	s := &Shape{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("decoding a shape: %w", err)
	}
	return s, nil
}

// prune takes out members that are null, and empty objects that mean the same as nothing: Go's types write both.
func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, member := range v {
			member = prune(member)
			inner, ok := member.(map[string]any)
			if member == nil || ok && len(inner) == 0 && (k == "metadata" || k == "resources") {
				delete(v, k)
				continue
			}
			v[k] = member
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return v
}

func name(sum [sha256.Size]byte) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	out := make([]byte, 10)
	for i := range out {
		out[i] = alphabet[int(sum[i])%len(alphabet)]
	}
	return string(out)
}
