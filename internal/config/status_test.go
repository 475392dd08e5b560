package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

var pool0 = types.NamespacedName{Namespace: "default", Name: "m"}

func stream(state events.State, change ...func(*events.Stats)) events.Status {
	s := events.Status{State: state, Stats: &events.Stats{}}
	for _, f := range change {
		f(s.Stats)
	}
	return s
}

func live(h picker.Hits, completed int64, streams ...events.Status) Live {
	return Live{
		Pools:   []picker.PoolStats{{Namespace: "default", Pool: "m", Hits: h, Outcomes: map[picker.Outcome]int64{picker.Completed: completed}}},
		Streams: map[types.NamespacedName][]events.Status{pool0: streams},
	}
}

// distrusted is with matches that are not believed.
func distrusted(l Live) Live {
	l.Pools[0].Trust.Lost = true
	return l
}

// approximate is with a stream of blocks that cannot be followed, or an engine that drops the last block of hits.
func approximate(l Live, unfollowed, drops bool) Live {
	if unfollowed {
		l.Streams[pool0][0].Stats.Partial.Store(1)
	}
	l.Pools[0].Endpoints = []picker.EndpointStats{{DropsLast: drops}}
	return l
}

// unidentified is with a stream of blocks that lack what identifies them.
func unidentified(l Live) Live {
	l.Streams[pool0][0].Stats.Unkeyed.Store(1)
	return l
}

// ahead is with an engine whose block hashes cover tokens that follow.
func ahead(l Live) Live {
	l.Pools[0].Endpoints = []picker.EndpointStats{{DropsLast: true, Lookahead: true}}
	return l
}

// silent is with an engine that says it publishes no events.
func silent(l Live) Live {
	l.Streams[pool0][0].Stats.Silent.Store(true)
	return l
}

// fullPort is a picker with a port that turns connections away.
func fullPort(name string) Live {
	return Live{Overload: overload.State{Ports: []overload.PortState{{Name: "proxy"}, {Name: name, Full: true}}}}
}

// short is with a picker that has little left of a resource.
func short(r overload.Resource) Live {
	l := live(picker.Hits{}, 0)
	l.Overload.Pressure[r], l.Overload.Active[overload.LowPriority] = 0.9, true
	return l
}

// through is with one gateway.
func through(g picker.GatewayStats) Live {
	l := live(picker.Hits{}, 0)
	l.Pools[0].Gateways = []picker.GatewayStats{g}
	return l
}

// listing is with what engines list.
func listing(l picker.Listing) Live {
	all := live(picker.Hits{}, 0)
	all.Pools[0].Listing = l
	return all
}

