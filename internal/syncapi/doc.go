// Package syncapi carries what reporters tell pickers over gRPC: the service, who may use it, and both its ends. What
// is said is decided in package report.
//
// There is one stream for each endpoint. What waits to be applied waits in it, in its order, and HTTP/2's flow control
// bounds it in bytes: a picker that is slow slows down the reporter, which then tells it in fewer and larger messages,
// or by a digest when its log no longer reaches back. One endpoint does not hold up another.
package syncapi
