// Package lab compares strategies offline: it plays a workload against model engines in virtual time and lets the
// production picker choose, with its index, its load accounting and its strategies.
//
// One run is a discrete-event simulation. The events are arrivals, the ends of engine steps, the delivery of cache
// events (a lag after the step that queued them), and looks at the engines' own metrics. A request is keyed as the
// picker keys it, PickKeyed chooses, the engine of the chosen pod computes, and the picker is notified of the first
// token and of the end, as by a proxy. Nothing sleeps and no goroutine is started: the same seed gives the same
// result, except for the time that decisions take, which is measured.
//
// Pickers send each other what they have assigned to the pods, by the code of internal/replicas over links that take a
// millisecond; and pods can run LoRA adapters, few at a time.
//
// What is not simulated: the rest of the network, the proxy, the tokenizer, and failures of pods. They take no
// time.
package lab
