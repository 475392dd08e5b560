package accept

import "time"

// A frame of HTTP/2 that brings neither data nor a header (settings, pings, priorities, resets, windows, and data of no bytes) takes 9 to
// 17 bytes of the connection and some microseconds of the server. So does one of a few bytes of data. Beyond what ordinary clients send,
// each costs as much as lightFields fields of headers: all connections of an address together can send 4,096 a second. Free are
// freeFrames of a connection and freePerSecond. Each request brings freePerRequest, for its end and a reset, and so do bytesPerFree that
// were written, which clients acknowledge; a connection can save mostEarned of these.
const (
	lightFields    = 8
	freeFrames     = 64
	freePerSecond  = 16
	freePerRequest = 2
	bytesPerFree   = 2 << 10 // Go's client sends two windows, a stream's and the connection's, for each 4 KiB
	mostEarned     = 1024
	// shortData is how many bytes of data a frame brings at least that costs nothing.
	shortData = 128
)

// light is what a connection has sent of such frames. The zero value is that of a new connection. It is for one goroutine.
type light struct {
	spent float64 // of freeFrames; below 0 if more was earned
	at    time.Time
}

// cost is how many fields so many frames cost that were sent with so many requests, after so many bytes were written.
func (l *light) cost(frames, requests, written int) (fields int) {
	if frames == 0 && requests == 0 && written == 0 {
		return 0
	}
	now := time.Now()
	if l.spent > 0 {
		l.spent = max(0, l.spent-freePerSecond*now.Sub(l.at).Seconds())
	}
	l.at = now
	l.spent = max(-mostEarned, l.spent+float64(frames)-float64(freePerRequest*requests)-float64(written)/bytesPerFree)
	beyond := max(0, int(l.spent)-freeFrames)
	l.spent -= float64(beyond)
	return lightFields * beyond
}
