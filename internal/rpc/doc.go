// Package rpc carries the state that reporters send to pickers, and pickers to each other, over gRPC: the services,
// their authentication, and both their ends. Packages report and peer decide on the contents.
//
// Each endpoint's reports have one stream. Messages to be applied wait in it, in order, and HTTP/2's flow control bounds
// them in bytes: a slow picker slows down the reporter, which then sends fewer and larger messages, or a digest when its
// log no longer reaches back. One endpoint does not hold up another.
//
// Each picker dials every other one (Mesh) and sends its own state in one stream; it receives the state of the others in
// their streams (PeerService).
package rpc
