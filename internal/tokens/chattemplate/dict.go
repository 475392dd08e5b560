package chattemplate

// entry is one pair of a dict.
type entry struct{ key, value Value }

// indexFrom is the number of entries from which a Dict has an index. Below it, looking at each is faster.
const indexFrom = 16

// Dict is a dict: its entries keep the order in which their keys were first added. The zero value is empty.
type Dict struct {
	entries []entry
	index   map[string]int32 // of the string keys, once there are indexFrom entries
}

// Len is the number of entries.
func (d *Dict) Len() int {
	if d == nil {
		return 0
	}
	return len(d.entries)
}

// At is the i-th entry. Its key is a string unless a template made the dict.
func (d *Dict) At(i int) (key, value Value) { return d.entries[i].key, d.entries[i].value }

// Get is the value under a key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].value, true
	}
	return Value{}, false
}

// Set puts a value under a key: in the place of the one that was there, or at the end. A Dict that might be in use must
// not be changed.
func (d *Dict) Set(key string, v Value) { d.set(String(key), v) }

func (d *Dict) find(key string) int {
	if d == nil {
		return -1
	}
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.entries {
		if k := &d.entries[i].key; k.kind == KindString && int(k.n) == len(key) && k.Text() == key {
			return i
		}
	}
	return -1
}

// set is Set for a key that is a value already, a string.
func (d *Dict) set(key, v Value) {
	if i := d.find(key.Text()); i >= 0 {
		d.entries[i].value = v
		return
	}
	d.add(key, v)
}

// add appends an entry whose key is new.
func (d *Dict) add(key, v Value) {
	d.entries = append(d.entries, entry{key, v})
	switch {
	case d.index != nil:
		if key.kind == KindString {
			d.index[key.Text()] = int32(len(d.entries) - 1)
		}
	case len(d.entries) >= indexFrom:
		d.buildIndex()
	}
}

func (d *Dict) buildIndex() {
	d.index = make(map[string]int32, 2*len(d.entries))
	for i := range d.entries {
		if k := d.entries[i].key; k.kind == KindString {
			d.index[k.Text()] = int32(i)
		}
	}
}

// viewOf is the part of a dict that a view shows.
type viewOf uint8

const (
	viewKeys viewOf = iota
	viewValues
	viewItems
)

func (o viewOf) String() string { return [...]string{"dict_keys", "dict_values", "dict_items"}[o] }

// viewValue is what a dict's keys, values and items give.
type viewValue struct {
	dict *Dict
	of   viewOf
}

// at is the i-th element.
func (x *viewValue) at(a *Arena, i int) Value {
	e := &x.dict.entries[i]
	switch x.of {
	case viewKeys:
		return e.key
	case viewValues:
		return e.value
	}
	pair := a.values.take(2)
	pair[0], pair[1] = e.key, e.value
	return tuple(pair)
}

// rangeValue is a range: start, start+step, and so on before stop. Its length is at most maxRange.
type rangeValue struct{ start, stop, step int64 }

func (x *rangeValue) len() int {
	switch {
	case x.step > 0 && x.start < x.stop:
		return int((uint64(x.stop-1)-uint64(x.start))/uint64(x.step)) + 1
	case x.step < 0 && x.start > x.stop:
		return int((uint64(x.start)-1-uint64(x.stop))/-uint64(x.step)) + 1
	}
	return 0
}

func (x *rangeValue) at(i int) Value { return Int(x.start + int64(i)*x.step) }
