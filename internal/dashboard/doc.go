// Package dashboard shows people what a picker does: status, the last decisions with what each candidate would have cost,
// the hottest prefixes and the endpoints that hold them, explanations of requests that are sent nowhere, and a page with
// all of it.
//
// Nothing here runs on the path of a request but Ring.Wants, two atomic operations. The shown data never contains a
// prompt's text, a token, a key of a cache, a session or a user.
package dashboard
