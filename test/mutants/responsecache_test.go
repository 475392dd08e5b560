package mutants

// Bugs of the response cache by which a client would get another's answer, an answer to another request, or no whole one.
func init() {
	const (
		lookup = "internal/picker/responses.go"
		proxy  = "./internal/gateway/httpproxy"
	)
	add := func(name, file, old, changed, pkg, test string) {
		mutants = append(mutants, mutant{name: name, file: file, old: old, new: changed, pkg: pkg, test: test})
	}
	add("response cache: tenants share answers", lookup, "in.Query, c.name, r.CacheSalt", "in.Query, r.CacheSalt", proxy, "TestAnswersStayWithTheirTenant")
	add("response cache: headers that are not known do not count", lookup, "		if heard(name, own) {", "		if !own && false {", proxy, "TestWhatIsNotAnsweredFromTheCache")
	add("response cache: chance is taken for the one answer", lookup, "err == nil && number == 0", "err == nil && number < 1", proxy, "TestWhatIsNotAnsweredFromTheCache")
	add("response cache: a tenant is not needed", lookup, "Tenants != nil && c.name", `Tenants != nil && c.name+"x"`, proxy, "TestClientsWithoutATenantShareNothing")
	add("response cache: a change of the pool keeps answers", lookup, "if reflect.DeepEqual(before, now) {", "if true || reflect.DeepEqual(before, now) {", proxy, "TestAChangeEmptiesTheCache")
	add("response cache: an answer outlives the change of its pool", "internal/respcache/recording.go", "	if c.closed {\n		c.counters", "	if false {\n		c.counters", "./internal/respcache", "TestWhatIsNotStored")
	add("response cache: half an answer is stored", "internal/gateway/httpproxy/replay.go", "case !a.Whole():", "case false:", proxy, "TestAnswersThatAreNotStored")
	add("response cache: a greedy tenant pushes others out", "internal/respcache/respcache.go", "return w[i].held > w[j].held ||", "return w[i].held < w[j].held ||", "./internal/respcache", "TestATenantKeepsItsAnswersBesideAGreedyOne")
	add("response cache: a request is copied to be compared", "internal/openai/canonical.go", "make([]byte, 0, canonicalPiece)", "make([]byte, 0, len(r.body))", "./internal/picker", "TestAKeyTakesNoCopyOfTheBody")
}
