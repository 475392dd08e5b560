// Package doctor checks a cluster end to end, and reports a cure for each problem that it finds.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Level of a result.
type Level string

// The levels. Failures are what keeps Kvasir from working.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Result of a check.
type Result struct {
	// Check names what was looked at, Subject of what.
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Cure is what to do, if there is a cure.
	Cure string `json:"cure,omitempty"`
}

// Report of all checks.
type Report struct {
	Results []Result `json:"results"`
	// Failed and Warned count results.
	Failed int `json:"failed"`
	Warned int `json:"warned"`
}

// Doctor checks.
type Doctor struct {
	Source *view.Source
	// API serves the version and the definitions of the API server; nil without a cluster.
	API discovery.DiscoveryInterface
	// Namespace of the pools, empty for all.
	Namespace string
	Now       func() time.Time

	report Report
	cures  cures
	// operators are the namespaces in which one is installed; nil if that is not known.
	operators map[string]bool
}

func (d *Doctor) add(level Level, check, subject, message, cure string) {
	switch level {
	case Warn:
		d.report.Warned++
	case Fail:
		d.report.Failed++
	case OK:
		cure = ""
	}
	d.report.Results = append(d.report.Results, Result{check, subject, level, message, cure})
}

func (d *Doctor) ok(check, subject, format string, args ...any) {
	d.add(OK, check, subject, fmt.Sprintf(format, args...), "")
}

// Run makes all checks. What cannot be found out is a result too.
func (d *Doctor) Run(ctx context.Context) *Report {
	d.report, d.cures, d.operators = Report{Results: []Result{}}, readCures(), nil
	if d.Source.Picker != nil {
		told, err := d.Source.Picker.Status(ctx)
		d.picker(nil, d.Source.Picker, told, err)
		return &d.report
	}
	if !d.server(ctx) {
		return &d.report
	}
	defined := d.definitions(ctx)
	d.rights(ctx)
	d.operator(ctx)
	if !defined {
		return &d.report
	}
	pools, err := fleet.Pools(ctx, d.Source.Client, d.Namespace)
	if err != nil {
		d.add(Fail, "pools", "", err.Error(), "you need the right to list inferencepools.kvasir.dev")
		return &d.report
	}
	if len(pools) == 0 {
		where := "the cluster"
		if d.Namespace != "" {
			where = "the namespace " + d.Namespace
		}
		d.add(Warn, "pools", "", "there is no pool in "+where, "make an InferencePool, or look elsewhere with --namespace or --all-namespaces")
	}
	d.fleets(ctx)
	for i := range pools {
		d.pool(ctx, &pools[i])
	}
	d.routes(ctx)
	return &d.report
}

// pool checks one pool, its pods and its pickers.
func (d *Doctor) pool(ctx context.Context, pool *v1alpha1.InferencePool) {
	d.managed(pool)
	d.conditions(pool)
	pods, err := fleet.Pods(ctx, d.Source.Client, pool)
	if err != nil {
		d.add(Warn, "pods", name(pool), err.Error(), "")
	}
	pickers, err := d.Source.PickersOf(ctx, pool)
	if err != nil {
		deployment := resources.PickerName(pool.Name)
		if fleet := pool.Spec.Picker.FleetName(); fleet != "" {
			deployment = resources.NamesOfFleet(fleet).Pickers
		}
		d.add(Fail, "pickers", name(pool), err.Error(), "look at the Deployment "+deployment+", and at the operator's log if there is none")
		pickers = nil
	}
	d.network(ctx, pool, pods)
	for _, p := range pickers {
		told, err := p.Status(ctx)
		d.picker(pool, p, told, err)
		d.certificate(pool, p)
	}
}

// grave are the conditions without which a pool does not work, graveReasons the reasons of others that stay until someone corrects
// the cause.
var (
	grave        = []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionReady, v1alpha1.ConditionEventsSynced}
	graveReasons = []string{status.ReasonCertificateInvalid, status.ReasonRolloutStopped, status.ReasonProbeFailed,
		status.ReasonMispredicting, status.ReasonPicksNotFollowed, status.ReasonModelNotListed, status.ReasonGatewayPodsMissing}
)

// Conditions reports, as Run does, the conditions of one pool.
func Conditions(pool *v1alpha1.InferencePool) *Report {
	d := &Doctor{cures: readCures()}
	d.conditions(pool)
	return &d.report
}

