// Package chatprompt does what the engine does between a chat request and its prompt: it reads the request as vLLM
// reads it, gives the messages and tools the form that the model's template expects, renders the template, and encodes
// the text. Then the ids are those that the engine will look up in its cache.
//
// What vLLM does differs between its releases. The differences are known by release (see release.go); where a request
// depends on something that is not known, or that this package does not do, the error wraps ErrUnsupported, and the
// engine must be asked. It never guesses.
package chatprompt
