package mutants

// The pitfalls of the Endpoint Picker Protocol, each with its rule taken out; peers have been seen with most of them.
// Pitfall numbers are those of internal/extproc's tests.
func init() {
	const pkg = "./internal/extproc"
	mutants = append(mutants,
		mutant{
			name: "pitfall 1: pieces of bodies are as large as they came",
			file: "internal/extproc/message.go",
			old:  "	maxChunk = 62000\n", new: "	maxChunk = 1 << 30\n",
			pkg: pkg, test: "TestPitfall1_BodiesComeBackStreamed",
		},
		mutant{
			name: "pitfall 2: what comes behind the end is taken for a body",
			file: "internal/extproc/exchange.go",
			old:  "	case x.request == done: // sent again after its end\n		return nil\n",
			new:  "	case x.request == done && x.decision == nil:\n		return nil\n",
			pkg:  pkg, test: "TestPitfall2_TheEndOfABodyMayComeTwice",
		},
		mutant{
			name: "pitfall 4: the length is always told",
			file: "internal/extproc/message.go",
			old:  "if x.body.changed && x.head.get", new: "if x.head.get",
			pkg: pkg, test: "TestPitfall4_TheLengthIsToldOnlyWhenItChanges",
		},
		mutant{
			name: "pitfall 6: gRPC's own limit on messages",
			file: "internal/extproc/serve.go",
			old:  "		grpc.MaxRecvMsgSize(o.MaxMessage),\n", new: "",
			pkg: pkg, test: "TestPitfall6_LargeMessages",
		},
		mutant{
			name: "pitfall 7: a bound on streams",
			file: "internal/extproc/serve.go",
			old:  "		grpc.MaxRecvMsgSize(o.MaxMessage),\n", new: "		grpc.MaxRecvMsgSize(o.MaxMessage), grpc.MaxConcurrentStreams(100),\n",
			pkg: pkg, test: "TestPitfall7_ManyStreamsAtOnce",
		},
		mutant{
			name: "pitfall 8: the destination is added to the client's",
			file: "internal/extproc/message.go",
			old:  "core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD", new: "core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD",
			pkg: pkg, test: "TestPitfall8_ClientsCannotNameADestination",
		},
		mutant{
			name: "pitfall 9: a list for everybody",
			file: "internal/extproc/exchange.go",
			old:  "if d.Spec().OrderedDestinations && d.Targets", new: "if d.Targets",
			pkg: pkg, test: "TestPitfall9_OneDestinationUnlessAListIsAskedFor",
		},
		mutant{
			name: "pitfall 10: an abort closes no account",
			file: "internal/extproc/exchange.go",
			old:  "		x.settle(picker.ClientGone)\n", new: "",
			pkg: pkg, test: "TestSequenceI_AbortsAtEveryPoint",
		},
		mutant{
			name: "pitfall 10: the load vanishes with the pick where no answers are shown",
			file: "internal/extproc/exchange.go",
			old:  "		x.settle(picker.Unreported)\n", new: "		x.settle(picker.Completed)\n",
			pkg: pkg, test: "TestPitfall10_GatewaysThatShowNoAnswers",
		},
		mutant{
			name: "pitfall 12: nothing is known without a path",
			file: "internal/extproc/head.go",
			old:  "		return routeByShape(body)\n", new: "		return 0, false\n",
			pkg: pkg, test: "TestPitfall12_MissingAndUnknownPaths",
		},
		mutant{
			name: "pitfall 18: a subset counts on headers only",
			file: "internal/extproc/exchange.go",
			old:  "; ok && x.request != done {", new: "; ok && x.request == begin {",
			pkg: pkg, test: "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage",
		},
		mutant{
			name: "pitfall 18: an empty subset is none",
			file: "internal/extproc/exchange.go",
			old:  "(x.subset == nil || x.subset.has(ep))", new: "(len(x.subset) == 0 || x.subset.has(ep))",
			pkg: pkg, test: "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage",
		},
		mutant{
			name: "sequence b: trailers are not waited for",
			file: "internal/extproc/exchange.go",
			old:  "			x.sendBody(rest, false)\n", new: "			x.sendBody(rest, true)\n",
			pkg: pkg, test: "TestSequenceB_TrailersCompleteTheBody",
		},
		mutant{
			name: "sequence j: gateways that wait get no answer to the headers",
			file: "internal/extproc/exchange.go",
			old:  "	case x.mode != fullDuplex:\n		x.out.put(letter{message: requestHeadersAnswer(&pb.CommonResponse{})})\n", new: "",
			pkg: pkg, test: "TestSequenceJ_ModesThatWaitForEachAnswer",
		},
		mutant{
			name: "receiving waits for sending",
			file: "internal/extproc/outbox.go",
			old:  "		o.sending = true\n		go o.run()\n", new: "		o.sending = true\n		o.mu.Unlock()\n		o.run()\n		o.mu.Lock()\n",
			pkg: pkg, test: "TestReceivingNeverWaitsForSending",
		},
	)
}
