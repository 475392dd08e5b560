package mutants

// Of the operator: what would cut requests, or leave pods behind.
const histories = "TestWhateverHappensThePoolEndsAsDesired"

func init() {
	mutants = append(mutants, []mutant{
		{
			name: "a pod drains without a word of the pickers",
			file: "internal/operator/lifecycle/drain.go",
			old:  "	if p.Acknowledged.IsZero() || p.Load > 0 || len(p.Readings) < IdleReadings {\n",
			new:  "	if p.Load > 0 || len(p.Readings) < IdleReadings {\n",
			pkg:  "./internal/operator/lifecycle", test: "TestAnyHistoryEndsInTheDesiredState",
		},
		{
			name: "a request that only the pickers know of is not waited for",
			file: "internal/operator/lifecycle/drain.go",
			old:  "	if p.Acknowledged.IsZero() || p.Load > 0 || len(p.Readings) < IdleReadings {\n",
			new:  "	if p.Acknowledged.IsZero() || len(p.Readings) < IdleReadings {\n",
			pkg:  "./internal/operator/lifecycle", test: "TestAPodIsNotIdleWhileAPickerCountsARequestThere",
		},
		{
			name: "what is on its way to a pod is not waited for",
			file: "internal/operator/lifecycle/drain.go",
			old:  "!reading.At.After(p.Acknowledged.Add(longestWay))",
			new:  "!reading.At.After(p.Acknowledged.Add(-longestWay))",
			pkg:  "./internal/operator/lifecycle", test: "TestAnyHistoryEndsInTheDesiredState",
		},
		{
			name: "an eviction can take a pod beside the one that the operator marks for a replacement",
			file: "internal/operator/resources/network.go",
			old:  "		protected += b.Surge\n",
			new:  "		protected += 0 * b.Surge\n",
			pkg:  "./internal/operator/controller/inferencepool", test: "TestAReplacementMakesRoomForOnePodToLeave",
		},
		{
			name: "the name of a new pod depends on when it is made",
			file: "internal/operator/lifecycle/lifecycle.go",
			old:  "	slot, revision := 0, r.nextRevision()\n",
			new:  "	slot, revision := r.Now.Second(), r.nextRevision()\n",
			pkg:  "./internal/operator/lifecycle", test: "TestMake",
		},
		{
			name: "roles are rolled out without regard to pairs",
			file: "internal/operator/lifecycle/roles.go",
			old:  "	if best != nil && most < min(g.needed(), g.weight(nil))-tolerance && g.awaits() {\n",
			new:  "	if best != nil && most < -tolerance && g.awaits() {\n",
			pkg:  "./internal/operator/lifecycle", test: "TestARolloutKeepsPairs",
		},
		{
			name: "a role is rolled out before the other one, whose pods keep their partners by it",
			file: "internal/operator/lifecycle/roles.go",
			old:  "best == nil || w > most {\n",
			new:  "best == nil || w < most {\n",
			pkg:  "./internal/operator/lifecycle", test: "TestARolloutKeepsPairs",
		},
		{
			name: "the last pod that decodes goes while a pool changes its roles",
			file: "internal/operator/lifecycle/roles.go",
			old:  "	return others > 0 || least == 0\n",
			new:  "	return true\n",
			pkg:  "./internal/operator/lifecycle", test: "TestAPoolChangesItsRoles|TestAnyHistoryOfAPoolWithRolesEndsInTheDesiredState",
		},
		{
			name: "pods of new roles are made beside all old ones",
			file: "internal/operator/lifecycle/roles.go",
			old:  "	room, goes := size+surge, false\n",
			new:  "	room, goes := size+surge+9, false\n",
			pkg:  "./internal/operator/lifecycle", test: "TestAPoolChangesItsRoles",
		},
		{
			name: "hand-offs are between pods of different revisions",
			file: "internal/picker/plan.go",
			old:  "	return from != to && from.sameRevision(to) && ",
			new:  "	return from != to && ",
			pkg:  "./internal/picker", test: "TestPairsAreOfOneRevision",
		},
		{
			name: "a pod is deleted that has changed since it was seen",
			file: "internal/operator/controller/inferencepool/execute.go",
			old:  "client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})",
			new:  "client.Preconditions{})",
			pkg:  "./internal/operator/controller/inferencepool", test: histories,
		},
		{
			name: "a mark that somebody else has set is written over",
			file: "internal/operator/controller/inferencepool/execute.go",
			old:  "	meta := map[string]any{\"uid\": pod.UID, \"resourceVersion\": pod.ResourceVersion, \"annotations\": annotations}\n",
			new:  "	meta := map[string]any{\"annotations\": annotations}\n",
			pkg:  "./internal/operator/controller/inferencepool", test: "TestAMarkOfSomebodyElseIsNotWrittenOver",
		},
		{
			name: "an acknowledgement of an earlier mark counts",
			file: "internal/operator/controller/inferencepool/facts.go",
			old:  "	case !since.Before(mark.since):\n",
			new:  "	case true:\n",
			pkg:  "./internal/operator/controller/inferencepool", test: "TestTheAcknowledgementOfAnEarlierMarkDoesNotCount",
		},
	}...)
}