// conditions of a pool: those that are not good, with what the operations page advises.
func (d *Doctor) conditions(pool *v1alpha1.InferencePool) {
	const check = "conditions"
	if len(pool.Status.Conditions) == 0 || pool.Status.ObservedGeneration < pool.Generation {
		d.add(Fail, check, name(pool), "the operator has not seen the newest spec",
			"see that the operator runs, and watches the namespace "+pool.Namespace)
		return
	}
	good := 0
	for _, c := range pool.Status.Conditions {
		cure := d.cures[[2]string{c.Type, c.Reason}]
		level := Warn
		switch {
		case c.Status == "True" && c.Reason == v1alpha1.ReasonMatchesApproximate:
			good++
		case c.Status == "True":
			good++
			if c.Type == v1alpha1.ConditionTokensExact && pool.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerAuto && c.Message != "" {
				d.ok("tokens", name(pool), "%s", c.Message)
			}
			continue
		case status.Absent(&c), c.Status == "Unknown" && (c.Reason == status.ReasonOpen || c.Reason == status.ReasonNoModelList):
			continue // gateways, open engines and pools without pods are a choice
		case c.Status == "False" && slices.Contains(grave, c.Type), slices.Contains(graveReasons, c.Reason):
			level = Fail
		}
		d.add(level, check, name(pool), fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message), cure)
	}
	d.ok(check, name(pool), "%d of %d are as they should be", good, len(pool.Status.Conditions))
}

func name(pool *v1alpha1.InferencePool) string { return pool.Namespace + "/" + pool.Name }

// skews of clocks: the threshold for a report, and the one that breaks tokens and certificates.
const (
	warnSkew = 5 * time.Second
	failSkew = time.Minute
)

// picker checks what a picker sees. Without a cluster it is about all that it serves.
func (d *Doctor) picker(pool *v1alpha1.InferencePool, p *live.Picker, told *api.Live, err error) {
	subject := p.Name
	if pool != nil {
		subject = pool.Namespace + "/" + p.Name
	}
	if err != nil {
		d.add(Fail, "picker", subject, err.Error(), "")
		return
	}
	if told.Ready {
		d.ok("picker", subject, "it answers, and takes requests")
	} else {
		d.add(Fail, "picker", subject, "it takes no requests: "+told.NotReady, "see its log")
	}
	for _, text := range told.Problems {
		d.add(Fail, "picker", subject, text, "correct the object that is named")
	}
	d.skew("picker", subject, told.Time)
	for i := range told.Pools {
		at := &told.Pools[i]
		if pool == nil || at.Namespace == pool.Namespace && at.Name == pool.Name {
			d.unanswered(subject, at)
			d.streams(subject, at)
			d.tokens(subject, at)
		}
	}
}

func (d *Doctor) skew(what, subject string, theirs time.Time) {
	off := theirs.Sub(d.Now()).Round(100 * time.Millisecond)
	level := OK
	switch {
	case off.Abs() >= failSkew:
		level = Fail
	case off.Abs() >= warnSkew:
		level = Warn
	}
	text := fmt.Sprintf("the clock of the %s is within %s of this machine's", what, warnSkew)
	if level != OK {
		text = fmt.Sprintf("the clock of the %s is %s off this machine's", what, off)
	}
	d.add(level, "clock", subject, text, "set the clocks by a time server: tokens and certificates count on them")
}

// unanswered reports the engines that get no requests because they do not answer.
func (d *Doctor) unanswered(subject string, pool *api.Pool) {
	cures := map[string]string{
		api.ReasonUnreachable:  "start the engine, or correct its address",
		api.ReasonNotAnswering: "see the engine's log and its GPUs; restart it if it stays so",
	}
	pods := map[string][]string{}
	for i := range pool.Pods {
		pods[pool.Pods[i].Reason] = append(pods[pool.Pods[i].Reason], pool.Pods[i].Name)
	}
	for _, reason := range slices.Sorted(maps.Keys(cures)) {
		if names := pods[reason]; len(names) > 0 {
			d.add(Warn, "engines", subject, reason+" in "+pool.Name+": "+strings.Join(names, ", "), cures[reason])
		}
	}
}

// streams of events into a picker.
func (d *Doctor) streams(subject string, pool *api.Pool) {
	states := map[string][]string{}
	total := 0
	for i := range pool.Pods {
		for _, e := range pool.Pods[i].Endpoints {
			total++
			states[e.Events] = append(states[e.Events], pool.Pods[i].Name)
		}
	}
	if total == 0 {
		d.add(Warn, "events", subject, "the picker sees no endpoint of "+pool.Name, "see the pool's selector or template, and its pods")
		return
	}
	for state, pods := range states {
		level := Warn
		switch state {
		case status.StreamSynced:
			continue
		case status.StreamDisconnected:
			level = Fail
		case status.StreamNone:
			level = OK
		}
		d.add(level, "events", subject, fmt.Sprintf("%d of %d endpoints: %s (%s)", len(pods), total, state, few(pods)), cureOfStream[state])
	}
	if n := len(states[status.StreamSynced]); n > 0 {
		d.ok("events", subject, "it is known what %d of %d endpoints hold", n, total)
	}
	for _, text := range pool.Degraded {
		cure := ""
		if t, reason, ok := status.ParseLine(text); ok {
			cure = d.cures[[2]string{string(t), reason}]
		}
		d.add(Warn, "degraded", subject, text, cure)
	}
}

