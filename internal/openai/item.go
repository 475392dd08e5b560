package openai

import (
	"bytes"
	"crypto/sha256"
	"fmt"
)

// MaxItems is the most items that a Request lists.
const MaxItems = 4096

// ItemKind reports what an item is.
type ItemKind uint8

// The kinds of item.
const (
	// File is any other kind.
	File ItemKind = iota
	Image
	Audio
	Video

	numItemKinds int = iota
)

var itemKindNames = [numItemKinds]string{"file", "image", "audio", "video"}

func (k ItemKind) String() string {
	if int(k) < numItemKinds {
		return itemKindNames[k]
	}
	return fmt.Sprintf("ItemKind(%d)", uint8(k))
}

// Item is a content part that is neither text nor a tool's, such as an image. Request.ItemHash names its content.
type Item struct {
	Kind ItemKind
	// Message is the index of its message in the list of messages.
	Message int
	// At and End delimit the part in the body.
	At, End int
	// UUID is the client's name of the item (uuid), which engines use as its identity; empty without.
	UUID string

	data datum
}

// datum is the position of an item's content in the body: a string, or some other JSON value if raw.
type datum struct {
	span
	have, raw bool
}

// ItemHash identifies the content of an item of this request: equal data, or equal URLs where the data lie elsewhere,
// have equal hashes on all routes and replicas. The type that a data URL states does not count. ok is false when the
// part has neither. It takes time linear in the data, which is why Parse does not do it, and allocates only for what
// is written with escapes.
func (r *Request) ItemHash(it *Item) (hash [16]byte, ok bool) {
	d := it.data
	if !d.have {
		return hash, false
	}
	content := d.of(r.body)
	if d.escaped {
		n := len(r.text)
		r.text = appendString(r.text, content, -1)
		content, r.text = r.text[n:], r.text[:n]
	}
	if !d.raw && bytes.HasPrefix(content, []byte("data:")) {
		if comma := bytes.IndexByte(content, ','); comma >= 0 {
			content = content[comma+1:]
		}
	}
	sum := sha256.Sum256(content)
	return [16]byte(sum[:16]), true
}

// contentKeys are the keys of a part that can hold its content, the first one present counts; contentKinds what they
// say of a part without a type.
var (
	contentKeys = [...]string{
		"image_url", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds", "source", "file", "image",
		"file_data", "file_url", "file_id",
	}
	contentKinds = [len(contentKeys)]ItemKind{0: Image, 1: Audio, 2: Video, 3: Audio, 4: Image, 5: Audio, 8: Image}
	// innerKeys are the same within the value of such a key, if that is an object.
	innerKeys = [...]string{"url", "data", "file_data", "file_url", "file_id"}
)

// keyIndex is the index of name in list, or -1.
func keyIndex(list []string, name []byte) int {
	for i, k := range list {
		if string(name) == k {
			return i
		}
	}
	return -1
}

// content part types that are no items.
type partType uint8

const (
	untyped    partType = iota
	textPart            // text
	toolPart            // a tool's call, or what has no text
	toolResult          // a tool's answer, with parts of its own
	itemPart            // anything else
)

func partTypeOf(name []byte) (partType, ItemKind) {
	switch string(name) {
	case "text", "input_text", "output_text", "refusal", "thinking", "reasoning_text", "summary_text":
		return textPart, 0
	case "tool_use", "tool_reference", "redacted_thinking", "tool_addition", "tool_removal":
		return toolPart, 0
	case "tool_result":
		return toolResult, 0
	}
	kind := File
	switch {
	case bytes.Contains(name, []byte("image")):
		kind = Image
	case bytes.Contains(name, []byte("audio")):
		kind = Audio
	case bytes.Contains(name, []byte("video")):
		kind = Video
	}
	return itemPart, kind
}

