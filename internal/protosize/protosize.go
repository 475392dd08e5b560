// Package protosize estimates what a protobuf message will take in memory, before it is decoded. A message of 1 MiB can consist of half a
// million empty messages of 2 bytes, which take about 100 bytes each when they are decoded.
package protosize

import (
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a field takes besides its bytes and the struct of a message, in bytes.
const (
	pointerCost = 24  // to a message in a list that grows
	stringCost  = 32  // its header, and what the allocator rounds up
	entryCost   = 256 // of a map that has one entry only
	choiceCost  = 32  // the wrapper of a oneof
	numberCost  = 16  // a number in a list that grows
	packedCost  = 8   // a number in a list of known length

	// maxDepth is how deeply messages can be nested. A message with more exceeds any limit.
	maxDepth = 64
	// maxNumber bounds the numbers of known fields. Of counts others as unknown.
	maxNumber = 1 << 10
)

// Shape is what is known of a type of message. It is safe for concurrent use.
type Shape struct {
	size   int64 // of the struct
	fields []field
}

type field struct {
	list, number bool
	wire         protowire.Type // of a number; protobuf keeps the bytes of one with another as it keeps unknown fields
	cost         int64          // besides bytes
	message      *Shape         // nil for others
}

// Of returns the shape of m's type.
func Of(m proto.Message) *Shape {
	return shapeOf(m.ProtoReflect(), map[protoreflect.FullName]*Shape{})
}

func shapeOf(m protoreflect.Message, done map[protoreflect.FullName]*Shape) *Shape {
	d := m.Descriptor()
	if s := done[d.FullName()]; s != nil {
		return s
	}
	s := &Shape{size: int64(reflect.TypeOf(m.Interface()).Elem().Size())}
	done[d.FullName()] = s
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i); f.Number() < maxNumber {
			s.put(f.Number(), fieldOf(m, f, done))
		}
	}
	return s
}

func (s *Shape) put(n protowire.Number, f field) {
	for len(s.fields) <= int(n) {
		s.fields = append(s.fields, field{})
	}
	s.fields[n] = f
}

func fieldOf(m protoreflect.Message, d protoreflect.FieldDescriptor, done map[protoreflect.FullName]*Shape) field {
	f := field{list: d.IsList()}
	if d.ContainingOneof() != nil {
		f.cost = choiceCost
	}
	switch {
	case d.IsMap():
		f.cost, f.message = entryCost, &Shape{}
		value := field{}
		if d.MapValue().Message() != nil {
			value.message = shapeOf(m.NewField(d).Map().NewValue().Message(), done)
			f.cost += value.message.size // also of an entry that names no value
		}
		f.message.put(2, value)
	case d.Message() != nil && d.IsList():
		f.message = shapeOf(m.NewField(d).List().NewElement().Message(), done)
		f.cost += pointerCost
	case d.Message() != nil:
		f.message = shapeOf(m.NewField(d).Message(), done)
		f.cost += pointerCost
	case d.Kind() == protoreflect.StringKind || d.Kind() == protoreflect.BytesKind:
	default:
		f.number, f.wire = true, wireType(d.Kind())
	}
	return f
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

// Decoded is about how many bytes a message will take when it is decoded, and whether they are at most a number. If they are more, it
// stops counting. Decoding a malformed message takes as much until it fails.
func (s *Shape) Decoded(raw []byte, most int64) (size int64, within bool) {
	c := count{size: s.size, most: most}
	c.message(s, raw, 0)
	return c.size, c.size <= most
}

type count struct{ size, most int64 }

// message counts the fields of a message. It is false if no more are to be counted.
func (c *count) message(s *Shape, raw []byte, depth int) bool {
	if depth > maxDepth {
		c.size = c.most + 1
		return false
	}
	for len(raw) > 0 {
		number, form, n := protowire.Number(raw[0]>>3), protowire.Type(raw[0]&7), 1
		if raw[0] < 1<<3 || raw[0] >= 0x80 { // not a number of one byte, as most are
			number, form, n = protowire.ConsumeTag(raw)
		}
		if n < 0 {
			return false
		}
		raw = raw[n:]
		var f field
		if int(number) < len(s.fields) {
			f = s.fields[number]
		}
		if form != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, form, raw); n < 0 {
				return false
			}
			switch {
			case !f.number || form != f.wire:
				c.size += 2 * int64(n+protowire.SizeTag(number)) // it is kept as it is
			case f.list:
				c.size += numberCost
			default:
				c.size += f.cost
			}
			raw = raw[n:]
		} else {
			value, n := consume(raw)
			if n < 0 || !c.bytes(&f, value, depth) {
				return false
			}
			raw = raw[n:]
		}
		if c.size > c.most {
			return false
		}
	}
	return true
}

// consume is protowire.ConsumeBytes, at less cost for short values.
func consume(raw []byte) (value []byte, n int) {
	if len(raw) > 0 && raw[0] < 0x80 && int(raw[0]) < len(raw) {
		n = int(raw[0]) + 1
		return raw[1:n], n
	}
	return protowire.ConsumeBytes(raw)
}

// bytes counts a field of bytes.
func (c *count) bytes(f *field, value []byte, depth int) bool {
	c.size += f.cost
	switch {
	case f.message != nil:
		c.size += f.message.size
		return c.message(f.message, value, depth+1)
	case f.list && f.number && f.wire == protowire.VarintType: // packed
		for _, b := range value {
			if b < 0x80 {
				c.size += packedCost
			}
		}
	default:
		c.size += stringCost + int64(len(value))
	}
	return true
}
