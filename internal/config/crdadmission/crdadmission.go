// Package crdadmission checks and completes objects of kvasir.dev as an API server does, without one.
//
// It runs the API server's own steps on the CustomResourceDefinitions of config/crd: strict decoding, pruning,
// defaults, object metadata, schema, list types and rules, the transition rules against the last good object included.
// So there is one copy of each default and each rule, and a file that is admitted here is admitted by kubectl apply.
// (Steps for embedded resources are left out: the definitions have none, which a test of config/crd keeps so.)
package crdadmission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/spelling"
)

// DefaultNamespace is the namespace of an object that names none.
const DefaultNamespace = "default"

// Admitter admits objects of kvasir.dev. It is safe for concurrent use.
type Admitter struct {
	kinds map[schema.GroupVersionKind]*kind
	// unmanaged pools are served by pickers that no operator runs.
	unmanaged bool
}

// Unmanaged returns an Admitter of pools whose pickers are run by their users, who apply no object to a cluster. Where such a
// pool does not set picker.mode, it is External instead of Managed, so that the rules for managed pickers do not apply.
func (a *Admitter) Unmanaged() *Admitter {
	return &Admitter{kinds: a.kinds, unmanaged: true}
}

// unmanagedService is the name of the external pickers of unmanaged pools. Nothing looks it up.
const unmanagedService = "standalone"

// setUnmanaged makes the pickers of a pool external. What is no object stays, for the schema to refuse.
func setUnmanaged(obj *unstructured.Unstructured) {
	if obj.GetKind() != v1alpha1.KindInferencePool {
		return
	}
	spec, ok := obj.Object["spec"].(map[string]any)
	if !ok {
		return
	}
	picker, ok := spec["picker"].(map[string]any)
	if !ok && spec["picker"] != nil || picker["mode"] != nil {
		return
	}
	external := map[string]any{"mode": string(v1alpha1.PickerExternal), "external": map[string]any{"serviceName": unmanagedService}}
	maps.Copy(external, picker) // what is set stays
	external["mode"] = string(v1alpha1.PickerExternal)
	spec["picker"] = external
}

// kind is one served version of one kind, ready to check objects. It does not change after it was loaded.
type kind struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
	// hasStatus reports whether status is a subresource, which the main resource cannot write.
	hasStatus bool
}

// New loads the embedded definitions. It takes some tens of milliseconds, so a program keeps one Admitter.
func New() (*Admitter, error) {
	defs, err := crd.Definitions()
	if err != nil {
		return nil, err
	}
	return Of(defs)
}

// Of loads other definitions.
func Of(defs []*apiextensionsv1.CustomResourceDefinition) (*Admitter, error) {
	a := &Admitter{kinds: make(map[schema.GroupVersionKind]*kind)}
	for _, def := range defs {
		for i := range def.Spec.Versions {
			version := &def.Spec.Versions[i]
			if !version.Served {
				continue
			}
			gvk := schema.GroupVersionKind{Group: def.Spec.Group, Version: version.Name, Kind: def.Spec.Names.Kind}
			k, err := load(version)
			if err != nil {
				return nil, fmt.Errorf("loading the definition of %s: %w", gvk.Kind, err)
			}
			a.kinds[gvk] = k
		}
	}
	return a, nil
}

func load(version *apiextensionsv1.CustomResourceDefinitionVersion) (*kind, error) {
	var internal apiextensions.JSONSchemaProps
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		version.Schema.OpenAPIV3Schema, &internal, nil)
	if err != nil {
		return nil, fmt.Errorf("converting the schema: %w", err)
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, fmt.Errorf("reading the structural schema: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("making the schema validator: %w", err)
	}
	return &kind{
		structural: structural,
		schema:     validator,
		rules:      cel.NewValidator(structural, true, celconfig.PerCallLimit),
		hasStatus:  version.Subresources != nil && version.Subresources.Status != nil,
	}, nil
}

// Knows reports whether objects of this kind can be admitted.
func (a *Admitter) Knows(gvk schema.GroupVersionKind) bool {
	return a.kinds[gvk] != nil
}

