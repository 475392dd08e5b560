package chattemplate

// mentions reports whether the body loads the name, before it stores it.
func mentions(body []stmt, name string) bool {
	return mentioned(body, map[string]bool{name: true})[name]
}

// mentioned finds which of the names the body loads, each before it stores it.
func mentioned(body []stmt, names map[string]bool) map[string]bool {
	open := map[string]bool{}
	for name := range names {
		open[name] = true
	}
	found := map[string]bool{}
	for _, s := range body {
		walk(s, func(n node) {
			v, ok := n.(*name)
			switch {
			case ok && v.ctx == load && open[v.id]:
				found[v.id] = true
			case ok:
				delete(open, v.id)
			}
		})
	}
	return found
}
