package chatprompt

import "github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"

// tools converts the tools to the form in which the template gets them: their fields in a fixed order, None for absent
// ones. The result is None if there are no tools.
func (q *request) tools() (chattemplate.Value, error) {
	v, ok, err := q.member("tools")
	if !ok {
		return chattemplate.None(), err
	}
	items := v.Items()
	if v.Kind() != chattemplate.KindList || len(items) == 0 {
		return v, unsupported("tools that are no list, or an empty one")
	}
	if q.options.ExcludeTools {
		choice, _, err := q.member("tool_choice")
		if err != nil || choice.Text() == "none" {
			return chattemplate.None(), err
		}
	}
	out := q.arena.NewList(len(items))
	for i, item := range items {
		tool := item.Dict()
		if tool == nil {
			return v, unsupported("tools of an unusual type")
		}
		dump, err := q.tool(tool)
		if err != nil {
			return v, err
		}
		out[i] = dump
	}
	return chattemplate.List(out), nil
}

func (q *request) tool(tool *chattemplate.Dict) (v chattemplate.Value, err error) {
	for i := range tool.Len() {
		if key, _ := tool.At(i); key.Text() != "type" && key.Text() != "function" {
			return v, unsupported("tools with unusual fields")
		}
	}
	if kind, ok := tool.Get("type"); ok && kind.Text() != "function" {
		return v, unsupported("tools that are no functions")
	}
	given, _ := tool.Get("function")
	function, err := q.function(given.Dict())
	if err != nil {
		return v, err
	}
	out := q.arena.NewDict(2)
	out.Set("type", chattemplate.String("function"))
	out.Set("function", function.Value())
	return out.Value(), nil
}

func (q *request) function(given *chattemplate.Dict) (*chattemplate.Dict, error) {
	out := q.arena.NewDict(4)
	name, _ := given.Get("name")
	if name.Kind() != chattemplate.KindString {
		return nil, unsupported("functions without a name")
	}
	out.Set("name", name)
	for _, field := range optionalFields {
		v, ok := given.Get(field.name)
		if !ok {
			v = chattemplate.None()
		}
		if v.Kind() != field.kind && v.Kind() != chattemplate.KindNone {
			return nil, unsupported("functions of an unusual type")
		}
		out.Set(field.name, v)
	}
	for i := range given.Len() {
		switch key, v := given.At(i); key.Text() {
		case "name", "description", "parameters":
		case "strict":
			// All releases keep it, behind the others; whether it is kept when it is null depends on the release.
			if v.Kind() != chattemplate.KindBool {
				return nil, unsupported("functions with an unusual strict")
			}
			out.Set("strict", v)
		default:
			return nil, unsupported("functions with unusual fields")
		}
	}
	return out, nil
}

// optionalFields of a function, in the engine's order.
var optionalFields = []struct {
	name string
	kind chattemplate.Kind
}{
	{"description", chattemplate.KindString},
	{"parameters", chattemplate.KindDict},
}
