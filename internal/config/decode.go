package config

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// fault is what is wrong with an object.
type fault struct{ field, detail string }

func faultsOf(errs field.ErrorList) []fault {
	var faults []fault
	for _, e := range errs {
		faults = append(faults, fault{field: e.Field, detail: e.ErrorBody()})
	}
	return faults
}

// decodeStrict reads an object as the API server does for clients that ask for strict validation: unknown and
// duplicate fields are errors.
func decodeStrict(raw []byte, into any) []fault {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		return []fault{{detail: err.Error()}}
	}
	var faults []fault
	for _, err := range strict {
		f := fault{detail: err.Error()}
		if fe := kjson.FieldError(nil); errors.As(err, &fe) {
			f.field = fe.FieldPath()
		}
		faults = append(faults, f)
	}
	return faults
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
