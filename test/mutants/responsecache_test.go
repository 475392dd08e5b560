package mutants

// Bugs of the response cache by which a client would get another's answer, an answer to another request, or no whole one.
func init() {
	const (
		lookup = "internal/picker/responses.go"
		proxy  = "./internal/gateway/httpproxy"
	)
	const similar = "internal/picker/similar.go"
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
	add("semantic cache: tenants share answers", similar, `	write(h, "similar")
	v.writeAround(h, in, r, c)`, `	write(h, "similar")
	v.writeAround(h, in, r, &caller{})`, proxy, "TestSimilarAnswersStayWithTheirTenant")
	add("semantic cache: all else need not be equal", similar, "if !r.WriteCanonicalWithout(h, &q) {", "if false {", proxy, "TestWhatIsNeverSimilar")
	add("semantic cache: numbers need not be equal", similar, "	write(h, numbers...)", "", proxy, "TestWhatIsNeverSimilar")
	add("semantic cache: answers repeat another prompt", similar, "if value, known := r.Raw(name); value != nil || !known {", "if _, known := r.Raw(name); !known {", proxy, "TestWhatIsNeverSimilar")
	add("semantic cache: a service that finds all alike is believed", similar, "case respcache.Similarity(vector, mark) >= spec.Least:", "case false:", proxy, "TestServicesThatLieOrFail")
	add("semantic cache: vectors of two models are compared", "internal/respcache/similar.go", "Similarity(c.mark, mark) < sameMark {", "false {", proxy, "TestAnotherModelBehindTheService")
	add("semantic cache: the client cannot refuse", "internal/picker/responses.go", `strings.EqualFold(value, "exact")`, "false", proxy, "TestWhatIsNeverSimilar")
	add("semantic cache: a vector takes no memory", "internal/respcache/similar.go", "	c.weigh(e, vectorSize(l.Vector))", "", "./internal/respcache", "TestTheCacheAgreesWithAPlainOne")
	add("semantic cache: the signs of numbers do not count", similar, "!unicode.In(c, unicode.N, unicode.P, unicode.S, unicode.Z)", "!unicode.IsNumber(c)", proxy, "TestNumbersCountWithTheirSigns")
	add("semantic cache: answers that are gone are compared", "internal/respcache/similar.go", "	p.Store(nil)\n", "", "./internal/respcache", "TestAVectorThatLeavesFreesItsAnswer")
	const store = "./internal/redisstore"
	add("shared cache: a long value is read", "internal/redisstore/guard.go", "err != nil || n < -1 || n > most {", "err != nil || n < -1 {", store, "TestServersThatLie")
	add("shared cache: lists are read without end", "internal/redisstore/guard.go", " || r.lists > maxLists", "", store, "TestServersThatLie")
	add("shared cache: answers wait without bound", "internal/redisstore/redisstore.go", "s.bytes.Add(n) <= maxQueuedBytes", "s.bytes.Add(n) > 0", store, "TestAnswersThatWaitAreBounded")
	add("shared cache: a server that is away is asked each time", "internal/callout/breaker.go", "if now.Before(b.until) {", "if false {", store, "TestAServerThatIsFullOrRefusesOrIsAway")
}