// partial is a content part being read.
type partial struct {
	typ              partType
	kind             ItemKind
	text, uuid       span
	haveText, others bool // others: it has keys besides type and text
	haveUUID         bool
	contents         [len(contentKeys)]datum
	result           message // what is in a tool's answer
}

// contentPart reads one element of a message's content, which begins with c, depth levels inside. A part is text when its
// type is text, or when it has no type and nothing but text.
func (p *parser) contentPart(c byte, depth int, m *message) bool {
	if c == '"' {
		s, ok := p.messageText()
		m.text.add(s)
		return ok
	}
	if c != '{' {
		return p.skip(depth)
	}
	r := p.r
	at, items := p.i, len(r.Items)
	var d partial
	d.result.items = items
	if !p.object(depth, func(key span) bool { return p.partField(key, depth+1, &d) }) {
		return false
	}
	if d.typ != toolResult {
		r.Items = r.Items[:items]
	}
	if d.typ == untyped && d.haveText && !d.others {
		d.typ = textPart
	}
	switch d.typ {
	case textPart:
		if d.haveText {
			m.text.add(d.text)
		}
	case toolPart:
	case toolResult:
		m.multimodal = m.multimodal || d.result.multimodal
	default:
		m.multimodal = true
		p.item(&d, at)
	}
	return true
}

// partField reads one field of a content part.
func (p *parser) partField(key span, depth int, d *partial) bool {
	c := p.space()
	name := nameOf(p.b, key, &p.name)
	switch string(name) {
	case "type":
		d.typ = untyped
		if c != '"' {
			break
		}
		s, ok := p.str()
		d.typ, d.kind = partTypeOf(nameOf(p.b, s, &p.name))
		return ok
	case "text":
		if d.haveText = c == '"'; !d.haveText {
			break
		}
		var ok bool
		d.text, ok = p.messageText()
		return ok
	case "uuid":
		d.others = true
		if d.haveUUID = c == '"'; !d.haveUUID {
			break
		}
		var ok bool
		at := p.i
		d.uuid, ok = p.str()
		p.r.Steering |= repeats(name, p.i-at)
		return ok
	case "content":
		d.others = true
		return p.content(c, depth, &d.result)
	default:
		d.others = true
		if i := keyIndex(contentKeys[:], name); i >= 0 {
			return p.datum(c, depth, &d.contents[i], innerKeys[:])
		}
	}
	return p.skip(depth)
}

// datum reads a value that holds an item's content, or does in the first one present of its fields named in inner.
func (p *parser) datum(c byte, depth int, d *datum, inner []string) bool {
	*d = datum{have: c != 'n', raw: c != '"'}
	at := p.i
	var ok bool
	switch {
	case c == '"':
		d.span, ok = p.str()
		return ok
	case c != '{' || inner == nil:
		ok = p.skip(depth)
	default:
		var fields [len(innerKeys)]datum
		ok = p.object(depth, func(key span) bool {
			c := p.space()
			if i := keyIndex(inner, nameOf(p.b, key, &p.name)); i >= 0 {
				return p.datum(c, depth+1, &fields[i], nil)
			}
			return p.skip(depth + 1)
		})
		for _, f := range fields {
			if f.have && !f.raw {
				*d = f
				return ok
			}
		}
	}
	d.span = span{beg: at, end: p.i}
	return ok
}

// item takes over the part that begins at at and ends at p.i.
func (p *parser) item(d *partial, at int) {
	r := p.r
	if len(r.Items) >= MaxItems {
		return
	}
	it := Item{Kind: d.kind, Message: r.NumMessages - 1, At: at, End: p.i}
	if d.haveUUID {
		if it.UUID = view(d.uuid.of(p.b)); d.uuid.escaped {
			it.UUID = string(appendString(nil, d.uuid.of(p.b), -1))
		}
	}
	for i, content := range d.contents {
		if content.have {
			it.data = content
			if d.typ == untyped {
				it.Kind = contentKinds[i]
			}
			break
		}
	}
	r.Items = append(r.Items, it)
}