// Admit reads one object, JSON or YAML, and returns it with all defaults, or an *Error that lists everything wrong
// with it. old is the last good state of the same object, nil for a new one; rules about changes are checked against
// it. As on an API server, status is not taken from raw but kept from old, and metadata.generation counts the changes
// of spec. raw and old are not changed.
func (a *Admitter) Admit(ctx context.Context, raw []byte, old *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	obj, problems, err := decode(raw)
	if err != nil {
		return nil, err
	}
	gvk := obj.GroupVersionKind()
	k := a.kinds[gvk]
	if k == nil {
		return nil, refuse(obj, Problem{Field: "kind", Detail: fmt.Sprintf("no kind %q is known in version %q", gvk.Kind, gvk.GroupVersion())})
	}
	if a.unmanaged {
		setUnmanaged(obj)
	}
	unknown, err := k.prune(obj)
	if err != nil {
		return nil, refuse(obj, append(problems, Problem{Field: "metadata", Detail: err.Error()})...)
	}
	problems = append(problems, unknown...)
	if obj.GetNamespace() == "" {
		obj.SetNamespace(DefaultNamespace)
	}
	if old != nil && (old.GroupVersionKind() != gvk || old.GetNamespace() != obj.GetNamespace() || old.GetName() != obj.GetName()) {
		return nil, fmt.Errorf("admitting %s: the old state is that of another object, %s", describe(obj), describe(old))
	}
	k.prepare(obj, old)
	problems = append(problems, k.validate(ctx, obj, old)...)
	if len(problems) > 0 {
		return nil, refuse(obj, problems...)
	}
	return obj, nil
}

// prune fills in the defaults, brings the metadata into its types, removes unknown fields and nulls, and returns the
// unknown fields. An error means that the metadata cannot be read.
func (k *kind) prune(obj *unstructured.Unstructured) ([]Problem, error) {
	apiVersion, kindName := obj.GetAPIVersion(), obj.GetKind()
	defaulting.Default(obj.Object, k.structural)

	meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(obj.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, err
	}
	paths = append(paths, pruning.PruneWithOptions(obj.Object, k.structural, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj.Object, k.structural)

	obj.SetAPIVersion(apiVersion)
	obj.SetKind(kindName)
	if found {
		if err := objectmeta.SetObjectMeta(obj.Object, meta); err != nil {
			return nil, err
		}
	}
	problems := make([]Problem, 0, len(paths))
	for _, path := range paths {
		problems = append(problems, Problem{Field: path, Detail: fmt.Sprintf("unknown field %q", path), Meant: k.meant(path)})
	}
	return problems, nil
}

// meant is the field that the last part of a path was probably meant to be, empty if none is near.
func (k *kind) meant(path string) string {
	at := k.structural
	names := strings.Split(path, ".")
	for i, name := range names {
		var known []string
		for property := range at.Properties {
			known = append(known, property)
		}
		slices.Sort(known)
		name, index, isItem := strings.Cut(name, "[")
		next, ok := at.Properties[name]
		switch {
		case i == len(names)-1:
			return spelling.Nearest(name, known)
		case !ok:
			return ""
		}
		at = &next
		if isItem && index != "" && at.Items != nil {
			at = at.Items
		}
	}
	return ""
}

// prepare sets what only the server is allowed to set: the generation, and the status of objects whose status is a subresource.
func (k *kind) prepare(obj, old *unstructured.Unstructured) {
	if k.hasStatus {
		delete(obj.Object, "status")
	}
	if old == nil {
		obj.SetGeneration(1)
		return
	}
	if status, ok := old.Object["status"]; ok && k.hasStatus {
		obj.Object["status"] = status
	}
	obj.SetGeneration(old.GetGeneration())
	if !equality.Semantic.DeepEqual(obj.Object["spec"], old.Object["spec"]) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

// validate returns everything that the schema, the list types and the rules refuse.
func (k *kind) validate(ctx context.Context, obj, old *unstructured.Unstructured) []Problem {
	errs := metavalidation.ValidateObjectMetaAccessor(obj, true, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, validation.ValidateCustomResource(nil, obj.Object, k.schema)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, obj.Object)...)
	if blocksRules(errs) {
		problems := problemsOf(errs)
		problems[len(problems)-1].Detail += UncheckedRules
		return problems
	}
	var before any
	if old != nil {
		before = old.Object
	}
	ruleErrs, _ := k.rules.Validate(ctx, nil, k.structural, obj.Object, before, celconfig.RuntimeCELCostBudget)
	return append(problemsOf(errs), problemsOf(ruleErrs)...)
}

// UncheckedRules is added to the last problem of an object whose rules cannot be evaluated.
const UncheckedRules = " (the rules cannot be checked before this is mended)"

// blocksRules reports whether rules cannot be evaluated: on values of a wrong type, or larger than their cost was
// reckoned for.
func blocksRules(errs field.ErrorList) bool {
	for _, e := range errs {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}
