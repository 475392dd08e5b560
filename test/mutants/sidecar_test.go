package mutants

// Rules of Kvasir's sidecar, each taken out.
func init() {
	const (
		pkg      = "./internal/sidecar"
		server   = "internal/sidecar/sidecar.go"
		exchange = "internal/sidecar/exchange.go"
		legs     = "internal/sidecar/handover.go"
		serve    = "internal/sidecar/serve.go"
		ticket   = "internal/relay/ticket.go"
		report   = "internal/picker/relayreport.go"
	)
	add := func(name, file, old, changed, pkg, test string) {
		mutants = append(mutants, mutant{name: "sidecar: " + name, file: file, old: old, new: changed, pkg: pkg, test: test})
	}
	const ours, clients = "TestOnlyPickersHaveRequestsHandedOver", "TestOnlyPickersOfThePoolMakeTickets"

	add("tickets need no signature", ticket, "	if !signedBy(text, macs, seeds) {", "	if !signedBy(text, macs, seeds) && macs == \"\" {", pkg, ours)
	add("a ticket is good for ever", ticket, "now.Sub(at) > MaxAge+time.Second || ", "", "./internal/relay", clients)
	add("a ticket is good at any pod", ticket, "	case !slices.Contains(t.Pods, tag):", "	case !slices.Contains(t.Pods, tag) && tag == \"\":", "./internal/relay", clients)
	add("the time of a ticket is not signed", ticket, "		macs[i] = mac(seed, text)\n", "		macs[i] = mac(seed, text[:8])\n", "./internal/relay", clients)
	add("names are looked up", ticket, "err != nil || !address.IsValid() || ", "err != nil && address.IsValid() || ", "./internal/relay", clients)
	add("the first of two tickets counts", server, "	if len(tickets) == 1 {", "	if len(tickets) >= 1 {", pkg, ours)
	add("engines get tickets", server, "	delete(r.Header, ticketHeader)\n", "", pkg, ours)
	add("the sidecar hands over to itself", server, "ok && local.String() == t.Address", "ok && local.String() == \"\"", pkg, ours)
	add("reports of engines pass", exchange, "	delete(h, reportHeader)\n", "", pkg, "TestNoClientSetsTheReport")
	add("paths are written again", exchange, "		u.Opaque = path\n", "", pkg, "TestWhatPassesIsUnchanged")
	add("headers of one hop pass", server, "	for _, name := range hopByHop {\n		delete(h, name)\n	}\n", "", pkg, "TestWhatPassesIsUnchanged")
	add("what was held for a client stays", server, "	defer func() { x.body.release() }()\n", "", pkg, "TestClientsThatSendNoBodyAreGivenUp")
	add("requests are not bounded", server, "> int64(s.options.MaxRequests) {", "> 1<<40 {", pkg, "TestRequestsAreBounded")
	add("protocols change", server, "protocol != \"\" && !strings.EqualFold(protocol, \"h2c\")", "protocol == \"x\"", pkg, "TestOtherProtocolsAreRefused")
	add("a prefill has no time", legs, "	if t.Within > 0 {", "	if t.Within < 0 {", pkg, "TestFailedLegsCostTimeAndNoRequest")
	add("errors of the second leg pass", legs, "	case verdict == openai.GaveUp, verdict == openai.Erred, answer.StatusCode >= 400 && verdict != openai.Refused:\n",
		"	case verdict > openai.Refused:\n", pkg, "TestFailedLegsCostTimeAndNoRequest")
	add("a full queue is a failure", legs, "answer.StatusCode >= 400 && verdict != openai.Refused", "answer.StatusCode >= 400", pkg, "TestAFullQueuePasses")
	add("a dead engine's port stays open", serve, "!takes && errors.Is(err, syscall.ECONNREFUSED)", "!takes && false", pkg, "TestThePortIsClosedWhileTheEngineIsDead")
	add("a dead engine ends its streams", serve, "	if server.Shutdown(wait) != nil {\n", "	if _ = wait; true {\n", pkg, "TestThePortIsClosedWhileTheEngineIsDead")
	add("a failed prefill counts against both", report, "ends.from.member.gives.fail(ends.to.member.hash, now, policy.CircuitOpen) {\n			d.leftOut(\"Hand-offs from",
		"ends.to.member.receives.fail(ends.from.member.hash, now, policy.CircuitOpen) {\n			d.leftOut(\"Hand-offs from", "./internal/picker", "TestReportsOfTheSidecarCount")
	add("the price is learned from the pick on", report, "true, now.Add(-min(report.Since, now.Sub(d.picked)))", "true, d.sent",
		"./internal/picker", "TestReportsTeachThePriceOfTransfers")
	add("hits of the first leg are not compared", report, "		d.Usage(report.Prompt, report.Cached)\n", "		_ = report.Cached\n", "./internal/picker", "TestHitsOfTheFirstLegAreCompared")
	add("clients get the report", "internal/gateway/extproc/response.go", " || name == relay.ReportHeader {\n			m", " {\n			m", "./internal/gateway/extproc",
		"TestKvasirsSidecarGetsATicketAndItsReportStaysHere")
}
