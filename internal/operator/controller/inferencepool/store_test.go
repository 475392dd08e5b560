package inferencepool

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// store is the little of an API server that the controller needs of one, and fast: versions, preconditions, and
// patches. The fake client does the same with more care; both are used.
type store struct {
	client.WithWatch // nil: what is not here is not called
	objects          map[string]client.Object
	version          int
}

func keyOf(obj client.Object) string {
	return reflect.TypeOf(obj).String() + "/" + obj.GetNamespace() + "/" + obj.GetName()
}

var anyResource = schema.GroupResource{Resource: "objects"}

// put keeps a copy with a new version, which the caller's object gets, too.
func (s *store) put(obj client.Object) {
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[keyOf(obj)] = obj.DeepCopyObject().(client.Object)
}

func (s *store) find(obj client.Object) (client.Object, error) {
	got, ok := s.objects[keyOf(obj)]
	if !ok {
		return nil, apierrors.NewNotFound(anyResource, obj.GetName())
	}
	return got, nil
}

// into copies an object into another of its type.
func into(from, to client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

// Get implements client.Client.
func (s *store) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	obj.SetNamespace(key.Namespace)
	obj.SetName(key.Name)
	got, err := s.find(obj)
	if err == nil {
		into(got, obj)
	}
	return err
}

// List implements client.Client.
func (s *store) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	kind := "*" + items.Type().Elem().String() + "/"
	var keys []string
	for key, obj := range s.objects {
		if strings.HasPrefix(key, kind) && (o.Namespace == "" || obj.GetNamespace() == o.Namespace) &&
			(o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(obj.GetLabels()))) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	items.SetZero()
	for _, key := range keys {
		items.Set(reflect.Append(items, reflect.ValueOf(s.objects[key].DeepCopyObject()).Elem()))
	}
	return nil
}

// Create implements client.Client.
func (s *store) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	if _, err := s.find(obj); err == nil {
		return apierrors.NewAlreadyExists(anyResource, obj.GetName())
	}
	s.put(obj)
	return nil
}

// Update implements client.Client. It succeeds only if the object has not changed since it was read.
func (s *store) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	got, err := s.find(obj)
	if err != nil {
		return err
	}
	if got.GetUID() != obj.GetUID() || got.GetResourceVersion() != obj.GetResourceVersion() {
		return apierrors.NewConflict(anyResource, obj.GetName(), nil)
	}
	s.put(obj)
	return nil
}

// Delete implements client.Client. There is no grace.
func (s *store) Delete(_ context.Context, obj client.Object, opts ...client.DeleteOption) error {
	got, err := s.find(obj)
	if err != nil {
		return err
	}
	if p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions; p != nil {
		if p.UID != nil && *p.UID != got.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != got.GetResourceVersion() {
			return apierrors.NewConflict(anyResource, obj.GetName(), fmt.Errorf("precondition"))
		}
	}
	delete(s.objects, keyOf(obj))
	return nil
}

// Patch implements client.Client.
func (s *store) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	got, err := s.find(obj)
	if err != nil {
		return err
	}
	change, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var said struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(change, &said); err != nil {
		return err
	}
	if m := said.Metadata; m.UID != "" && m.UID != got.GetUID() || m.ResourceVersion != "" && m.ResourceVersion != got.GetResourceVersion() {
		return apierrors.NewConflict(anyResource, obj.GetName(), nil)
	}
	before, err := json.Marshal(got)
	if err != nil {
		return err
	}
	var after []byte
	if patch.Type() == types.StrategicMergePatchType {
		after, err = strategicpatch.StrategicMergePatch(before, change, &corev1.Pod{})
	} else {
		after, err = mergePatch(before, change)
	}
	if err != nil {
		return err
	}
	fresh := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(client.Object)
	if err := json.Unmarshal(after, fresh); err != nil {
		return err
	}
	s.put(fresh)
	into(fresh, obj)
	return nil
}

// Status implements client.Client. Writes through it change nothing but the status.
func (s *store) Status() client.SubResourceWriter { return statusOf{s} }

// SubResource implements client.Client.
func (s *store) SubResource(string) client.SubResourceClient { return statusOf{s} }

// mergePatch is RFC 7386.
func mergePatch(before, change []byte) ([]byte, error) {
	var document, patch map[string]any
	if err := json.Unmarshal(before, &document); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(change, &patch); err != nil {
		return nil, err
	}
	return json.Marshal(merge(document, patch))
}

func merge(document, patch map[string]any) map[string]any {
	if document == nil {
		document = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(document, k)
		case map[string]any:
			inner, _ := document[k].(map[string]any)
			document[k] = merge(inner, v)
		default:
			document[k] = v
		}
	}
	return document
}

type statusOf struct{ *store }

func (s statusOf) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return fmt.Errorf("not here")
}

func (s statusOf) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	return fmt.Errorf("not here")
}

func (s statusOf) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return fmt.Errorf("not here")
}

func (s statusOf) Update(ctx context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	return s.store.Update(ctx, obj)
}

func (s statusOf) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.store.Patch(ctx, obj, patch)
}
