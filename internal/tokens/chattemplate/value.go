package chattemplate

import (
	"math"
	"math/big"
	"unsafe"
)

// Kind is the type of a Value, in Python's terms.
type Kind uint8

// The kinds. Only those from KindNone to KindDict can be made outside of this package.
const (
	// KindMissing is the zero Value: no value at all.
	KindMissing Kind = iota
	KindUndefined
	KindNone
	KindBool
	KindInt
	KindBigInt // an integer beyond 64 bits
	KindFloat
	KindString
	KindList
	KindTuple
	KindDict
	kindRange
	kindView // of a dict: its keys, values or items
	kindIterator
	kindNamespace
	kindLoop
	kindFunction // a builtin, or a method with its object
	kindMacro
)

// Value is one value of a template. It is small and copied freely; what it refers to (text, elements, a dict) must not
// change while it is used.
//
// What n and p hold: KindBool and KindInt the number in n, KindFloat its bits; KindString, KindList and KindTuple the
// length in n and the bytes or elements in p; the others a pointer to their struct in p.
type Value struct {
	kind Kind
	// markup marks a string that the filters safe or escape made.
	markup bool
	n      uint64
	p      unsafe.Pointer
}

// None is Python's None.
func None() Value { return Value{kind: KindNone} }

// Bool is True or False.
func Bool(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.n = 1
	}
	return v
}

// Int is an integer.
func Int(i int64) Value { return Value{kind: KindInt, n: uint64(i)} }

// Float is a floating-point number.
func Float(f float64) Value { return Value{kind: KindFloat, n: math.Float64bits(f)} }

// String is a text, which must be UTF-8.
func String(s string) Value {
	return Value{kind: KindString, n: uint64(len(s)), p: unsafe.Pointer(unsafe.StringData(s))}
}

// List is a list of items, which it keeps.
func List(items []Value) Value {
	return Value{kind: KindList, n: uint64(len(items)), p: unsafe.Pointer(unsafe.SliceData(items))}
}

func tuple(items []Value) Value {
	v := List(items)
	v.kind = KindTuple
	return v
}

// Value is d as a value.
func (d *Dict) Value() Value { return Value{kind: KindDict, p: unsafe.Pointer(d)} }

func bigInt(i *big.Int) Value { return Value{kind: KindBigInt, p: unsafe.Pointer(i)} }

// Kind is the type of v.
func (v Value) Kind() Kind { return v.kind }

// Text is the text of a string, empty for any other kind.
func (v Value) Text() string {
	if v.kind != KindString || v.n == 0 {
		return ""
	}
	return unsafe.String((*byte)(v.p), int(v.n))
}

// Items are the elements of a list or tuple, nil for any other kind. They must not be changed.
func (v Value) Items() []Value {
	if v.kind != KindList && v.kind != KindTuple || v.n == 0 {
		return nil
	}
	return unsafe.Slice((*Value)(v.p), int(v.n))
}

// Dict is the dict that v is, or nil.
func (v Value) Dict() *Dict {
	if v.kind != KindDict {
		return nil
	}
	return (*Dict)(v.p)
}

