package chattemplate

// ContentFormat is the form in which messages reach a template.
type ContentFormat uint8

// The formats.
const (
	// ContentString: the content of a message is a string.
	ContentString ContentFormat = iota
	// ContentParts: the content is a list of parts with a type, as in OpenAI's API.
	ContentParts
)

// String is the engine's own word.
func (f ContentFormat) String() string {
	if f == ContentParts {
		return "openai"
	}
	return "string"
}

// contentFormat finds, as vLLM does, whether a template goes over the parts of a message's content: whether there is a
// loop over the content of what another loop takes out of the messages.
func contentFormat(body []stmt) ContentFormat {
	f := formatFinder{}
	for _, s := range body {
		walk(s, func(n node) {
			switch n := n.(type) {
			case *setStmt:
				f.sets = append(f.sets, n)
			case *forStmt:
				f.loops = append(f.loops, n)
			}
		})
	}
	messages, ok := f.assigned("messages")
	if !ok {
		return ContentString
	}
	var items []string
	for _, loop := range f.loops {
		if !isAny(loop.iter, messages, "") {
			continue
		}
		to, ok := loop.target.(*name)
		if !ok {
			return ContentString
		}
		items = append(items, to.id)
	}
	for _, loop := range f.loops {
		if isAny(loop.iter, items, "content") {
			if _, ok := loop.target.(*name); ok {
				return ContentParts
			}
			return ContentString
		}
	}
	return ContentString
}

type formatFinder struct {
	sets  []*setStmt
	loops []*forStmt
}

// assigned are the names that hold variable or a part of it; not ok where vLLM's search fails.
func (f *formatFinder) assigned(variable string) (names []string, ok bool) {
	names = []string{variable}
	for i := 0; i < len(names) && i < 1000; i++ {
		for _, s := range f.sets {
			if !isPart(s.value, names[i], "") {
				continue
			}
			to, ok := s.target.(*name)
			if !ok {
				return nil, false
			}
			if to.id != names[i] {
				names = append(names, to.id)
			}
		}
	}
	return names, true
}

func isAny(e expr, variables []string, key string) bool {
	for _, v := range variables {
		if isPart(e, v, key) {
			return true
		}
	}
	return false
}

// isPart reports whether e is a variable, or its attribute key if that is not empty: by itself, filtered, tested, or
// sliced.
func isPart(e expr, variable, key string) bool {
	switch e := e.(type) {
	case *filterExpr:
		return e.of != nil && isPart(e.of, variable, key)
	case *testExpr:
		return isPart(e.of, variable, key)
	case *subscript:
		if _, ok := e.index.(*slice); ok {
			return isPart(e.of, variable, key)
		}
		c, ok := e.index.(*constant)
		return key != "" && ok && c.value.kind == KindString && c.value.Text() == key && isPart(e.of, variable, "") && isName(e.of)
	case *attribute:
		return key != "" && e.name == key && isName(e.of) && isPart(e.of, variable, "")
	case *name:
		return key == "" && e.ctx == load && e.id == variable
	}
	return false
}

func isName(e expr) bool {
	_, ok := e.(*name)
	return ok
}
