package mutants

// Bugs of copies for mirrors, by which a client, or the mirror's engines, would notice more of them than they should.
func init() {
	const mirror, proxy = "internal/gateway/httpproxy/mirror.go", "./internal/gateway/httpproxy"
	add := func(name, old, changed, test string) {
		mutants = append(mutants, mutant{name: name, file: mirror, old: old, new: changed, pkg: proxy, test: test})
	}
	add("mirrors: copies under way share an id", `c.id, c.leaveID = e.proxy.ids.enter(e.client.engineID + "-mirror")`,
		`c.id, c.leaveID = e.client.engineID+"-mirror", func() {}`, "TestCopiesUnderWayHaveIDsOfTheirOwn")
	add("mirrors: the id of a copy is kept", "	c.leaveID()\n", "", "TestCopiesUnderWayHaveIDsOfTheirOwn")
	add("mirrors: engines get the client's cookies", `[]string{"Content-Type", "Accept"`, `[]string{"Cookie", "Content-Type", "Accept"`, "TestWhatAMirrorGets")
}