func (v Value) int() int64             { return int64(v.n) }
func (v Value) float() float64         { return math.Float64frombits(v.n) }
func (v Value) big() *big.Int          { return (*big.Int)(v.p) }
func (v Value) undefined() *undefined  { return (*undefined)(v.p) }
func (v Value) rangeOf() *rangeValue   { return (*rangeValue)(v.p) }
func (v Value) view() *viewValue       { return (*viewValue)(v.p) }
func (v Value) iterator() *iterator    { return (*iterator)(v.p) }
func (v Value) namespace() *Dict       { return (*Dict)(v.p) }
func (v Value) loop() *loopState       { return (*loopState)(v.p) }
func (v Value) function() *function    { return (*function)(v.p) }
func (v Value) macro() *macroValue     { return (*macroValue)(v.p) }
func (v Value) isInt() bool            { return v.kind == KindInt || v.kind == KindBool }
func (v Value) isNumber() bool         { return v.kind >= KindBool && v.kind <= KindFloat }
func (u *undefined) value() Value      { return Value{kind: KindUndefined, p: unsafe.Pointer(u)} }
func (x *rangeValue) value() Value     { return Value{kind: kindRange, p: unsafe.Pointer(x)} }
func (x *viewValue) value() Value      { return Value{kind: kindView, p: unsafe.Pointer(x)} }
func (x *iterator) value() Value       { return Value{kind: kindIterator, p: unsafe.Pointer(x)} }
func (x *loopState) value() Value      { return Value{kind: kindLoop, p: unsafe.Pointer(x)} }
func (x *function) value() Value       { return Value{kind: kindFunction, p: unsafe.Pointer(x)} }
func (x *macroValue) value() Value     { return Value{kind: kindMacro, p: unsafe.Pointer(x)} }
func namespaceValue(attrs *Dict) Value { return Value{kind: kindNamespace, p: unsafe.Pointer(attrs)} }
func (v Value) withMarkup() Value      { v.markup = true; return v }
func view(b []byte) string             { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Truth is bool(v).
func (v Value) Truth() bool {
	switch v.kind {
	case KindMissing, KindUndefined, KindNone:
		return false
	case KindFloat:
		return v.float() != 0
	case KindBool, KindInt, KindString, KindList, KindTuple:
		return v.n != 0
	case KindDict:
		return v.Dict().Len() > 0
	case kindRange:
		return v.rangeOf().len() > 0
	case kindView:
		return v.view().dict.Len() > 0
	}
	return true
}

// typeName is the name of v's type in Python.
func (v Value) typeName() string {
	switch v.kind {
	case KindNone:
		return "NoneType"
	case KindBool:
		return "bool"
	case KindInt, KindBigInt:
		return "int"
	case KindFloat:
		return "float"
	case KindString:
		if v.markup {
			return "Markup"
		}
		return "str"
	case KindList:
		return "list"
	case KindTuple:
		return "tuple"
	case KindDict:
		return "dict"
	case kindRange:
		return "range"
	case kindView:
		return v.view().of.String()
	case kindIterator:
		return v.iterator().name
	case kindNamespace:
		return "Namespace"
	case kindLoop:
		return "LoopContext"
	case kindFunction:
		if v.function().self.kind == KindMissing {
			return "function"
		}
		return "builtin_function_or_method"
	case kindMacro:
		return "Macro"
	}
	return "Undefined"
}

// undefined records why a value is undefined. Only its use is an error.
type undefined struct {
	// hint is the message, unless empty.
	hint string
	// of is the type of the object that lacks name; empty when name is a variable.
	of string
	// name of the variable or attribute, or the key.
	name Value
	// unsafe: the attribute is there but must not be used.
	unsafe bool
}

func (u *undefined) error() *RaisedError {
	class := "UndefinedError"
	if u.unsafe {
		class = "SecurityError"
	}
	switch {
	case u.hint != "":
		return &RaisedError{Class: class, Msg: u.hint}
	case u.of == "":
		return &RaisedError{Class: class, Msg: string(appendQuoted(nil, u.name.Text())) + " is undefined"}
	case u.name.kind != KindString:
		return &RaisedError{Class: class, Msg: u.of + " has no element " + shortRepr(u.name)}
	}
	return &RaisedError{Class: class, Msg: string(appendQuoted(nil, u.of)) + " has no attribute " + string(appendQuoted(nil, u.name.Text()))}
}

// ownerName is how messages about undefined values name the type of an object.
func ownerName(v Value) string {
	switch v.kind {
	case KindNone:
		return "None"
	case KindString:
		if !v.markup {
			return "str object"
		}
	case KindList:
		return "list object"
	case KindDict:
		return "dict object"
	case kindNamespace:
		return "jinja2.utils.Namespace object"
	case kindLoop:
		return "jinja2.runtime.LoopContext object"
	case kindMacro:
		return "jinja2.runtime.Macro object"
	}
	return v.typeName() + " object"
}
