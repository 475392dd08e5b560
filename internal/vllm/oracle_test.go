package vllm

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
)

// This file is the obvious slow way to do what the decoder does: MessagePack (or the JSON beside the golden frames)
// to generic values, generic values to events. Values are nil, bool, int64, uint64 (when above int64), float64,
// string, []byte, []any, pairs and other.
type (
	pair  struct{ key, value any }
	pairs []pair
	other struct{}
)

var errShort = errors.New("not MessagePack")

// generic decodes one object and returns the rest of the bytes.
func generic(b []byte) (any, []byte, error) {
	if len(b) == 0 {
		return nil, nil, errShort
	}
	c, rest := b[0], b[1:]
	number := func(width int) (uint64, []byte, error) {
		if len(rest) < width {
			return 0, nil, errShort
		}
		var wide [8]byte
		copy(wide[8-width:], rest[:width])
		return binary.BigEndian.Uint64(wide[:]), rest[width:], nil
	}
	sized := func(width, extra int) ([]byte, []byte, error) {
		n, rest, err := number(width)
		if err != nil || n+uint64(extra) > uint64(len(rest)) {
			return nil, nil, errShort
		}
		return rest[:n+uint64(extra)], rest[n+uint64(extra):], nil
	}
	switch {
	case c < 0x80:
		return int64(c), rest, nil
	case c < 0x90:
		return genericMap(uint64(c&15), rest)
	case c < 0xa0:
		return genericArray(uint64(c&15), rest)
	case c < 0xc0:
		if n := int(c & 31); n <= len(rest) {
			return string(rest[:n]), rest[n:], nil
		}
		return nil, nil, errShort
	case c >= 0xe0:
		return int64(int8(c)), rest, nil
	}
	switch c {
	case 0xc0:
		return nil, rest, nil
	case 0xc2, 0xc3:
		return c == 0xc3, rest, nil
	case 0xc4, 0xc5, 0xc6:
		data, rest, err := sized(1<<(c-0xc4), 0)
		return append([]byte{}, data...), rest, err
	case 0xc7, 0xc8, 0xc9:
		_, rest, err := sized(1<<(c-0xc7), 1)
		return other{}, rest, err
	case 0xca:
		v, rest, err := number(4)
		return float64(math.Float32frombits(uint32(v))), rest, err
	case 0xcb:
		v, rest, err := number(8)
		return math.Float64frombits(v), rest, err
	case 0xcc, 0xcd, 0xce, 0xcf:
		v, rest, err := number(1 << (c - 0xcc))
		return unsigned(v), rest, err
	case 0xd0:
		v, rest, err := number(1)
		return int64(int8(v)), rest, err
	case 0xd1:
		v, rest, err := number(2)
		return int64(int16(v)), rest, err
	case 0xd2:
		v, rest, err := number(4)
		return int64(int32(v)), rest, err
	case 0xd3:
		v, rest, err := number(8)
		return int64(v), rest, err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		n := 1 + 1<<(c-0xd4)
		if len(rest) < n {
			return nil, nil, errShort
		}
		return other{}, rest[n:], nil
	case 0xd9, 0xda, 0xdb:
		data, rest, err := sized(1<<(c-0xd9), 0)
		return string(data), rest, err
	case 0xdc, 0xdd:
		n, rest, err := number(2 << (c - 0xdc))
		if err != nil {
			return nil, nil, err
		}
		return genericArray(n, rest)
	case 0xde, 0xdf:
		n, rest, err := number(2 << (c - 0xde))
		if err != nil {
			return nil, nil, err
		}
		return genericMap(n, rest)
	}
	return nil, nil, errShort
}

func unsigned(v uint64) any {
	if v <= math.MaxInt64 {
		return int64(v)
	}
	return v
}

func genericArray(n uint64, b []byte) (any, []byte, error) {
	out := []any{}
	for range n {
		v, rest, err := generic(b)
		if err != nil {
			return nil, nil, err
		}
		out, b = append(out, v), rest
	}
	return out, b, nil
}

func genericMap(n uint64, b []byte) (any, []byte, error) {
	out := pairs{}
	for range n {
		k, rest, err := generic(b)
		if err != nil {
			return nil, nil, err
		}
		v, rest, err := generic(rest)
		if err != nil {
			return nil, nil, err
		}
		out, b = append(out, pair{k, v}), rest
	}
	return out, b, nil
}

// fromJSON reads the "decoded" form beside a golden frame. Values that JSON lacks are {"$int": "..."} and
// {"$bytes_hex": "..."}.
func fromJSON(raw json.RawMessage) (any, error) {
	switch raw[0] {
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		out := []any{}
		for _, item := range list {
			v, err := fromJSON(item)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, err
		}
		var text string
		if v, ok := object["$int"]; ok {
			if err := json.Unmarshal(v, &text); err != nil {
				return nil, err
			}
			return fromJSON(json.RawMessage(text))
		}
		if v, ok := object["$bytes_hex"]; ok {
			if err := json.Unmarshal(v, &text); err != nil {
				return nil, err
			}
			return hex.DecodeString(text)
		}
		out := pairs{}
		for k, item := range object {
			v, err := fromJSON(item)
			if err != nil {
				return nil, err
			}
			out = append(out, pair{k, v})
		}
		return out, nil
	case '"':
		var text string
		return text, json.Unmarshal(raw, &text)
	case 'n':
		return nil, nil
	}
	var i int64
	if json.Unmarshal(raw, &i) == nil {
		return i, nil
	}
	var u uint64
	if json.Unmarshal(raw, &u) == nil {
		return u, nil
	}
	var f float64
	return f, json.Unmarshal(raw, &f)
}
