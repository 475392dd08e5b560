// Package vllmsim is a stand-in vLLM engine with real sockets: OpenAI endpoints over HTTP, KV events with replay over
// ZeroMQ, Prometheus metrics, and underneath the block pool, scheduler and time model of package enginemodel, driven in
// real time or a multiple of it.
//
// It follows a release of vLLM (Config.Release) where a router can detect a difference, and shares no code with the
// router's own reading of events and requests, so that the two check each other. The exception is the model's tokenizer and
// chat template (Config.LoadModel), which use the packages of the picker: a second implementation of either would be worth
// less than the real engine, which verifies both.
//
//	e, err := vllmsim.Start(vllmsim.Config{})
//	defer e.Close()
//	http.Post(e.URL()+"/v1/completions", ...)
//
// What a client sees is generated without a model: each token is drawn by the prompt's hash from words that tokenize
// back to themselves, so that the next turn of a conversation finds the blocks of the previous answer.
package vllmsim
