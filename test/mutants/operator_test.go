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
			name: "the name of a new pod depends on when it is made",
			file: "internal/operator/lifecycle/lifecycle.go",
			old:  "	slot, revision := 0, r.nextRevision()\n",
			new:  "	slot, revision := r.Now.Second(), r.nextRevision()\n",
			pkg:  "./internal/operator/lifecycle", test: "TestMake",
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
