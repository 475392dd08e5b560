package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/spelling"
)

// fault is what is wrong with an object.
type fault struct{ field, detail string }

func faultsOf(errs field.ErrorList) []fault {
	var faults []fault
	for _, e := range errs {
		faults = append(faults, plainFault(e.Field, e.ErrorBody()))
	}
	return faults
}

// What API servers add to their messages and a reader does not need: the field again, a regular expression, and a type for a value.
var (
	expression  = regexp.MustCompile(`,? regex used for validation is '[^']*'`)
	wrongType   = regexp.MustCompile(`^Invalid value: "([a-z]+)": must be of type ([a-z]+): "[a-z]+"`)
	repetition  = regexp.MustCompile(`^(unknown|duplicate) field ".*"$`)
	unsupported = regexp.MustCompile(`^Unsupported value: "([^"]*)": supported values?: (.*)$`)
	wrongField  = regexp.MustCompile(`^json: cannot unmarshal (\S+) into Go struct field [^.]*\.(\S+) of type (\S+)$`)
	quoted      = regexp.MustCompile(`"([^"]*)"`)
)

// plainFault is a fault in the words of an API server, without what is said twice, and with the value that was probably meant.
func plainFault(field, detail string) fault {
	if field != "" {
		detail = strings.Replace(detail, field+" in body ", "", 1)
	}
	detail = expression.ReplaceAllString(detail, "")
	detail = wrongType.ReplaceAllString(detail, "must be of type $2, not $1")
	if field != "" {
		detail = repetition.ReplaceAllString(detail, "$1 field")
	}
	if m := unsupported.FindStringSubmatch(detail); m != nil {
		var known []string
		for _, value := range quoted.FindAllStringSubmatch(m[2], -1) {
			known = append(known, value[1])
		}
		if meant := didYouMean(m[1], known); meant != "" {
			detail = strings.Replace(detail, ": supported value", meant+" Supported value", 1)
		}
	}
	return fault{field: field, detail: detail}
}

// withoutRepetition leaves out what follows from a value of the wrong type: other faults at its field and below. Where the field
// takes few values, the fault that lists them stays instead.
func withoutRepetition(faults []fault) []fault {
	isList := func(f fault) bool { return strings.HasPrefix(f.detail, "Unsupported value") }
	isType := func(f fault) bool { return strings.HasPrefix(f.detail, typePrefix) }
	listed, wrong := map[string]bool{}, map[string]bool{}
	for _, f := range faults {
		if isList(f) {
			listed[f.field] = true
		}
		if isType(f) {
			wrong[f.field] = true
		}
	}
	kept := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		for field := range wrong {
			below, is := strings.CutPrefix(f.field, field)
			switch {
			case !is:
			case below == "" && (listed[field] && !isList(f) || !listed[field] && !isType(f)):
				return true
			case below != "" && (below[0] == '.' || below[0] == '['):
				return true
			}
		}
		return false
	})
	if last := &kept[len(kept)-1]; strings.HasSuffix(faults[len(faults)-1].detail, crdadmission.UncheckedRules) &&
		!strings.HasSuffix(last.detail, crdadmission.UncheckedRules) {
		last.detail += crdadmission.UncheckedRules
	}
	return kept
}

// typePrefix begins a fault about the type of a value.
const typePrefix = "must be of type "

// didYouMean asks for the known word that is near a wrong one; it is empty if there is none.
func didYouMean(wrong string, known []string) string {
	if meant := spelling.Nearest(wrong, known); meant != "" {
		return fmt.Sprintf(", did you mean %q?", meant)
	}
	return ""
}

// decodeStrict reads an object as the API server does for clients that ask for strict validation: unknown and
// duplicate fields are errors.
func decodeStrict(raw []byte, into any) []fault {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		if m := wrongField.FindStringSubmatch(err.Error()); m != nil {
			return []fault{{field: m[2], detail: fmt.Sprintf("must be of type %s, not %s", m[3], m[1])}}
		}
		return []fault{{detail: err.Error()}}
	}
	var faults []fault
	for _, err := range strict {
		f := fault{detail: err.Error()}
		if fe := kjson.FieldError(nil); errors.As(err, &fe) {
			f = plainFault(fe.FieldPath(), f.detail)
			if strings.HasPrefix(f.detail, "unknown field") {
				f.detail += meantField(reflect.TypeOf(into), f.field)
			}
		}
		faults = append(faults, f)
	}
	return faults
}

// meantField asks for the field of a Go type's JSON that the last step of a path was probably meant to be.
func meantField(t reflect.Type, path string) string {
	names := steps(path)
	for i, name := range names {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
			continue
		case reflect.Struct:
		default:
			return ""
		}
		fields := jsonFields(t)
		next, ok := fields[name]
		switch {
		case i == len(names)-1:
			return didYouMean(name, sortedKeys(fields))
		case !ok:
			return ""
		}
		t = next
	}
	return ""
}

// jsonFields are the types of a struct's fields, by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	return fields
}

// validateMeta checks the metadata of an object whose name is a DNS subdomain.
func validateMeta(meta *metav1.ObjectMeta) field.ErrorList {
	return apivalidation.ValidateObjectMeta(meta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// decodeSecret reads a Secret. stringData is merged into data, as on the API server.
func decodeSecret(raw []byte) (*corev1.Secret, []fault) {
	var s corev1.Secret
	if faults := decodeStrict(raw, &s); len(faults) > 0 {
		return nil, faults
	}
	defaultNamespace(&s.ObjectMeta)
	errs := validateMeta(&s.ObjectMeta)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
	size := 0
	for key, value := range s.Data {
		size += len(value)
		errs = append(errs, validateConfigKey(field.NewPath("data"), key)...)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath("data"), "", corev1.MaxSecretSize))
	}
	return &s, faultsOf(errs)
}

// decodeConfigMap reads a ConfigMap.
func decodeConfigMap(raw []byte) (*corev1.ConfigMap, []fault) {
	var c corev1.ConfigMap
	if faults := decodeStrict(raw, &c); len(faults) > 0 {
		return nil, faults
	}
	defaultNamespace(&c.ObjectMeta)
	errs := validateMeta(&c.ObjectMeta)
	size := 0
	for key, value := range c.Data {
		size += len(value)
		errs = append(errs, validateConfigKey(field.NewPath("data"), key)...)
	}
	for key, value := range c.BinaryData {
		size += len(value)
		errs = append(errs, validateConfigKey(field.NewPath("binaryData"), key)...)
		if _, ok := c.Data[key]; ok {
			errs = append(errs, field.Invalid(field.NewPath("binaryData").Key(key), key, "is in data too"))
		}
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath("data"), "", corev1.MaxSecretSize))
	}
	return &c, faultsOf(errs)
}

func validateConfigKey(path *field.Path, key string) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Key(key), key, message))
	}
	return errs
}

// decodeSlice reads an EndpointSlice.
func decodeSlice(raw []byte) (*discoveryv1.EndpointSlice, []fault) {
	var s discoveryv1.EndpointSlice
	if faults := decodeStrict(raw, &s); len(faults) > 0 {
		return nil, faults
	}
	defaultNamespace(&s.ObjectMeta)
	return &s, faultsOf(validateSlice(&s))
}

func defaultNamespace(meta *metav1.ObjectMeta) {
	if meta.Namespace == "" {
		meta.Namespace = crdadmission.DefaultNamespace
	}
}
