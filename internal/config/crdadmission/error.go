package crdadmission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Error reports why an object was refused. It lists everything wrong with it, not only the first thing found.
type Error struct {
	// Kind, Namespace and Name of the object, each empty where it could not be read.
	Kind, Namespace, Name string
	// Problems, at least one: those of each step of the API server in turn, and of a step by their fields.
	Problems []Problem
}

// Problem is one thing wrong with an object.
type Problem struct {
	// Field is the path of the field in the object, such as spec.model.name; empty for the entire object.
	Field string
	// Detail describes the error in the words of an API server.
	Detail string
	// Meant is the known field that an unknown one was probably meant to be; empty if none is near.
	Meant string
}

// Error names the object and all problems in one line.
func (e *Error) Error() string {
	var b strings.Builder
	kind := e.Kind
	if kind == "" {
		kind = "object"
	}
	b.WriteString(kind)
	if name := strings.Trim(e.Namespace+"/"+e.Name, "/"); name != "" {
		b.WriteString(" " + name)
	}
	b.WriteString(" is refused: ")
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// String is the field and its error.
func (p Problem) String() string {
	if p.Field == "" {
		return p.Detail
	}
	return p.Field + ": " + p.Detail
}

func refuse(obj *unstructured.Unstructured, problems ...Problem) *Error {
	return &Error{Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), Problems: problems}
}

// problemsOf a step of the admission, by their fields: the step itself reports them in the random order of maps.
func problemsOf(errs field.ErrorList) []Problem {
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
	problems := make([]Problem, 0, len(errs))
	for _, e := range errs {
		path := e.Field
		if path == "<nil>" { // what a nil path is printed as
			path = ""
		}
		problems = append(problems, Problem{Field: path, Detail: e.ErrorBody()})
	}
	return problems
}

func describe(obj *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", obj.GetKind(), obj.GetNamespace(), obj.GetName())
}
