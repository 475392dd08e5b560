// Package chatprompt performs the engine's steps from a chat request to its prompt: it reads the request as vLLM reads it,
// puts messages and tools into the form that the model's template expects, renders the template, and encodes the text. Then
// the ids are those that the engine will look up in its cache.
//
// vLLM's behaviour differs between its releases. The differences are known by release (see release.go); if a request
// depends on something unknown, or that this package does not implement, the error wraps ErrUnsupported, and the engine
// must be asked. It never guesses.
package chatprompt
