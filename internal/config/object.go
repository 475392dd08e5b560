package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// object is an applied object.
type object struct {
	origin Origin
	// raw is the JSON that it was admitted from.
	raw []byte
	// admitted is the complete object with defaults, for kinds of kvasir.dev.
	admitted *unstructured.Unstructured
	// value is the typed object.
	value any
}

// versions of the kinds that are read.
var versions = map[string]string{
	v1alpha1.KindInferencePool: v1alpha1.GroupVersion.String(),
	v1alpha1.KindRoutingPolicy: v1alpha1.GroupVersion.String(),
	v1alpha1.KindModelRoute:    v1alpha1.GroupVersion.String(),
	kindEndpointSlice:          discoveryv1.SchemeGroupVersion.String(),
	"Secret":                   corev1.SchemeGroupVersion.String(),
	"ConfigMap":                corev1.SchemeGroupVersion.String(),
}

// claim is a document that claims to be a certain object.
type claim struct{ document }

// admitAll admits the objects of the files, and returns the problems of the others.
func (d *Directory) admitAll(ctx context.Context, files map[string]reading) []Problem {
	var problems []Problem
	claims := map[ObjectKey][]claim{}
	unclear := map[string][]Problem{} // by file: why its objects stay though they do not appear
	d.parse(files)
	inForce := map[string]bool{} // files with applied objects
	for _, o := range d.objects {
		inForce[o.origin.File] = true
	}
	for _, name := range sortedKeys(files) {
		var documents []document
		documents, unclear[name] = d.documents(name, files[name], inForce[name])
		for _, doc := range documents {
			claims[doc.key] = append(claims[doc.key], claim{doc})
		}
	}
	next := map[ObjectKey]*object{}
	for key, list := range claims {
		chosen, others := d.choose(key, list)
		for _, other := range others {
			problems = append(problems, Problem{Origin: other.origin, Object: key,
				Detail: fmt.Sprintf("the object is also in %s; that one is applied", chosen.place())})
		}
		old := d.objects[key]
		o, faults := d.admit(ctx, &chosen, old)
		for _, f := range faults {
			problems = append(problems, Problem{Origin: chosen.origin, Object: key, Field: f.field, Detail: f.detail, Kept: d.hasGood(key)})
		}
		if o != nil {
			next[key] = o
		} else if old != nil {
			next[key] = old
		}
	}
	held := map[string]bool{} // files with objects that stay though they do not appear
	for key, old := range d.objects {
		if _, ok := claims[key]; !ok && len(unclear[old.origin.File]) > 0 {
			next[key] = old
			held[old.origin.File] = held[old.origin.File] || d.hasGood(key)
		}
	}
	for name, list := range unclear {
		for _, p := range list {
			p.Kept = held[name]
			problems = append(problems, p)
		}
	}
	d.objects = next
	return problems
}

// hasGood reports whether there is a last good state of an object, one that was not only read but could be acted on.
func (d *Directory) hasGood(key ObjectKey) bool {
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	ok := d.objects[key] != nil
	switch key.Kind {
	case v1alpha1.KindInferencePool:
		_, ok = d.translator.last.pools[name]
	case v1alpha1.KindRoutingPolicy:
		_, ok = d.translator.last.policies[name]
	}
	return ok
}

// parse cuts the files that have changed into documents.
func (d *Directory) parse(files map[string]reading) {
	next := map[string]parsed{}
	for name, r := range files {
		p, ok := d.parsed[name]
		if !ok || !r.equal(d.read[name]) {
			p.documents, p.err = split(name, r.content)
		}
		next[name] = p
	}
	d.parsed = next
}

