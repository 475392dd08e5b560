// Package syncapi carries what reporters tell pickers, and pickers each other, over gRPC: the services, who may use
// them, and both their ends. What is said is decided in packages report and peer.
//
// Of reports there is one stream for each endpoint. What waits to be applied waits in it, in its order, and HTTP/2's flow control
// bounds it in bytes: a picker that is slow slows down the reporter, which then tells it in fewer and larger messages,
// or by a digest when its log no longer reaches back. One endpoint does not hold up another.
//
// Of pickers each dials every other (Mesh) and tells it of itself in one stream; it hears the others (PeerService) in
// streams of theirs.
package syncapi
