// Package objects has what controllers share that keep objects by server-side apply: how an object is read and compared, and which
// errors of the API server do not end by themselves.
package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AnnotationApplied holds a hash of what was applied, so that a field that is not wanted any more is noticed after a
// restart, too.
const AnnotationApplied = "kvasir.dev/applied"

// Refused reports whether the API server does not accept a request because of what the request is: a quota, an admission
// policy or webhook, validation, or the rights of the operator. Other requests can succeed meanwhile.
func Refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	case http.StatusInternalServerError:
		return strings.Contains(err.Error(), "webhook") // it cannot be reached, and must not be bypassed
	}
	return false
}

// Live reads an object as it is: in its type where the operator knows it, because by that its changes are watched. (A
// cache of untyped objects is another one, and might lag behind the event that has brought us here.)
func Live(ctx context.Context, c client.Client, direct client.Reader, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	gvk := want.GroupVersionKind()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	into := client.Object(live)
	if typed, err := c.Scheme().New(gvk); err == nil {
		_, loose := typed.(*unstructured.Unstructured) // of a kind that some scheme knows by name only
		if o, ok := typed.(client.Object); ok && !loose {
			into = o
		}
	}
	err := c.Get(ctx, client.ObjectKeyFromObject(want), into)
	if apierrors.IsNotFound(err) { // the cache can have the operator's own objects only
		err = direct.Get(ctx, client.ObjectKeyFromObject(want), into)
	}
	if err != nil || into == client.Object(live) {
		return live, err
	}
	if live.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(into); err != nil {
		return nil, fmt.Errorf("reading fields: %w", err)
	}
	live.SetGroupVersionKind(gvk)
	return live, nil
}

// Mark puts the hash of an object that is to be applied into its annotation, and returns it.
func Mark(want *unstructured.Unstructured) (hash string, err error) {
	if hash, err = HashOf(want); err != nil {
		return "", err
	}
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[AnnotationApplied] = hash
	want.SetAnnotations(annotations)
	return hash, nil
}

// HashOf is a fingerprint of an object.
func HashOf(o *unstructured.Unstructured) (string, error) {
	raw, err := json.Marshal(o.Object)
	if err != nil {
		return "", fmt.Errorf("writing %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

// Holds reports whether a live object has all that is wanted; what the API server or others have added does not count.
func Holds(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(want) == 0 && live == nil
		}
		for k, v := range want {
			if !Holds(l[k], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(want) {
			return len(want) == 0 && live == nil
		}
		for i := range want {
			if !Holds(l[i], want[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(live) == fmt.Sprint(want) // numbers are decoded as int64 and float64
}
