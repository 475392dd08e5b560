// Package zmtp implements enough of ZeroMQ's wire protocol to follow, and to imitate, an engine's event publisher.
//
// Supported: ZMTP 3.1 and 3.0 (RFC 37 and 23) over TCP with the NULL mechanism, and the socket types SUB (dialing and
// listening), PUB (both), DEALER (dialing) and ROUTER (listening). Not supported: older protocols, CURVE, PLAIN and GSSAPI,
// ipc and inproc transports. Only the standard library is used.
//
// A socket that dials is one connection and never redials: an engine that returns might be another process with another
// cache, so the caller must see its loss. A socket that listens serves many connections. The states of a connection:
//
//	TCP connected
//	    | both send 64 bytes: signature, version, mechanism
//	    v
//	GREETED --------- not ZMTP 3, not NULL --------------------.
//	    | both send READY with their socket type               |
//	    v                                                      |
//	READY ----------- types do not fit, ERROR received --------|
//	    | SUB sends its topics                                 |
//	    v                                                      v
//	TRAFFIC --------- end of stream, malformed bytes, ------> CLOSED
//	    |   ^         a limit exceeded, silence
//	    '---' messages, PING and PONG, SUBSCRIBE and CANCEL
//
// The states before TRAFFIC must be passed within Config.HandshakeTimeout. In TRAFFIC a publisher can be silent for hours.
// A dead one is noticed by TCP keepalive (10 s idle, then three probes 5 s apart) and, where the peer uses 3.1, by a PING
// after Config.HeartbeatInterval without a byte and Config.HeartbeatTimeout without an answer.
//
// Bounds: frames, frames per message, message sizes, commands, subscriptions, peers of a listener and queued messages
// per subscriber are all limited, see Config. Memory is taken as bytes arrive and not as headers promise. Whatever a
// peer sends, the outcome is a message or an error.
package zmtp
