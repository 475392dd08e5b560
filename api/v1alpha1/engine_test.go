package v1alpha1

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// Whatever Secret an engine's part of a pool names, pickers are let read it: no field is forgotten.
func TestEverySecretOfAnEngineIsNamed(t *testing.T) {
	var e Engine
	if names := e.SecretNames(); len(names) != 0 {
		t.Errorf("an engine without Secrets names %q", names)
	}
	var want []string
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		if v.Kind() != reflect.Struct {
			return
		}
		if key, ok := v.Addr().Interface().(*SecretKey); ok {
			key.Name = fmt.Sprint("secret-", len(want))
			want = append(want, key.Name)
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
	fill(reflect.ValueOf(&e).Elem())
	got := e.SecretNames()
	slices.Sort(got)
	if len(want) < 2 || !slices.Equal(got, want) {
		t.Errorf("Secrets %q, want %q", got, want)
	}
}
