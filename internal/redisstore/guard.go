package redisstore

import (
	"errors"
	"net"
	"strconv"
)

const (
	// maxLine is the longest line of an answer, without its end, in bytes.
	maxLine = 4 << 10
	// maxLists is the most lists of an answer, and the most elements of each.
	maxLists = 64
)

var errHuge = errors.New("the server's answer is larger than those of Redis to these commands")

// guarded is a connection to a server that is not trusted. The client of the library makes room for what the server announces, and reads
// lines to their ends: so lengths that are too large end the connection before the client reads them.
type guarded struct {
	net.Conn
	most  int // bytes of a value
	reply replyReader
}

// Write begins a new command: what its answer can have is counted again.
func (g *guarded) Write(p []byte) (int, error) {
	g.reply.lists = 0
	return g.Conn.Write(p)
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if !g.reply.read(p[:n], g.most) {
		_ = g.Close()
		return 0, errHuge
	}
	return n, err
}

// replyReader follows answers in RESP, the protocol of Redis, 2 or 3: lines. Some announce bytes or elements.
type replyReader struct {
	line  []byte // read of the present line
	skip  int    // bytes of a value, and its end, that are left
	lists int    // of the answer
}

// read takes the next bytes. It reports false if a line is too long, or announces more than most bytes or too many elements.
func (r *replyReader) read(p []byte, most int) bool {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.skip -= n
			p = p[n:]
			continue
		}
		c := p[0]
		p = p[1:]
		if c != '\n' {
			if r.line = append(r.line, c); len(r.line) > maxLine {
				return false
			}
			continue
		}
		if !r.announced(most) {
			return false
		}
		r.line = r.line[:0]
	}
	return true
}

// announced reads a whole line.
func (r *replyReader) announced(most int) bool {
	line := r.line
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	if len(line) == 0 {
		return true // the client refuses it
	}
	switch line[0] {
	case '$', '=', '!':
		n, err := strconv.Atoi(string(line[1:]))
		if err != nil || n < -1 || n > most {
			return false
		}
		if n >= 0 {
			r.skip = n + 2
		}
	case '*', '~', '%', '>', '|':
		n, err := strconv.Atoi(string(line[1:]))
		if r.lists++; err != nil || n < -1 || n > maxLists || r.lists > maxLists {
			return false
		}
	}
	return true
}
