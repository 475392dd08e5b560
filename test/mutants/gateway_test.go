package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every sequence and every pitfall of the Endpoint Picker Protocol has a bug that takes its rule out, and a row in the
// documentation that names the test.
func TestEveryPitfallHasAMutant(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/gateways.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for c := 'a'; c <= 'j'; c++ {
		all = append(all, fmt.Sprintf("sequence %c", c))
	}
	for i := 1; i <= 21; i++ {
		all = append(all, fmt.Sprintf("pitfall %d", i))
	}
	for _, one := range all {
		named := regexp.MustCompile(`\b` + one + `\b`)
		found := false
		for i := range mutants {
			found = found || named.MatchString(mutants[i].name)
		}
		_, number, _ := strings.Cut(one, " ")
		if row := regexp.MustCompile(`(?m)^\| ` + number + ` \| .* \| .*` + "`Test").Match(page); !found || !row {
			t.Errorf("%s: a mutant %v, a row in docs/gateways.md %v", one, found, row)
		}
	}
}

// The message sequences (a) to (j) and the 21 pitfalls of the Endpoint Picker Protocol, each with its rule taken out; peers
// have been seen with most of them. Letters and numbers are those of docs/gateways.md.
func init() {
	const (
		pkg      = "./internal/gateway/extproc"
		exchange = "internal/gateway/extproc/exchange.go"
		response = "internal/gateway/extproc/response.go"
		message  = "internal/gateway/extproc/message.go"
		server   = "internal/gateway/extproc/serve.go"
	)
	add := func(name, file, old, changed, test string) {
		mutants = append(mutants, mutant{name: name, file: file, old: old, new: changed, pkg: pkg, test: test})
	}

	add("sequence a: the headers are answered before the body is complete", exchange,
		"	case x.mode != fullDuplex:\n		x.send(requestHeadersAnswer(&pb.CommonResponse{}))\n",
		"	default:\n		x.send(requestHeadersAnswer(&pb.CommonResponse{}))\n", "TestSequenceA_NothingIsAnsweredBeforeTheBodyIsComplete")
	add("sequence b: the body ends before its trailers", exchange,
		"				x.sendBody(rest, false)\n", "				x.sendBody(rest, true)\n", "TestSequenceB_TrailersCompleteTheBody")
	add("sequence b: trailers are not waited for", exchange,
		"	case x.request == inBody:\n		x.off(func() {\n			x.bodyComplete", "	case x.request == begin:\n		x.off(func() {\n			x.bodyComplete",
		"TestSequenceB_TrailersCompleteTheBody")
	add("sequence c: a body is waited for that will not come", exchange,
		"	case h.GetEndOfStream() || x.mode == unseen:\n", "	case x.mode == unseen:\n", "TestSequenceC_RequestsWithoutABodyGoByLoad")
	add("sequence d: refusals do not say when to try again", "internal/gateway/extproc/refuse.go",
		"; after != \"\" {\n", "; after == \"\" {\n", "TestSequenceD_Refusals")
	add("sequence e: the answer's headers are not answered", response,
		"	x.send(responseHeadersAnswer(x.explained(head)))\n", "", "TestSequenceE_AnswersComeBackPieceByPiece")
	add("sequence f: the empty end of a stream is not answered", response,
		"	if len(body) == 0 {\n		send(nil, p.end)\n		return\n	}\n", "	if len(body) == 0 {\n		return\n	}\n",
		"TestSequenceF_EventsAreNotHeldBack")
	add("sequence g: an answer without a body never ends", response,
		"	case h.GetEndOfStream():\n		x.shown = true\n		x.responseDone()\n", "	case false:\n", "TestSequenceG_AnswersWithoutABody")
	add("sequence h: trailers of answers are not answered", response,
		"	x.send(responseTrailersAnswer())\n	x.streamEnds()\n", "	x.streamEnds()\n", "TestSequenceH_TrailersOfAnswersComeBack")
	add("sequence i, pitfall 10: an abort closes no account", response,
		"		x.settle(picker.ClientGone)\n", "", "TestSequenceI_AbortsAtEveryPoint")
	add("sequence j: gateways that wait get no answer to the headers", exchange,
		"	case x.mode != fullDuplex:\n		x.send(requestHeadersAnswer(&pb.CommonResponse{}))\n", "", "TestSequenceJ_ModesThatWaitForEachAnswer")

	add("pitfall 1: pieces of bodies are as large as they came", message,
		"	maxChunk = 62000\n", "	maxChunk = 1 << 30\n", "TestPitfall1_BodiesComeBackStreamed")
	add("pitfall 1: bodies are sent back whole", "internal/gateway/extproc/wire.go",
		"{kind - 1, 1, 3, 3}", "{kind - 1, 1, 3, 1}", "TestPitfall1_BodiesComeBackStreamed")
	add("pitfall 2: what comes behind the end is taken for a body", exchange,
		"	case x.request == done: // sent again after its end\n		return nil\n",
		"	case x.request == done && x.decision == nil:\n		return nil\n", "TestPitfall2_TheEndOfABodyMayComeTwice")
	add("pitfall 3: headers of the answer are sent back", response,
		"	x.send(responseHeadersAnswer(x.explained(head)))\n",
		"	echo := &pb.HeaderMutation{}\n	for _, v := range h.GetHeaders().GetHeaders() {\n		put(echo, v.GetKey(), valueOf(v))\n	}\n"+
			"	x.send(responseHeadersAnswer(&pb.CommonResponse{HeaderMutation: echo}))\n", "TestPitfall3_HeadersAreNotEchoed")
	add("pitfall 3: headers of the request are sent back", message,
		"	put(m, destinationHeader, destination)\n",
		"	for _, v := range x.head {\n		put(m, v.GetKey(), valueOf(v))\n	}\n	put(m, destinationHeader, destination)\n", "TestPitfall3_HeadersAreNotEchoed")
	add("pitfall 4: the length is always told", message,
		"if x.body.changed && x.head.get", "if x.head.get", "TestPitfall4_TheLengthIsToldOnlyWhenItChanges")
	add("pitfall 4: the length of a changed body is not told", message,
		"if x.body.changed && x.head.get", "if !x.body.changed && x.head.get", "TestPitfall4_TheLengthIsToldOnlyWhenItChanges")
	add("pitfall 5: white space around a body is lost", exchange,
		"	in := &picker.Request{Route: route, Body: x.body.Bytes, Light",
		"	for n := len(x.body.Bytes); n > 0 && x.body.Bytes[n-1] == '\\n'; n-- {\n		x.body.Bytes = x.body.Bytes[:n-1]\n	}\n	in := &picker.Request{Route: route, Body: x.body.Bytes, Light", "TestPitfall5_BytesAreNotRewritten")
	add("pitfall 6: gRPC's usual limit on messages", server,
		"MaxMessage: o.MaxMessage, ", "", "TestPitfall6_LargeMessages")
	add("pitfall 6: bodies held are not bounded", exchange,
		"	case !x.body.add(x.out, p.bytes):\n", "	case !x.body.add(x.out, p.bytes) && limit < 0:\n", "TestPitfall6_BodiesHeldAreBounded")
	add("pitfall 7: a bound on streams", "internal/gateway/h2stream/connection.go",
		"http2.Setting{ID: http2.SettingMaxHeaderListSize", "http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100}, http2.Setting{ID: http2.SettingMaxHeaderListSize",
		"TestPitfall7_ManyStreamsAtOnce")
	add("pitfall 8: the destination is added to the client's", message,
		"core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD", "core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD", "TestPitfall8_ClientsCannotNameADestination")
	add("pitfall 8: what a client says of subsets stays", message,
		" || len(name) > len(destinationHeader) && name[:len(destinationHeader)] == destinationHeader {", " {", "TestPitfall8_ClientsCannotNameADestination")
	add("pitfall 8: a client's rank stays", message,
		"		if name == rankHeader && rank < 0 || len(name)", "		if len(name)", "TestPitfall8_ClientsCannotNameADestination")
	add("pitfall 9: a list for everybody", exchange,
		"if d.Spec().OrderedDestinations && d.Targets", "if d.Targets", "TestPitfall9_OneDestinationUnlessAListIsAskedFor")
	add("pitfall 10: the load vanishes with the pick where no answers are shown", response,
		"		x.leave(picker.Unreported)\n", "		x.settle(picker.Completed)\n", "TestPitfall10_GatewaysThatShowNoAnswers")
	add("pitfall 10: an end counts as often as it is reported", response,
		"	if x.settled || x.decision == nil {\n", "	if x.decision == nil {\n", "TestPitfall10_EveryEndIsCountedOnce")
	add("pitfall 11: headers as text, which NGINX's client does not read", message,
		"RawValue: []byte(value)", "Value: value", "TestPitfall11_BehindNginx")
	add("pitfall 12: nothing is known without a path", "internal/gateway/extproc/head.go",
		"		return routeByShape(body)\n", "		return 0, false\n", "TestPitfall12_MissingAndUnknownPaths")
	mutants = append(mutants, mutant{
		name: "pitfall 13: a replica serves before it knows its pools",
		file: "internal/server/run.go", old: "		select {\n		case <-a.informed:\n		case <-serving.Done():\n		}\n", new: "",
		pkg: "./internal/server", test: "TestNobodyIsAnsweredBeforeTheObjectsAreKnown",
	})
	add("pitfall 14: open streams are cut at the end", "internal/gateway/h2stream/server.go",
		"	cut = s.leave(grace)\n", "	cut = s.leave(0)\n", "TestPitfall14_DrainLosesNothing")
	add("pitfall 14: connections grow old", server,
		"ConnectionAge: o.ConnectionAge, ", "", "TestPitfall14_ConnectionsAge")
	mutants = append(mutants,
		mutant{
			name: "pitfall 14: clients are not sent elsewhere",
			file: "internal/gateway/h2stream/connection.go", old: "	c.plain = appendGoAway(c.plain, maxWindow, http2.ErrCodeNo)\n", new: "",
			pkg: "./internal/gateway/h2stream", test: "TestGoingAway",
		},
		mutant{
			name: "pitfall 14: a picker that ends says that it is ready",
			file: "internal/server/run.go", old: "		a.ready.drain()\n", new: "",
			pkg: "./internal/server", test: "TestRequestsAreTakenWhileTheEndIsTold",
		})
	add("pitfall 15: TLS that Envoy does not speak", server,
		"MinVersion: tls.VersionTLS12", "MinVersion: tls.VersionTLS13", "TestPitfall15_TLSIsSelfSignedByDefault")
	mutants = append(mutants, mutant{
		name: "gateways are sent to a pool's first endpoint at once",
		file: "internal/picker/pool.go", old: "	return ok && now.Before(until)\n", new: "	return ok && until.IsZero()\n",
		pkg: "./internal/picker", test: "TestAFirstEndpointIsNotPickedForGatewaysBeforeTheyKnowIt",
	})
	add("every gateway's request counts as one with a subset", exchange,
		"	if x.subset != nil {\n", "	if x.subset == nil {\n		x.subset = subset{\"\": true}\n	}\n	{\n", "TestGatewaysRequestsAreHeldWhileNoEndpointServes")
	add("answers whose bodies are not shown are given up by their clients", response,
		"	case x.bodyless:\n", "	case false:\n", "TestAnswersAreJudgedByTheirHeadersWhereNoBodyIsShown")
	add("one route of a gateway speaks for all", response,
		"return route{x.gateway, x.bodyless}", "return route{x.gateway, false}", "TestWhatOneRouteShowsSaysNothingOfAnother")
	add("a gateway that takes no answers gets them", exchange,
		"	if !x.silent {\n", "	{\n", "TestObservabilityModeIsAccountedForAndNotAnswered")
	add("TLS without ALPN is closed", "internal/gateway/h2stream/connection.go",
		"http2.NextProtoTLS || protocol == \"\"", "http2.NextProtoTLS", "TestHealthChecksNeedNoALPN")
	add("pitfall 15: certificates are read once", "internal/certs/files.go",
		"|| !slices.EqualFunc(texts", "|| slices.EqualFunc(texts", "TestPitfall15_CertificatesAreReadAgain")
	add("pitfall 15: conformance tests find no health", "internal/gateway/extproc/health.go",
		", \"inference-extension\": true,", ",", "TestPitfall15_HealthUnderAllNames")
	add("pitfall 16: a port for one pool serves all", exchange,
		"in.Pool, in.Remote, in.Observed = x.head.get, x.server.options.Pool, true", "in.Remote, in.Observed = x.head.get, true",
		"TestPitfall16_APortMayServeOnePoolOnly")
	add("pitfall 17: preflights must show a key", exchange,
		"case h.GetEndOfStream() && picker.IsPreflight(", "case !h.GetEndOfStream() && picker.IsPreflight(", "TestPitfall17_PreflightsAreAnswered")
	add("pitfall 18: a subset counts on headers only", "internal/gateway/extproc/read.go",
		"	if x.request != done {\n", "	if x.request == begin {\n", "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage")
	add("pitfall 18: an empty subset is none", exchange,
		"	if x.subset != nil {\n", "	if len(x.subset) > 0 {\n", "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage")
	add("pitfall 18: strings with commas are one name", "internal/gateway/extproc/subset.go",
		"range strings.SplitSeq(kind.StringValue, \",\")", "range strings.SplitSeq(kind.StringValue, \";\")", "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage")
	add("pitfall 19: usage is read from compressed answers", "internal/picker/answer.go",
		" && (encoding == \"\" || strings.EqualFold(encoding, \"identity\"))\n", "\n",
		"TestPitfall19_UsageIsReadFromAnswers")
	add("pitfall 19: usage is not read from events", "internal/picker/answer.go",
		"	a.scanner.Reset(d.route, stream)\n", "	a.scanner.Reset(d.route, stream)\n	a.readable = a.readable && !stream\n", "TestPitfall19_UsageIsReadFromAnswers")
	mutants = append(mutants, mutant{
		name: "pitfall 20: addresses are put together by a colon",
		file: "internal/config/endpoints.go", old: "return net.JoinHostPort(address, strconv.Itoa(port))", new: "var _ net.IP; return address + \":\" + strconv.Itoa(port)",
		pkg: "./internal/config", test: "TestEndpointsOfSlices",
	})
	add("pitfall 20: IPv6 in brackets is no address", "internal/gateway/extproc/subset.go",
		"netip.ParseAddr(strings.Trim(address, \"[]\"))", "netip.ParseAddr(address)", "TestPitfall18_SubsetsOfEveryShapeOnAnyMessage")
	add("pitfall 21: bodies are not answered where modes are not told", "internal/gateway/extproc/modes.go",
		"	return c == nil\n", "	return false\n", "TestPitfall21_BodiesAreAlwaysAnswered")
}
