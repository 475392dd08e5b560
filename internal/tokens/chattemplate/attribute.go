package chattemplate

import (
	"slices"
	"strings"
)

func (n *attribute) eval(r *run) Value { return r.attribute(n.of.eval(r), n) }

// attribute is of.name: what Python's getattr gives, else what of[name] gives.
func (r *run) attribute(of Value, n *attribute) Value {
	switch of.kind {
	case KindMissing:
		return of
	case KindUndefined:
		return r.fail(of.undefined().error())
	case KindDict:
		d := of.Dict()
		if n.isPython {
			if v, ok := r.method(of, n.name); ok {
				return v
			}
		}
		if i := d.find(n.name); i >= 0 {
			return d.entries[i].value
		}
		return n.undef.value()
	}
	if v, ok := r.pythonAttribute(of, n.name); ok {
		return v
	}
	return r.lacks(of, String(n.name))
}

// pythonAttribute is getattr(of, name); not ok where Python has no such attribute.
func (r *run) pythonAttribute(of Value, name string) (Value, bool) {
	switch of.kind {
	case KindUndefined:
		return r.fail(of.undefined().error()), true
	case kindNamespace:
		v, ok := of.namespace().Get(name)
		if ok && strings.HasPrefix(name, "_") {
			return r.unsafe(of, name), true
		}
		if !ok && isDunder(name) {
			return r.fail(unsupported("the attribute %q", name)), true
		}
		return v, ok
	case kindLoop:
		if v, ok := of.loop().get(r, name); ok {
			return v, true
		}
		if strings.HasPrefix(name, "_") {
			return r.fail(unsupported("the attribute %q of loop", name)), true
		}
		return Value{}, false
	}
	return r.method(of, name)
}

