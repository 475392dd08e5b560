package mutants

// mutant is a bug that is put into the code.
type mutant struct {
	// name is what it does; peer where it was seen, as the list of faults in docs/architecture-event-plane.md has it, empty
	// for bugs of our own making.
	name, peer string
	// In file the one place that reads old is made to read new.
	file, old, new string
	// test must fail then, in pkg. Several names are joined by |.
	pkg, test string
}

// simulation is the test that notices what has no test of its own.
const simulation = "TestEventPlane"

var mutants = []mutant{
	{
		name: "a removal takes a block from all pods", peer: "A1",
		file: "internal/kvindex/place.go",
		old:  "	r := ix.runs.get(id)\n	at, ok := r.cellOf(c.slot, c.tier)\n	if !ok {\n		return 0\n	}\n	rest := r.load(at)\n",
		new: "	r := ix.runs.get(id)\n	for i := range r.cells {\n		if all := r.load(i); tierOf(r.cells[i]) == c.tier {\n			for j := range all {\n				all[j] &^= m[j]\n			}\n" +
			"			r.store(i, &all)\n		}\n	}\n	at, ok := r.cellOf(c.slot, c.tier)\n	if !ok {\n		return 0\n	}\n	rest := r.load(at)\n",
		pkg: "./test/sim", test: simulation,
	},
	{
		name: "a removal takes a block from all pods, in the plain index", peer: "A1",
		file: "internal/kvindex/table.go",
		old:  "		if list[i].place != at {\n			continue\n		}\n		list[i].n--\n",
		new:  "		if list[i].tier != at.tier {\n			continue\n		}\n		list[i].n--\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "clearing is an empty placeholder", peer: "A1",
		file: "internal/events/mirror.go",
		old:  "	if e.Medium == \"\" {\n		m.clear()\n",
		new:  "	if e.Medium == \"\" {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a match goes on behind a hole, in the plain index", peer: "A1",
		file: "internal/kvindex/table.go",
		old:  "			} else {\n				break\n			}\n",
		new:  "			}\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "at most ten pods are remembered for a block", peer: "A2, B4",
		file: "internal/kvindex/place.go",
		old:  "	if !ok {\n		return r.withCell(",
		new:  "	if !ok && len(r.cells) >= 10 {\n		return r, again\n	}\n	if !ok {\n		return r.withCell(",
		pkg:  "./internal/kvindex", test: "TestManyHoldersOfABlock",
	},
	{
		name: "an engine that has started again keeps its blocks", peer: "A2",
		file: "internal/events/replay.go",
		old:  "	s.setState(Syncing)\n	s.clear(false)\n",
		new:  "	s.setState(Syncing)\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "nothing is ever removed", peer: "A3",
		file: "internal/events/mirror.go",
		old:  "func (m *mirror) remove(e *kvevent.Event) {\n",
		new:  "func (m *mirror) remove(e *kvevent.Event) {\n	if e != nil {\n		return\n	}\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a lookup jumps to the end of a run", peer: "A4",
		file: "internal/kvindex/lookup.go",
		old:  "		ones := min(uint32(header&onesMask), n)\n",
		new:  "		ones := min(uint32(header&onesMask), n)\n		if m := r.load(i); m.has(int(n - 1)) {\n			ones = n\n		}\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a look at an engine's health resets what it was given", peer: "A5",
		file: "internal/load/load.go",
		old:  "	t.report, t.reported = r, at\n",
		new:  "	t.report, t.reported, t.inFlight = r, at, 0\n",
		pkg:  "./internal/load", test: "TestReportsLeaveTheCountAlone",
	},
	{
		name: "a complete answer ends the speculation before the events have come",
		file: "internal/picker/decision.go",
		old:  "	if !d.awaitsEvents() {\n",
		new:  "	if d != nil {\n",
		pkg:  "./internal/picker", test: "TestSpeculationEnds",
	},
	{
		name: "requests are not counted", peer: "A5",
		file: "internal/load/load.go",
		old:  "	t.inFlight++\n",
		new:  "",
		pkg:  "./internal/load", test: "TestARequestCountsFromThePick",
	},
	{
		name: "one endpoint that is overloaded costs all others their caches", peer: "A5",
		file: "internal/policy/longestprefix.go",
		old:  "		if !p.literal && (!worth || float64(c.Load.InFlight) > limit) {\n",
		new: "		swamped := false\n		for j := range candidates {\n			swamped = swamped || float64(candidates[j].Load.InFlight) > limit\n		}\n" +
			"		if !p.literal && (!worth || swamped) {\n",
		pkg: "./internal/policy", test: "TestLoadElsewhereDoesNotCostAffinity",
	},
	{
		name: "idle pods score nothing whatever they hold", peer: "A6",
		file: "internal/policy/lmetric.go",
		old:  "		if !p.literal {\n			batch++\n		}\n",
		new:  "",
		pkg:  "./internal/policy", test: "TestLoadElsewhereDoesNotCostAffinity",
	},
	{
		name: "a history that does not reach back is of no use", peer: "B1",
		file: "internal/events/replay.go",
		old:  "			if seq > 0 {\n				state = Unverified\n			}\n",
		new:  "			if seq > 0 {\n				return errShort\n			}\n",
		pkg:  "./internal/events", test: "TestHistoryThatDoesNotReachBack",
	},
	{
		name: "blocks whose parent is not known are dropped", peer: "B2",
		file: "internal/events/mirror.go",
		old:  "	id := blockID{e.Hashes[at], int32(e.Group)}\n	o := m.orphans.byID[id]\n	if o == nil {\n",
		new:  "	id := blockID{e.Hashes[at], int32(e.Group)}\n	o := m.orphans.byID[id]\n	if o == nil {\n		return\n	}\n	if o == nil {\n",
		pkg:  "./internal/events", test: "TestMirror",
	},
	{
		name: "what is missing in the sequence is not noticed", peer: "B3",
		file: "internal/events/stream.go",
		old:  "		if !s.fill(seq) || seq > s.expected {\n			return // a replay has brought it, or the next connection will\n		}\n",
		new:  "		s.expected = seq\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "the end of a guess takes facts with it", peer: "B5",
		file: "internal/kvindex/speculate.go",
		old:  "	c := change{slot: l.slot, tier: tierGuess}\n",
		new:  "	c := change{slot: l.slot}\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "late events bring a deleted pod back", peer: "B6",
		file: "internal/kvindex/index.go",
		old:  "	p := ix.page(h)\n	p.words[h%pageLen].Store(0)\n",
		new:  "	p := ix.page(h)\n	if h != 0 {\n		ix.setGeneration(h, ix.newGeneration(h))\n		ix.retire(l)\n		return\n	}\n	p.words[h%pageLen].Store(0)\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "late events bring a deleted pod back, in the plain index", peer: "B6",
		file: "internal/kvindex/table.go",
		old:  "	delete(t.live, h)\n	delete(t.committed, h)\n",
		new:  "	if ok {\n		t.live[h] = t.freshSlot()\n	}\n	delete(t.committed, h)\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "batches that are maps have no events", peer: "B7",
		file: "internal/vllm/decoder.go",
		old:  "			ok, seen = d.events(r, b), true\n",
		new:  "			ok, seen = r.skip(), true\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "one event that is not understood drops the batch", peer: "B8",
		file: "internal/vllm/decoder.go",
		old:  "		if !unknown(r, b, 1) {\n			return false\n		}\n		if tagged(",
		new:  "		if !unknown(r, b, 1) || true {\n			return false\n		}\n		if tagged(",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "an event of a known kind that cannot be read changes nothing", peer: "B8",
		file: "internal/events/stream.go",
		old:  "	whole := s.batch.Unread == 0\n",
		new:  "	whole := s.batch.Unread >= 0\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "queues have no bound", peer: "B9",
		file: "internal/events/queue.go",
		old:  "	if q.bytes+need > q.max || !q.share.Take(need) {\n",
		new:  "	if need < 0 {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a lookup allocates", peer: "B11",
		file: "internal/kvindex/lookup.go",
		old:  "	l := ix.lookups.Get().(*lookup)\n",
		new:  "	l := ix.lookups.New().(*lookup)\n",
		pkg:  "./internal/kvindex", test: "TestTheFastMatchDoesNotAllocate",
	},
	{
		name: "an unknown tier is the best one", peer: "B13",
		file: "internal/events/mirror.go",
		old:  "		return kvblock.Remote, true\n	}\n	return 0, false\n",
		new:  "		return kvblock.Remote, true\n	}\n	return kvblock.GPU, true\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "every connection is accepted as a reporter", peer: "B15",
		file: "internal/rpc/auth.go",
		old:  "	if subtle.ConstantTimeCompare([]byte(token), secret) != 1 {\n",
		new:  "	if subtle.ConstantTimeCompare([]byte(token), secret) > 1 {\n",
		pkg:  "./internal/rpc", test: "TestSharedSecrets",
	},
	{
		name: "an adapter's name is taken for an item", peer: "B16",
		file: "internal/vllm/extra.go",
		old:  "			if i == 0 && e.Adapter != \"\" && string(s) == e.Adapter {\n",
		new:  "			if i == 0 && len(s) > 1<<20 {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "models share their blocks", peer: "B17",
		file: "internal/events/mirror.go",
		old:  "		model := e.Adapter\n		if model == \"\" {\n			model = m.feed.Keys.Model\n		}\n",
		new:  "		model := m.feed.Keys.Model\n",
		pkg:  "./test/sim", test: simulation,
	},

	{
		name: "a connection made again is to the same life",
		file: "internal/events/replay.go",
		old:  "			if seq != from || proofOf(payload) != s.proof {\n",
		new:  "			if seq != from {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a gap at the end is never requested again",
		file: "internal/events/replay.go",
		old:  "		s.quiet, s.calm = s.cfg.Now().Add(s.cfg.MinQuiet), s.cfg.MinQuiet\n",
		new:  "		s.calm = s.cfg.MinQuiet\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "the first removal takes all copies",
		file: "internal/kvindex/batch.go",
		old:  "	e.info -= 1 << countShift[b.tier]\n	if e.count(b.tier) > 0 {\n",
		new:  "	e.info -= e.count(b.tier) << countShift[b.tier]\n	if e.count(b.tier) > 0 {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "orphans have no bound",
		file: "internal/events/orphan.go",
		old:  "	for len(s.byID) > s.maxCount || s.bytes > s.maxBytes {\n",
		new:  "	for len(s.byID) > 1<<20 {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "ghosts have no bound",
		file: "internal/cachesync/link.go",
		old:  "	for m.classes[ghost] > m.options.MaxGhosts {\n",
		new:  "	for m.classes[ghost] > 1<<20 {\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "what is passed over in a queue never enters it again",
		file: "internal/cachesync/ring.go",
		old:  "	if r := m.arena.at(it.id); r.hash == it.hash {\n		r.queued &^= 1 << of\n	}\n	return it\n",
		new:  "	return it\n",
		pkg:  "./internal/cachesync", test: "TestGhostsThatComeAndGo",
	},
	{
		name: "a picker keeps the blocks of a life that its reporter says has ended",
		file: "internal/cachesync/receiver.go",
		old:  "		r.held.clear()\n		r.have = nil\n",
		new:  "		r.have = nil\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "every digest is a proof",
		file: "internal/cachesync/receiver.go",
		old:  "	r.status.Proven = divergent == 0 && r.status.State == pb.State_STATE_SYNCED\n",
		new:  "	divergent, r.status.Divergent, r.status.Proven = 0, 0, true\n",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a reporter vouches for less than it received",
		file: "internal/cachesync/save.go",
		old:  "	s.uint(m.refused)\n",
		new:  "	s.uint(0)\n",
		pkg:  "./internal/cachesync", test: "TestGhostsThatComeBackStayWithinTheLimit",
	},
	{
		name: "a replay with holes is as good as any",
		file: "internal/events/replay.go",
		old:  "			state, holes = Degraded, true\n",
		new:  "",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a replay with holes is never asked for again",
		file: "internal/events/replay.go",
		old:  "		if holes {\n			s.plan()\n		}\n	}\n	s.log.Info(\"Event stream started\"",
		new:  "		if holes && s.known == holes {\n			s.retry = time.Time{}\n		}\n	}\n	s.log.Info(\"Event stream started\"",
		pkg:  "./test/sim", test: simulation,
	},
	{
		name: "a process that was killed in a replay goes on from its middle",
		file: "internal/events/replay.go",
		old:  " || !s.replayable() || State(s.state.Load()) == Syncing {\n",
		new:  " || !s.replayable() {\n",
		pkg:  "./internal/events", test: "TestNobodyGoesOnFromTheMiddleOfAReplay",
	},
	{
		name: "an engine that does not answer is in the same life",
		file: "internal/events/replay.go",
		old:  "	if unproven != nil {\n",
		new:  "	if unproven != nil && errors.Is(unproven, errOther) {\n",
		pkg:  "./internal/events", test: "TestNothingIsReplayedWhileTheLifeIsUnknown",
	},
	{
		name: "new answers to the probe are not compared",
		file: "internal/tokens/tokencheck/compare.go",
		old:  "maps.Equal(last.probes, probes)",
		new:  "len(last.probes) == len(probes) || maps.Equal(last.probes, probes)",
		pkg:  "./internal/tokens/tokencheck", test: "TestTheProbeIsRepeated",
	},
}
