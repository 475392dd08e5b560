package config

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

// Origin is where an object was read.
type Origin struct {
	// File is the base name in the directory; empty where objects are not read from files.
	File string
	// Document in the file, from 1; 0 for the entire file.
	Document int
	// Item of the list that the document is, from 1; 0 where the document is no list.
	Item int
}

// inFile reads document N, or document N item M; it is empty for the entire file.
func (o Origin) inFile() string {
	switch {
	case o.Document == 0:
		return ""
	case o.Item == 0:
		return fmt.Sprintf("document %d", o.Document)
	}
	return fmt.Sprintf("document %d item %d", o.Document, o.Item)
}

// Problem is why a part of the configuration is not applied.
type Problem struct {
	Origin
	// Object that it is about; zero when it is not known, or when it is about a file.
	Object ObjectKey
	// Field is the path of the field, empty when the problem is not with one.
	Field string
	// Detail describes the error. It never has the content of a Secret.
	Detail string
	// Kept reports whether the last good state of the object remains applied.
	Kept bool

	// at is where in the file the problem is, zero when that is not known.
	at place

	// needs is the pool that the object refers to and that is missing, zero in other problems.
	needs ObjectKey

	reason string // of the condition Accepted that shows it
}

// Error reads FILE:LINE:COLUMN: KIND NAMESPACE/NAME: FIELD: DETAIL, or has the number of the document where the line is not known.
func (p *Problem) Error() string {
	var parts []string
	add := func(part string) {
		if part != "" {
			parts = append(parts, part)
		}
	}
	add(p.where())
	add(p.Object.String())
	add(p.Field)
	add(p.Detail)
	text := strings.Join(parts, ": ")
	if p.Kept {
		text += " (the last good state stays in force)"
	}
	return text
}

// where is FILE:LINE:COLUMN, or the file and the number of the document in it.
func (p *Problem) where() string {
	if p.at.known() {
		return p.File + ":" + p.at.String()
	}
	return strings.Trim(p.File+": "+p.inFile(), ": ")
}

func (p *Problem) compare(o *Problem) int {
	follows := func(p *Problem) int {
		if p.needs != (ObjectKey{}) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(follows(p), follows(o)), cmp.Compare(p.File, o.File), cmp.Compare(p.Document, o.Document),
		cmp.Compare(p.Item, o.Item), p.Object.compare(o.Object))
}

// sortProblems by place, missing pools last, because they often follow from other problems. Those of one object stay in the order in
// which they were found.
func sortProblems(list []Problem) {
	slices.SortStableFunc(list, func(a, b Problem) int { return a.compare(&b) })
}

// explainMissing adds to problems with missing pools that the pool is there, but refused, and where.
func explainMissing(list []Problem) {
	for i := range list {
		p := &list[i]
		if p.needs == (ObjectKey{}) {
			continue
		}
		for j := range list {
			if q := &list[j]; q.Object == p.needs && q.needs == (ObjectKey{}) {
				p.Detail = fmt.Sprintf("Not found: %q: it is refused (%s)", p.needs, cmp.Or(q.where(), "see its problem"))
				break
			}
		}
	}
}
