package vllmsim

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unpack reads one MessagePack value: nil, int64, uint64, float64, string, []byte, []any, or map[string]any. It panics
// on what this package never writes.
func unpack(b []byte) (any, []byte) {
	c := b[0]
	b = b[1:]
	switch {
	case c < 0x80:
		return uint64(c), b
	case c < 0x90:
		return unpackMap(b, int(c&0x0f))
	case c < 0xa0:
		return unpackArray(b, int(c&0x0f))
	case c < 0xc0:
		return string(b[:c&0x1f]), b[c&0x1f:]
	case c >= 0xe0:
		return int64(int8(c)), b
	}
	switch c {
	case 0xc0:
		return nil, b
	case 0xc4:
		return b[1 : 1+int(b[0])], b[1+int(b[0]):]
	case 0xcb:
		return math.Float64frombits(binary.BigEndian.Uint64(b)), b[8:]
	case 0xcc:
		return uint64(b[0]), b[1:]
	case 0xcd:
		return uint64(binary.BigEndian.Uint16(b)), b[2:]
	case 0xce:
		return uint64(binary.BigEndian.Uint32(b)), b[4:]
	case 0xcf:
		return binary.BigEndian.Uint64(b), b[8:]
	case 0xd0:
		return int64(int8(b[0])), b[1:]
	case 0xd1:
		return int64(int16(binary.BigEndian.Uint16(b))), b[2:]
	case 0xd2:
		return int64(int32(binary.BigEndian.Uint32(b))), b[4:]
	case 0xd3:
		return int64(binary.BigEndian.Uint64(b)), b[8:]
	case 0xd9:
		return string(b[1 : 1+int(b[0])]), b[1+int(b[0]):]
	case 0xda:
		n := int(binary.BigEndian.Uint16(b))
		return string(b[2 : 2+n]), b[2+n:]
	case 0xdc:
		return unpackArray(b[2:], int(binary.BigEndian.Uint16(b)))
	case 0xdd:
		return unpackArray(b[4:], int(binary.BigEndian.Uint32(b)))
	}
	panic(fmt.Sprintf("unexpected MessagePack byte %#x", c))
}

func unpackArray(b []byte, n int) (any, []byte) {
	out := make([]any, n)
	for i := range out {
		out[i], b = unpack(b)
	}
	return out, b
}

func unpackMap(b []byte, n int) (any, []byte) {
	out := make(map[string]any, n)
	for range n {
		var k, v any
		k, b = unpack(b)
		v, b = unpack(b)
		out[k.(string)] = v
	}
	return out, b
}

func TestShortestForms(t *testing.T) {
	cases := map[string]struct {
		got  []byte
		want string
		back any
	}{
		"zero":                  {appendUint(nil, 0), "00", uint64(0)},
		"largest fixint":        {appendUint(nil, 127), "7f", uint64(127)},
		"one byte":              {appendUint(nil, 128), "cc80", uint64(128)},
		"two bytes":             {appendUint(nil, 256), "cd0100", uint64(256)},
		"four bytes":            {appendUint(nil, 1<<16), "ce00010000", uint64(1 << 16)},
		"eight bytes":           {appendUint(nil, 1<<32), "cf0000000100000000", uint64(1 << 32)},
		"minus one":             {appendInt(nil, -1), "ff", int64(-1)},
		"smallest negative fix": {appendInt(nil, -32), "e0", int64(-32)},
		"negative byte":         {appendInt(nil, -33), "d0df", int64(-33)},
		"negative two bytes":    {appendInt(nil, -129), "d1ff7f", int64(-129)},
		"negative four bytes":   {appendInt(nil, -32769), "d2ffff7fff", int64(-32769)},
		"negative eight bytes":  {appendInt(nil, -1<<63), "d38000000000000000", int64(-1 << 63)},
		"positive as int":       {appendInt(nil, 300), "cd012c", uint64(300)},
		"float":                 {appendFloat(nil, 1.5), "cb3ff8000000000000", 1.5},
		"empty array":           {appendArray(nil, 0), "90", []any{}},
		"bytes":                 {appendBytes(nil, []byte{1, 2}), "c4020102", []byte{1, 2}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprintf("%x", tc.got); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			back, rest := unpack(tc.got)
			if diff := cmp.Diff(tc.back, back); diff != "" || len(rest) != 0 {
				t.Errorf("reads back (-want +got):\n%s%d bytes left", diff, len(rest))
			}
		})
	}
	for _, n := range []int{0, 31, 32, 255, 256, 70_000} {
		s := string(make([]byte, n))
		if n < 1<<16 {
			if back, _ := unpack(appendString(nil, s)); back != s {
				t.Errorf("a string of %d bytes does not read back", n)
			}
		}
		if _, rest := unpack(appendTokens(nil, make([]uint32, n))); len(rest) != 0 {
			t.Errorf("an array of %d leaves %d bytes", n, len(rest))
		}
	}
}