// said is type=status/reason for each condition.
func said(conditions []metav1.Condition) string {
	var all []string
	for _, c := range conditions {
		all = append(all, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(all, " ")
}

func poolOf(t *testing.T, list *List) *v1alpha1.InferencePool {
	t.Helper()
	for _, item := range list.Items {
		if p, ok := item.(*v1alpha1.InferencePool); ok {
			return p
		}
	}
	t.Fatal("no pool")
	return nil
}

func TestPoolConditions(t *testing.T) {
	trusted := picker.Hits{Answers: 100, Confirmed: 1000, Delivered: 990}
	const keySecret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: k}\nstringData: {token: x}\n"
	byHeader := strings.Replace(smallPolicy, "strategy:", "admission: {tenants: {identification: Header, classes: [{name: default}]}}, strategy:", 1)
	twoPods := smallSlice + "- {addresses: [127.0.0.2], conditions: {ready: false}, targetRef: {name: m-1, uid: u1}}\n"
	for name, tc := range map[string]struct {
		pool, slice string
		live        Live
		want        []string
	}{
		"all is well": {smallPool, smallSlice, live(trusted, 100, stream(events.Synced)),
			[]string{"Accepted=True/Accepted", "Ready=True/Serving", "EventsSynced=True/Synced", "TokensExact=False/EngineRender", "PredictionsTrusted=True/Trusted"}},
		"a stream of two is missing":         {smallPool, twoPods, live(trusted, 0, stream(events.Synced), stream(events.Disconnected)), []string{"Ready=True/Serving", "EventsSynced=False/StreamMissing"}},
		"a stream is at its beginning":       {smallPool, smallSlice, live(trusted, 0, stream(events.Syncing)), []string{"EventsSynced=False/StreamMissing"}},
		"a stream began too late":            {smallPool, smallSlice, live(trusted, 0, stream(events.Unverified)), []string{"EventsSynced=False/HistoryLost"}},
		"a stream has a gap":                 {smallPool, smallSlice, live(trusted, 0, stream(events.Degraded)), []string{"EventsSynced=False/HistoryLost"}},
		"a picker is too slow":               {smallPool, smallSlice, live(trusted, 0, stream(events.Degraded, func(s *events.Stats) { s.Overflows.Add(1) })), []string{"EventsSynced=False/Lagging"}},
		"events of no known layout":          {smallPool, smallSlice, live(trusted, 0, stream(events.Synced, func(s *events.Stats) { s.Unreadable.Store(true) })), []string{"EventsSynced=False/UnknownLayout"}},
		"events that can be read again":      {smallPool, smallSlice, live(trusted, 0, stream(events.Degraded, func(s *events.Stats) { s.UnknownLayouts.Add(1) })), []string{"EventsSynced=False/HistoryLost"}},
		"blocks that do not fit":             {smallPool, smallSlice, live(trusted, 0, stream(events.Synced, func(s *events.Stats) { s.BlockSizeUnsupported.Add(1) })), []string{"EventsSynced=False/BlockSizeUnsupported"}},
		"no events are wanted":               {poolWith("engine: {events: {source: None}}"), smallSlice, live(trusted, 0), []string{"EventsSynced=True/NotUsed"}},
		"reports are wanted":                 {poolWith("engine: {events: {source: Reporter}}"), smallSlice, live(trusted, 0), []string{"EventsSynced=False/ReporterMissing"}},
		"an engine that should have dialed":  {poolWith("engine: {events: {source: Listen}}"), smallSlice, live(trusted, 0), []string{"EventsSynced=False/StreamMissing"}},
		"an engine that has dialed":          {poolWith("engine: {events: {source: Listen}}"), smallSlice, live(trusted, 0, stream(events.Synced)), []string{"EventsSynced=True/Synced"}},
		"no endpoint":                        {smallPool, "", live(trusted, 0), []string{"Ready=False/NoReadyEndpoint", "EventsSynced=True/Synced"}},
		"no ready endpoint":                  {smallPool, strings.Replace(smallSlice, "targetRef", "conditions: {terminating: true}, targetRef", 1), live(trusted, 0, stream(events.Synced)), []string{"Ready=False/NoReadyEndpoint"}},
		"an engine that is experimental":     {poolWith("engine: {type: SGLang}"), smallSlice, Live{}, []string{"Accepted=True/EngineExperimental"}},
		"engines that check keys":            {poolWith("engine: {apiKey: {name: k, key: token}}"), smallSlice + keySecret, Live{}, []string{"Accepted=True/Accepted"}},
		"a key for every client":             {poolWith("engine: {apiKey: {name: k, key: token}, clientAuth: PoolKey}"), smallSlice + keySecret, Live{}, []string{"Accepted=True/ClientsUnchecked"}},
		"a key for all tenants":              {poolWith("engine: {apiKey: {name: k, key: token}, clientAuth: PoolKey}"), smallSlice + keySecret + "---\n" + byHeader, Live{}, []string{"Accepted=True/Accepted"}},
		"no key for anybody":                 {poolWith("engine: {clientAuth: PoolKey}"), smallSlice, Live{}, []string{"Accepted=True/Accepted"}},
		"a reference to a missing object":    {poolWith("keySpace: {secretRef: {name: r}}"), smallSlice, Live{}, []string{"Accepted=False/ReferenceNotFound", "Ready=False/NotAccepted"}},
		"something cannot be done":           {smallPool, smallSlice + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: m-key}\nstringData: {root: short}\n", Live{}, []string{"Accepted=False/Invalid", "Ready=False/NotAccepted"}},
		"windows cannot be followed":         {smallPool, smallSlice, approximate(live(picker.Hits{Answers: 100}, 100, stream(events.Synced)), true, false), []string{"PredictionsTrusted=True/MatchesApproximate"}},
		"blocks cannot be identified":        {smallPool, smallSlice, unidentified(live(picker.Hits{Answers: 100}, 100, stream(events.Synced))), []string{"PredictionsTrusted=True/MatchesApproximate"}},
		"the last block is dropped":          {smallPool, smallSlice, approximate(live(picker.Hits{Answers: 100}, 100, stream(events.Synced)), false, true), []string{"PredictionsTrusted=True/MatchesApproximate"}},
		"hashes cover what follows":          {smallPool, smallSlice, ahead(live(picker.Hits{Answers: 100}, 100, stream(events.Synced))), []string{"PredictionsTrusted=True/MatchesApproximate"}},
		"an engine without events":           {smallPool, smallSlice, silent(live(trusted, 0, stream(events.Disconnected))), []string{"EventsSynced=False/EventsDisabled"}},
		"too few answers":                    {smallPool, smallSlice, live(picker.Hits{Answers: 99}, 99), []string{"PredictionsTrusted=Unknown/TooFewReplies"}},
		"answers that do not tell":           {smallPool, smallSlice, live(picker.Hits{}, 100), []string{"PredictionsTrusted=Unknown/NoCachedTokens"}},
		"streams without usage":              {smallPool, smallSlice, live(picker.Hits{Silent: 60, Uncached: 40}, 100), []string{"PredictionsTrusted=Unknown/NoUsage"}},
		"usage without what was cached":      {smallPool, smallSlice, live(picker.Hits{Silent: 40, Uncached: 60}, 100), []string{"PredictionsTrusted=Unknown/NoCachedTokens"}},
		"what was announced is not found":    {smallPool, smallSlice, distrusted(live(picker.Hits{Answers: 40}, 40)), []string{"PredictionsTrusted=False/Mispredicting"}},
		"no engine has listed its models":    {smallPool, smallSlice, listing(picker.Listing{}), []string{"PredictionsTrusted=Unknown/TooFewReplies ResourcesSuffice=True/Sufficient"}},
		"all engines list the model":         {smallPool, smallSlice, listing(picker.Listing{Endpoints: 2}), []string{"ModelServed=True/Served"}},
		"an engine lists other models only":  {smallPool, smallSlice, listing(picker.Listing{Endpoints: 2, Lacking: 1}), []string{"ModelServed=False/ModelNotListed"}},
		"resources suffice":                  {smallPool, smallSlice, live(picker.Hits{}, 0), []string{"ResourcesSuffice=True/Sufficient"}},
		"memory runs short":                  {smallPool, smallSlice, short(overload.Memory), []string{"ResourcesSuffice=False/MemoryShort"}},
		"goroutines run short":               {smallPool, smallSlice, short(overload.Goroutines), []string{"ResourcesSuffice=False/GoroutinesShort"}},
		"a port is full":                     {smallPool, smallSlice, fullPort("gateways"), []string{"ResourcesSuffice=False/ConnectionsFull"}},
		"descriptors run short":              {smallPool, smallSlice, short(overload.Descriptors), []string{"ResourcesSuffice=False/DescriptorsShort"}},
		"a gateway that follows":             {smallPool, smallSlice, through(picker.GatewayStats{Reported: 1}), []string{"GatewayConforms=True/Conforms"}},
		"a gateway that goes elsewhere":      {smallPool, smallSlice, through(picker.GatewayStats{Reported: 9, Ignores: true, Buffers: true}), []string{"GatewayConforms=False/PicksNotFollowed"}},
		"a gateway that buffers":             {smallPool, smallSlice, through(picker.GatewayStats{Streams: 9, Buffers: true}), []string{"GatewayConforms=False/AnswersBuffered"}},
		"nothing to find, and nothing found": {smallPool, smallSlice, live(picker.Hits{Answers: 100}, 100), []string{"PredictionsTrusted=True/Trusted"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := []string{"pool.yaml", tc.pool}
			if tc.slice != "" {
				files = append(files, "pods.yaml", tc.slice)
			}
			s, _ := load(t, open(t, files...))
			got := said(poolOf(t, NewBoard().Update(time.Unix(1, 0), s, tc.live)).Status.Conditions)
			for _, want := range tc.want {
				if !strings.Contains(got+" ", want+" ") {
					t.Errorf("conditions %s lack %s", got, want)
				}
			}
		})
	}
}

// The message names each gateway that deviates and the setting that changes it, and no other gateway.
func TestGatewayConformsNamesGatewaysAndSettings(t *testing.T) {
	const good, ignoring, buffering, both = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"
	all := map[string]picker.GatewayStats{
		good:      {Gateway: good, Reported: 9, Streams: 9},
		ignoring:  {Gateway: ignoring, Reported: 9, Ignores: true},
		buffering: {Gateway: buffering, Streams: 9, Buffers: true},
		both:      {Gateway: both, Reported: 9, Streams: 9, Ignores: true, Buffers: true},
	}
	destination, mode := []string{"x-gateway-destination-endpoint", "all pods"}, []string{"response_body_mode", "FULL_DUPLEX_STREAMED", "aigateway.envoyproxy.io/processing-body-mode"}
	for name, tc := range map[string]struct {
		gateways, named, settings []string
		reason                    string
	}{
		"none deviates":         {[]string{good}, nil, nil, "Conforms"},
		"one ignores picks":     {[]string{good, ignoring}, []string{ignoring}, destination, "PicksNotFollowed"},
		"one buffers answers":   {[]string{buffering, good}, []string{buffering}, mode, "AnswersBuffered"},
		"two do, in order":      {[]string{both, good, ignoring}, []string{ignoring, both}, destination, "PicksNotFollowed"},
		"one does both":         {[]string{both}, []string{both}, append(destination, mode...), "PicksNotFollowed"},
		"each does another one": {[]string{ignoring, buffering}, []string{ignoring, buffering}, append(destination, mode...), "PicksNotFollowed"},
	} {
		t.Run(name, func(t *testing.T) {
			l := live(picker.Hits{}, 0)
			for _, address := range tc.gateways {
				l.Pools[0].Gateways = append(l.Pools[0].Gateways, all[address])
			}
			s, _ := load(t, open(t, "pool.yaml", smallPool, "pods.yaml", smallSlice))
			c := meta.FindStatusCondition(poolOf(t, NewBoard().Update(time.Unix(1, 0), s, l)).Status.Conditions, v1alpha1.ConditionGatewayConforms)
			if c == nil || c.Reason != tc.reason {
				t.Fatalf("condition %+v, want reason %s", c, tc.reason)
			}
			at := 0
			for _, address := range tc.named {
				i := strings.Index(c.Message[at:], address)
				if i < 0 {
					t.Fatalf("%q does not name %s, or not in order", c.Message, address)
				}
				at += i
			}
			for address := range all {
				if !slices.Contains(tc.named, address) && strings.Contains(c.Message, address) {
					t.Errorf("%q names %s", c.Message, address)
				}
			}
			for _, setting := range tc.settings {
				if !strings.Contains(c.Message, setting) {
					t.Errorf("%q does not name %s", c.Message, setting)
				}
			}
		})
	}
}

func TestWhichPredictionsAreNotTrustedShows(t *testing.T) {
	s, _ := load(t, open(t, "pool.yaml", smallPool, "pods.yaml", smallSlice))
	one := picker.Distrust{Endpoint: "a/0", Tokens: picker.TokensExact, Kind: openai.KindTools, Announced: 320, Found: 16}
	odd := picker.Distrust{Endpoint: "b/1", Tokens: picker.TokensGiven, Kind: openai.KindIDs, Traits: picker.TraitFields, Announced: 640}
	for want, list := range map[string][]picker.Distrust{
		"did not remove: a/0 for requests of kind tools, tokens exact (16 of 320 tokens found). Compare":                                                        {one},
		"(16 of 320 tokens found); b/1 for requests of kind ids with fields that can concern the cache or are not known, tokens given (0 of 640 tokens found).": {one, odd},
		"(0 of 640 tokens found); and 2 more. Compare": {one, one, odd, one, one},
	} {
		l := distrusted(live(picker.Hits{}, 0))
		l.Pools[0].Trust.Distrusted = list
		for _, c := range poolOf(t, NewBoard().Update(time.Unix(1, 0), s, l)).Status.Conditions {
			if c.Type == v1alpha1.ConditionPredictionsTrusted && !strings.Contains(c.Message, want) {
				t.Errorf("message %q, want %q in it", c.Message, want)
			}
		}
	}
}

func TestWhyNoEngineHasDialedShows(t *testing.T) {
	s, _ := load(t, open(t, "pool.yaml", poolWith("engine: {events: {source: Listen}}"), "pods.yaml", smallSlice))
	for want, dial := range map[string]DialIn{
		"1 of 1 endpoints have not connected to :5557":                                     {Address: ":5557"},
		"1 of 1 endpoints have not connected to :5557, where nothing listens: no":          {Address: ":5557", Err: errors.New("no")},
		"1 of 1 endpoints have not connected to :5557; turned away: 3 NoTopic, 1 OtherPod": {Address: ":5557", Strangers: [events.NumStrangers]uint64{events.NoTopic: 3, events.OtherPod: 1}},
	} {
		l := live(picker.Hits{}, 0)
		l.DialIn = dial
		for _, c := range poolOf(t, NewBoard().Update(time.Unix(1, 0), s, l)).Status.Conditions {
			if c.Type == v1alpha1.ConditionEventsSynced && c.Message != want {
				t.Errorf("message %q, want %q", c.Message, want)
			}
		}
	}
}

// TestEndpointsThatDoNotAnswerShow: an endpoint that has stalled is not ready, and the message says why.
func TestEndpointsThatDoNotAnswerShow(t *testing.T) {
	s, _ := load(t, open(t, "pool.yaml", smallPool, "pods.yaml", smallSlice))
	l := live(picker.Hits{}, 0)
	l.Pools[0].Endpoints = []picker.EndpointStats{{ID: s.Specs[0].Endpoints[0].ID, Stalled: true}}
	status := poolOf(t, NewBoard().Update(time.Unix(1, 0), s, l)).Status
	found := false
	for _, c := range status.Conditions {
		found = found || c.Type == v1alpha1.ConditionReady && c.Status == "False" && c.Message == "0 of 1 endpoints; without an answer: 1"
	}
	if !found {
		t.Errorf("%+v", status.Conditions)
	}
}

func TestARefusalOfThePickerShows(t *testing.T) {
	s, _ := load(t, open(t, "pool.yaml", smallPool, "policy.yaml", smallPolicy))
	for name, tc := range map[string]struct {
		refusal Refusal
		want    string
	}{
		"a name of another pool": {Refusal{Err: errors.New("no")}, "Accepted=False/NameTaken"},
	} {
		t.Run(name, func(t *testing.T) {
			list := NewBoard().Update(time.Unix(1, 0), s, Live{Refused: map[types.NamespacedName]Refusal{pool0: tc.refusal}})
			if got := said(poolOf(t, list).Status.Conditions); !strings.Contains(got, tc.want) {
				t.Errorf("conditions %s lack %s", got, tc.want)
			}
			if diff := cmp.Diff([]string{"InferencePool default/m: no"}, list.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if got := said(policyOf(t, list).Status.Ancestors[0].Conditions); !strings.Contains(got, "Programmed=False/Reconciling") {
				t.Errorf("conditions %s of the policy, want it not to be programmed", got)
			}
		})
	}
}

func policyOf(t *testing.T, list *List) *v1alpha1.RoutingPolicy {
	t.Helper()
	for _, item := range list.Items {
		if p, ok := item.(*v1alpha1.RoutingPolicy); ok {
			return p
		}
	}
	t.Fatal("no policy")
	return nil
}

func TestPolicyConditions(t *testing.T) {
	tenants := "admission: {tenants: {identification: APIKey, secretRefs: [{name: keys}], classes: [{name: default}]}}"
	for name, tc := range map[string]struct {
		files []string
		want  string
	}{
		"in force":         {[]string{"pool.yaml", smallPool}, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		"no target":        {nil, "Accepted=False/TargetNotFound ResolvedRefs=True/ResolvedRefs"},
		"another's target": {[]string{"pool.yaml", smallPool, "a.yaml", strings.Replace(smallPolicy, "name: p}", "name: z}", 1)}, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		"no Secret":        {[]string{"pool.yaml", smallPool, "policy.yaml", strings.Replace(smallPolicy, "strategy: {type: LeastLoad}", tenants, 1)}, "Accepted=True/Accepted ResolvedRefs=False/SecretNotFound Programmed=True/Programmed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, append([]string{"policy.yaml", smallPolicy}, tc.files...)...)
			s, _ := load(t, d)
			list := NewBoard().Update(time.Unix(1, 0), s, Live{})
			if got := said(policyOf(t, list).Status.Ancestors[0].Conditions); got != tc.want {
				t.Errorf("conditions %s, want %s", got, tc.want)
			}
		})
	}
	t.Run("the loser of a conflict", func(t *testing.T) {
		s, _ := load(t, open(t, "pool.yaml", smallPool, "a.yaml", smallPolicy, "b.yaml", strings.Replace(smallPolicy, "name: p}", "name: a}", 1)))
		list := NewBoard().Update(time.Unix(1, 0), s, Live{})
		last, ok := list.Items[len(list.Items)-1].(*v1alpha1.RoutingPolicy)
		if !ok || last.Name != "p" {
			t.Fatalf("the last item is not policy p")
		}
		c := last.Status.Ancestors[0].Conditions[0]
		if c.Reason != "Conflicted" || !strings.Contains(c.Message, "RoutingPolicy a") {
			t.Errorf("condition %+v, want a conflict with a", c)
		}
	})
}

func TestStatusOfAPool(t *testing.T) {
	slice := smallSlice + "- {addresses: [127.0.0.2], conditions: {ready: false}, targetRef: {name: m-1, uid: u1}}\n" +
		"- {addresses: [127.0.0.3], conditions: {terminating: true}, targetRef: {name: m-2, uid: u2}}\n"
	slice = strings.Replace(slice, "[{name: http, port: 8001}, {name: kv-events, port: 6001}, {name: kv-replay, port: 7001}]", "[]", 1)
	d := open(t, "pool.yaml", poolWith("engine: {dataParallel: {ranks: 2}}"), "pods.yaml", slice, "policy.yaml", smallPolicy)
	s, problems := load(t, d)
	wantNoProblem(t, problems)
	board := NewBoard()
	l := live(picker.Hits{}, 0, stream(events.Synced), stream(events.Synced), stream(events.Degraded))
	status := poolOf(t, board.Update(time.Unix(100, 0), s, l)).Status

	text, err := json.Marshal(status.Endpoints)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"total":6,"ready":2,"synced":2,"degraded":1}`; string(text) != want {
		t.Errorf("endpoints %s, want %s", text, want)
	}
	if *status.Replicas != 3 || *status.ReadyReplicas != 1 || *status.DrainingReplicas != 1 {
		t.Errorf("%d pods, %d ready, %d draining, want 3, 1, 1", *status.Replicas, *status.ReadyReplicas, *status.DrainingReplicas)
	}
	since := metav1.NewTime(time.Unix(100, 0))
	want := []v1alpha1.PodSummary{{Name: "m-2", Stage: "Draining", Since: &since}, {Name: "m-1", Stage: "Loading", Since: &since}}
	if diff := cmp.Diff(want, status.Pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if status.RoutingPolicy.Name != "p" || status.RoutingPolicy.Generation != 1 || status.KeySpace.KeyID != s.Pools[0].KeyID || status.KeySpace.BlockTokens != 16 {
		t.Errorf("policy %+v, keys %+v", status.RoutingPolicy, status.KeySpace)
	}

	// What is as before has been so since then.
	l.Streams[pool0][2] = stream(events.Synced)
	l.Streams[pool0] = append(l.Streams[pool0], stream(events.Synced), stream(events.Synced), stream(events.Synced))
	status = poolOf(t, board.Update(time.Unix(200, 0), s, l)).Status
	for _, c := range status.Conditions {
		want := time.Unix(100, 0)
		if c.Type == v1alpha1.ConditionEventsSynced {
			want = time.Unix(200, 0)
		}
		if !c.LastTransitionTime.Time.Equal(want) {
			t.Errorf("%s has changed at %s, want %s", c.Type, c.LastTransitionTime.Time, want)
		}
	}
	if !status.Pods[0].Since.Equal(&since) {
		t.Errorf("the pod drains since %s, want %s", status.Pods[0].Since, since)
	}
	if s.Pools[0].Object.Status.Conditions != nil {
		t.Error("the state was changed")
	}
}

// TestAStrategyOfALaterRelease: definitions may be newer than the picker. What it does not know is not in force, the
// last good state is, and the generation in the status is the one that the picker follows.
func TestAStrategyOfALaterRelease(t *testing.T) {
	for name, inShadow := range map[string]bool{"in force": false, "in shadow": true} {
		t.Run(name, func(t *testing.T) {
			d := open(t, "pool.yaml", smallPool, "policy.yaml", smallPolicy)
			load(t, d)
			objects := d.collect()
			p := objects.Policies[0].DeepCopy()
			p.Generation = 2
			if inShadow {
				p.Spec.Shadow = []v1alpha1.ShadowStrategy{{Name: "s", Strategy: v1alpha1.Strategy{Type: "Later"}, SamplePercent: 100}}
			} else {
				p.Spec.Strategy.Type = "Later"
			}
			objects.Policies[0] = p
			s := d.translator.Translate(objects)
			list := NewBoard().Update(time.Unix(1, 0), s, Live{})
			if got := poolOf(t, list).Status.RoutingPolicy; got.Name != "p" || got.Generation != 1 || only(t, s).Policy.Strategy.Type != policy.LeastLoad {
				t.Errorf("policy in force %+v, want p of generation 1", got)
			}
			if got, want := said(policyOf(t, list).Status.Ancestors[0].Conditions), "Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs"; got != want {
				t.Errorf("conditions %s, want %s", got, want)
			}
			wantProblem(t, list.Problems, "RoutingPolicy default/p", `strategy "Later" is not available`, "the last good state stays in force")

			// One that was never acted on has none.
			fresh := openAt(t, d.path)
			if s := fresh.translator.Translate(objects); only(t, s).Policy.Strategy.Type != policy.MarginalCost || strings.Contains(s.Problems[0].Error(), "last good") {
				t.Errorf("a fresh picker follows %s; problems %v", only(t, s).Policy.Strategy.Type, s.Problems)
			}
		})
	}
}
