package main

// Examples of the commands' help.
const (
	examplesRoot = `  # The default strategy and round robin on ten minutes of real traffic
  kvasir-lab run`
	examplesRun = `  # The five policies that papers compare, at twice the rate
  kvasir-lab run --policies five --speed 2

  # A decision log of your own
  kvasir-lab run --trace decisions.jsonl.gz --policies all -o html > report.html`
	examplesSweep = `  # Rank two strategies over loads
  kvasir-lab sweep --policies MarginalCost,LMetric --loads 0.3,0.6,0.9`
	examplesEffect = `  # What the exchange of pickers changes
  kvasir-lab effect --of exchange --seeds 1,2,3`
	examplesApart = `  # Long documents at two of eight pods that prefill
  kvasir-lab disaggregation --workloads documents --prefillers 2`
	examplesRoutes = `  # Sessions that stay and sessions that do not, and fallbacks
  kvasir-lab routes --seeds 1,2,3`
	examplesOverload = `  # Three times what a fleet of two pods bears
  kvasir-lab overload --factor 3 --pods 2`
)