func isDunder(name string) bool {
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// unsafe is the undefined value for an attribute that must not be used.
func (r *run) unsafe(of Value, name string) Value {
	return r.newUndefined(undefined{
		hint:   "access to attribute " + string(appendQuoted(nil, name)) + " of '" + of.typeName() + "' object is unsafe.",
		unsafe: true,
	})
}

// pythonNames are the attributes of Python's types that are not known here, or differ between releases. Those that
// change a list or dict are unsafe in the sandbox: they are undefined.
var pythonNames = map[Kind]struct{ unknown, unsafe []string }{
	KindString: {unknown: []string{
		"casefold", "encode", "expandtabs", "format_map", "isascii", "isdecimal", "isidentifier", "isnumeric", "isprintable",
		"istitle", "maketrans", "swapcase", "translate",
	}},
	KindDict:   {unknown: []string{"fromkeys"}, unsafe: []string{"clear", "pop", "popitem", "setdefault", "update"}},
	KindList:   {unknown: []string{"clear", "pop"}, unsafe: []string{"append", "extend", "insert", "remove", "reverse", "sort"}},
	KindBool:   {unknown: intNames},
	KindInt:    {unknown: intNames},
	KindBigInt: {unknown: intNames},
	KindFloat:  {unknown: []string{"as_integer_ratio", "conjugate", "from_number", "fromhex", "hex", "imag", "is_integer", "real"}},
	kindRange:  {unknown: []string{"count", "index", "start", "step", "stop"}},
	kindView:   {unknown: []string{"isdisjoint", "mapping"}},
	kindIterator: {unknown: []string{
		"close", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw",
	}},
}

var intNames = []string{
	"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "is_integer", "numerator",
	"real", "to_bytes",
}

// isPythonName reports whether a name can be an attribute of some Python object.
func isPythonName(name string) bool {
	if isDunder(name) || dictMethods[name] != nil {
		return true
	}
	names := pythonNames[KindDict]
	return slices.Contains(names.unknown, name) || slices.Contains(names.unsafe, name)
}

// method is the attribute name of a builtin type, bound to of; not ok where the type has none.
func (r *run) method(of Value, name string) (Value, bool) {
	if isDunder(name) {
		return r.fail(unsupported("the attribute %q", name)), true
	}
	var call method
	switch of.kind {
	case KindString:
		if of.markup {
			return r.fail(unsupported("methods of escaped text")), true
		}
		if m := strMethods[name]; m != nil {
			call = func(r *run, self Value, a *args) Value { return m(r, self.Text(), a) }
		}
	case KindDict:
		call = dictMethods[name]
	case KindList:
		call = listMethods[name]
	case KindTuple:
		if name != "copy" {
			call = listMethods[name]
		}
	case kindFunction, kindMacro:
		return r.fail(unsupported("attributes of a %s", of.typeName())), true
	}
	if call != nil {
		return (&function{name: name, self: of, call: call}).value(), true
	}
	names := pythonNames[of.kind]
	switch {
	case slices.Contains(names.unsafe, name):
		return r.unsafe(of, name), true
	case slices.Contains(names.unknown, name):
		return r.fail(unsupported("the attribute %q of a %s", name, of.typeName())), true
	}
	return Value{}, false
}

var dictMethods = map[string]method{
	"items":  dictView(viewItems),
	"keys":   dictView(viewKeys),
	"values": dictView(viewValues),
	"get": func(r *run, self Value, a *args) Value {
		if len(a.names) > 0 {
			return r.typeError("dict.get() takes no keyword arguments")
		}
		v, ok := r.bind(a, "get", 1, "key", "default")
		if !ok || !r.key(v[0]) {
			return Value{}
		}
		if i := r.find(self.Dict(), v[0]); i >= 0 {
			return self.Dict().entries[i].value
		}
		return v[1].or(None())
	},
	"copy": func(r *run, self Value, a *args) Value {
		if _, ok := r.bind(a, "copy", 0); !ok {
			return Value{}
		}
		return self
	},
}

func dictView(of viewOf) method {
	return func(r *run, self Value, a *args) Value {
		if _, ok := r.bind(a, of.String(), 0); !ok {
			return Value{}
		}
		return (&viewValue{dict: self.Dict(), of: of}).value()
	}
}

// or is v, or another value where v is missing.
func (v Value) or(otherwise Value) Value {
	if v.kind == KindMissing {
		return otherwise
	}
	return v
}

var listMethods = map[string]method{
	"copy": func(r *run, self Value, a *args) Value {
		if _, ok := r.bind(a, "copy", 0); !ok {
			return Value{}
		}
		return self
	},
	"count": func(r *run, self Value, a *args) Value {
		v, ok := r.bind(a, "count", 1, "value")
		if !ok || !r.spend(int(self.n)) {
			return Value{}
		}
		n := int64(0)
		for _, item := range self.Items() {
			if r.equal(item, v[0]) {
				n++
			}
		}
		return Int(n)
	},
	"index": func(r *run, self Value, a *args) Value {
		v, ok := r.bind(a, "index", 1, "value", "start", "stop")
		if !ok || !r.spend(int(self.n)) {
			return Value{}
		}
		if v[1].kind != KindMissing {
			return r.fail(unsupported("index with bounds"))
		}
		for i, item := range self.Items() {
			if r.equal(item, v[0]) {
				return Int(int64(i))
			}
		}
		return r.raise("ValueError", "%s is not in list", r.repr(v[0]))
	},
}

// repr is repr(v), for messages.
func (r *run) repr(v Value) string {
	return shortRepr(v)
}

// loopMethods are the methods of the variable loop.
var loopMethods = map[string]method{
	"cycle": func(r *run, self Value, a *args) Value {
		if len(a.positional) == 0 || len(a.names) > 0 {
			return r.typeError("no items for cycling given")
		}
		return a.positional[self.loop().index0%len(a.positional)]
	},
	"changed": func(r *run, self Value, a *args) Value {
		if len(a.names) > 0 {
			return r.typeError("changed() takes no keyword arguments")
		}
		l, now := self.loop(), tuple(a.positional)
		if r.equal(l.lastChanged, now) {
			return Bool(false)
		}
		l.lastChanged = now
		return Bool(true)
	},
}
