package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ObjectKey names an object.
type ObjectKey struct{ Kind, Namespace, Name string }

// String is what people read: KIND NAMESPACE/NAME.
func (k ObjectKey) String() string {
	if k == (ObjectKey{}) {
		return ""
	}
	return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
}

func (k ObjectKey) compare(o ObjectKey) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Origin tells where an object was read.
type Origin struct {
	// File is the base name in the directory; empty where objects do not come from files.
	File string
	// Document in the file, from 1; 0 for the file as a whole.
	Document int
	// Item of the list that the document is, from 1; 0 where the document is no list.
	Item int
}

// inFile reads document N, or document N item M; it is empty for the file as a whole.
func (o Origin) inFile() string {
	switch {
	case o.Document == 0:
		return ""
	case o.Item == 0:
		return fmt.Sprintf("document %d", o.Document)
	}
	return fmt.Sprintf("document %d item %d", o.Document, o.Item)
}

// Problem is why something that was written down is not in force.
type Problem struct {
	Origin
	// Object that it is about; zero when it is not known, or when it is about a file.
	Object ObjectKey
	// Field is the path of the field, empty when the problem is not with one.
	Field string
	// Detail says what is wrong. It never has the content of a Secret.
	Detail string
	// Kept tells that the last good state of the object stays in force.
	Kept bool

	reason string // of the condition Accepted that tells of it
}

// Error reads FILE: document N item M: KIND NAMESPACE/NAME: FIELD: DETAIL.
func (p *Problem) Error() string {
	var parts []string
	add := func(part string) {
		if part != "" {
			parts = append(parts, part)
		}
	}
	add(p.File)
	add(p.inFile())
	add(p.Object.String())
	add(p.Field)
	add(p.Detail)
	text := strings.Join(parts, ": ")
	if p.Kept {
		text += " (the last good state stays in force)"
	}
	return text
}

func (p *Problem) compare(o *Problem) int {
	return cmp.Or(cmp.Compare(p.File, o.File), cmp.Compare(p.Document, o.Document), cmp.Compare(p.Item, o.Item), p.Object.compare(o.Object))
}

// sortProblems by place; those of one object stay in the order in which they were found.
func sortProblems(list []Problem) {
	slices.SortStableFunc(list, func(a, b Problem) int { return a.compare(&b) })
}