// documents are the documents of a file that name an object. The problems are those after which it is not known which objects
// the file was meant to have. inForce reports whether objects of it are applied: such a file that has no object any more
// counts as written half, as a file does that has no byte.
func (d *Directory) documents(name string, r reading, inForce bool) ([]document, []Problem) {
	fail := func(origin Origin, detail string) Problem { return Problem{Origin: origin, Detail: detail} }
	if r.err != "" {
		return nil, []Problem{fail(Origin{File: name}, r.err)}
	}
	all := d.parsed[name]
	if all.err != nil {
		p := fail(Origin{File: name}, all.err.Error())
		p.at = placeOf(all.err)
		return nil, []Problem{p}
	}
	switch {
	case len(all.documents) > 0:
	case inForce:
		return nil, []Problem{fail(Origin{File: name}, "the file is empty; to take its objects away, delete it")}
	case len(bytes.TrimSpace(r.content)) == 0: // nothing but comments can be meant
		return nil, []Problem{fail(Origin{File: name}, "the file is empty")}
	}
	var documents []document
	var problems []Problem
	for _, doc := range all.documents {
		want, known := versions[doc.key.Kind]
		switch {
		case doc.key.Kind == "" || doc.apiVersion == "" || doc.isList():
			problems = append(problems, fail(doc.origin, doc.err.Error()))
		case !known || group(want) != group(doc.apiVersion):
			kinds := sortedKeys(versions)
			p := fail(doc.origin, fmt.Sprintf("kind %q of %q is not read here%s", doc.key.Kind, doc.apiVersion,
				cmp.Or(didYouMean(doc.key.Kind, kinds), "; "+strings.Join(kinds, ", ")+" are")))
			if doc.key.Name != "" {
				p.Object = doc.key
			}
			problems = append(problems, p)
		case doc.key.Name == "":
			problems = append(problems, fail(doc.origin, doc.err.Error()))
		default:
			documents = append(documents, doc)
		}
	}
	return documents, problems
}

// choose finds the document that counts for an object: the one in the object's previous file, else the first.
func (d *Directory) choose(key ObjectKey, list []claim) (claim, []claim) {
	at := 0
	if old := d.objects[key]; old != nil {
		at = max(0, slices.IndexFunc(list, func(c claim) bool { return c.origin.File == old.origin.File }))
	}
	return list[at], slices.Delete(slices.Clone(list), at, at+1)
}

// admit makes the object of a document, or returns its faults. An unchanged object is not admitted again.
func (d *Directory) admit(ctx context.Context, c *claim, old *object) (*object, []fault) {
	if c.err != nil {
		return nil, []fault{{detail: c.err.Error()}}
	}
	if want := versions[c.key.Kind]; c.apiVersion != want {
		return nil, []fault{{field: "apiVersion", detail: fmt.Sprintf("Unsupported value: %q: supported value: %q", c.apiVersion, want)}}
	}
	if old != nil && bytes.Equal(old.raw, c.raw) {
		same := *old
		same.origin = c.origin
		return &same, nil
	}
	o := &object{origin: c.origin, raw: c.raw}
	var faults []fault
	switch c.key.Kind {
	case kindEndpointSlice:
		o.value, faults = decodeSlice(c.raw)
	case "Secret":
		o.value, faults = decodeSecret(c.raw)
	case "ConfigMap":
		o.value, faults = decodeConfigMap(c.raw)
	default:
		faults = d.admitOwn(ctx, o, old)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return o, nil
}

// admitOwn admits an object of kvasir.dev.
func (d *Directory) admitOwn(ctx context.Context, o, old *object) []fault {
	var before *unstructured.Unstructured
	if old != nil {
		before = old.admitted
	}
	admitted, err := d.admitter.Admit(ctx, o.raw, before)
	if err == nil {
		o.admitted = admitted
		switch admitted.GetKind() {
		case v1alpha1.KindInferencePool:
			o.value, err = crdadmission.Pool(admitted)
		case v1alpha1.KindRoutingPolicy:
			o.value, err = crdadmission.Policy(admitted)
		case v1alpha1.KindModelRoute:
			o.value, err = crdadmission.Route(admitted)
		}
	}
	if err == nil {
		return nil
	}
	refused := (*crdadmission.Error)(nil)
	if !errors.As(err, &refused) {
		return []fault{{detail: err.Error()}}
	}
	var faults []fault
	for _, p := range refused.Problems {
		f := plainFault(p.Field, p.Detail)
		if p.Meant != "" {
			f.detail += fmt.Sprintf(", did you mean %q?", p.Meant)
		}
		faults = append(faults, f)
	}
	return withoutRepetition(faults)
}

// collect lists the applied objects.
func (d *Directory) collect() Objects {
	o := Objects{Origins: map[ObjectKey]Origin{}}
	for key, object := range d.objects {
		o.Origins[key] = object.origin
		switch value := object.value.(type) {
		case *v1alpha1.InferencePool:
			o.Pools = append(o.Pools, value)
		case *v1alpha1.RoutingPolicy:
			o.Policies = append(o.Policies, value)
		case *v1alpha1.ModelRoute:
			o.Routes = append(o.Routes, value)
		case *discoveryv1.EndpointSlice:
			o.Slices = append(o.Slices, value)
		case *corev1.Secret:
			o.Secrets = append(o.Secrets, value)
		case *corev1.ConfigMap:
			o.ConfigMaps = append(o.ConfigMaps, value)
		}
	}
	return o
}

// group of an apiVersion.
func group(apiVersion string) string {
	before, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return before
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