var cureOfStream = map[string]string{
	status.StreamSyncing:      "wait: what the pod holds is being read",
	status.StreamDisconnected: "the engine's --kv-events-config, its reporter's log, and network policies",
	status.StreamUnverified:   "give the pods a reporter (kubectl kvasir inject), or the engine a replay socket: without one of them it cannot be shown that no event was lost",
	status.StreamDegraded:     "wait some seconds; if it stays, look at the reporter's log and the picker's CPU",
}

// few names at most three.
func few(names []string) string {
	slices.Sort(names)
	if len(names) > 3 {
		return strings.Join(names[:3], ", ") + fmt.Sprintf(" and %d more", len(names)-3)
	}
	return strings.Join(names, ", ")
}

// tokens: whether prompts are known as the engine's tokens, and blocks as the engine's.
func (d *Doctor) tokens(subject string, pool *api.Pool) {
	switch {
	case pool.Requests == 0:
		d.ok("tokens", subject, "no request has arrived yet that would show whether prompts are known exactly")
	case pool.ExactTokens >= 0.99:
		d.ok("tokens", subject, "prompts are known exactly")
	default:
		d.add(Warn, "tokens", subject, fmt.Sprintf("%.0f %% of the last prompts were known exactly; the last other one was not because %s",
			100*pool.ExactTokens, whyInexact(pool.Inexact)),
			"give the pool the model's tokenizer (model.tokenizer), or start engines of vLLM 0.30 and newer with --enable-scale-out; see the condition TokensExact")
	}
	if h := &pool.Recent; h.Prompt > 0 && h.Predicted > 0 {
		const most = 0.2
		if off := float64(h.Deviation) / float64(h.Prompt); off > most {
			d.add(Warn, "predictions", subject, fmt.Sprintf("hits differ from what was predicted by %.0f %% of the prompts", 100*off),
				"see the conditions TokensExact and PredictionsTrusted, and the engines' --block-size")
		} else {
			d.ok("predictions", subject, "hits are as predicted, to %.1f %% of the prompts", 100*off)
		}
	}
}

// whyInexact describes why a prompt had no exact tokens.
func whyInexact(reason string) string {
	if why, ok := inexact[reason]; ok {
		return why + " (" + reason + ")"
	}
	return "of " + reason
}

// inexact are the reasons for prompts without exact tokens, as the page on tokens explains them.
var inexact = map[string]string{
	"content": "it had embeddings, a conversation that one engine keeps, or images, sound or video, which need vLLM 0.30 or newer with " +
		"--enable-scale-out and one size of blocks in all engines (docs/tokens.md)",
	"route":       "no engine renders requests of its route",
	"identity":    "it was for an adapter or had a cache salt, and some engine's release does not report that in its events",
	"refused":     "the chat template refuses it",
	"unproven":    "ids of its kind of request were not the engine's, and no engine is asked",
	"unsupported": "only the engine knows its prompt, and did not return it",
	"budget": "tokenizing it took longer than the policy's tokens.budgetMilliseconds, or an engine's answer longer than " +
		"tokens.engineBudgetMilliseconds",
	"memory":      "the picker's memory for what engines send has no room for the engine's answer (docs/sizing.md)",
	"unavailable": "there is no tokenizer, and no engine answered or may be asked",
}

// Lines are the report as people read it.
func (r *Report) Lines(c *console.Console) []string {
	tones := map[Level]console.Tone{OK: console.Good, Warn: console.Warn, Fail: console.Bad}
	g := console.Grid{Header: []string{"RESULT", "CHECK", "OF", "FOUND"}}
	for _, one := range r.Results {
		g.Add(console.Cell{Text: string(one.Level), Tone: tones[one.Level]}, console.Text(one.Check), console.Text(or(one.Subject, "-")),
			console.Text(firstLine(one.Message)))
	}
	table := g.Lines(c)
	lines := []string{table[0]}
	for i, one := range r.Results {
		lines = append(lines, table[i+1])
		if one.Cure != "" {
			for text := range strings.Lines(one.Cure) {
				lines = append(lines, "         "+c.Paint(console.Faint, "> "+strings.TrimRight(text, "\n")))
			}
		}
	}
	return append(lines, "", console.Count(len(r.Results), "check", "checks")+", "+
		console.Count(r.Warned, "warning", "warnings")+", "+console.Count(r.Failed, "failure", "failures"))
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
