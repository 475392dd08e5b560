package render

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Source is the route by which an engine has returned the ids of a request.
type Source uint8

// The sources, the most exact first.
const (
	// Rendered: the render route beside the request's own. It runs the code that prepares the request when it is served,
	// so its ids are the served ones.
	Rendered Source = iota + 1
	// Served: the request was served, and the answer has the ids of its prompt. Only Proof does that.
	Served
	// Tokenized: /tokenize, which runs the same code on those fields that it knows. Requests with others that change the
	// prompt are not asked there.
	Tokenized
)

// Lack is why an engine's render routes were not used.
type Lack uint8

// The reasons.
const (
	// LacksNothing: the routes answer, or were not asked yet.
	LacksNothing Lack = iota
	// Absent: the engine does not have the route: it is older than vLLM 0.15, or no vLLM, or vLLM 0.30 or 0.31 without
	// --enable-scale-out.
	Absent
	// SwitchedOff: vLLM 0.32 or newer runs without --enable-scale-out.
	SwitchedOff
	// Forbidden: something in front of the engine, or the engine for another reason, answers with 403.
	Forbidden
)

// engineKey is one life of an engine, as far as its address identifies it.
type engineKey struct {
	id              endpoint.ID
	address, socket string
}

func keyOf(ep *endpoint.Endpoint) engineKey { return engineKey{ep.ID, ep.Address, ep.Socket} }

// routes are what is known of the render routes of an engine, until a time.
type routes struct {
	closed Lack // of all routes: SwitchedOff or Forbidden
	until  time.Time
	absent map[openai.Route]time.Time
}

// lack is why a render route of an engine need not be asked now.
func (c *Client) lack(ep *endpoint.Endpoint, route openai.Route, now time.Time) Lack {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.routes[keyOf(ep)]
	switch {
	case r == nil:
		return LacksNothing
	case r.closed != LacksNothing && now.Before(r.until):
		return r.closed
	case now.Before(r.absent[route]):
		return Absent
	}
	return LacksNothing
}

// Lacks reports why the render routes of an engine were not used when a question was asked there last. It returns
// LacksNothing for an engine that was not asked within the last minute.
func (c *Client) Lacks(ep *endpoint.Endpoint) Lack {
	now := time.Now()
	worst := LacksNothing
	for _, route := range []openai.Route{openai.ChatCompletions, openai.Completions} {
		worst = max(worst, c.lack(ep, route, now))
	}
	return worst
}

// setLack remembers why a route cannot be asked.
func (c *Client) setLack(ep *endpoint.Endpoint, route openai.Route, lack Lack, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(ep)
	r := c.routes[key]
	if r == nil {
		c.makeRoom(now)
		r = &routes{absent: map[openai.Route]time.Time{}}
		c.routes[key] = r
	}
	if lack == Absent {
		r.absent[route] = now.Add(lackFor)
		return
	}
	r.closed, r.until = lack, now.Add(lackFor)
}

// makeRoom keeps the number of engines remembered within its bound. c.mu is held.
func (c *Client) makeRoom(now time.Time) {
	if len(c.routes) < maxLacking {
		return
	}
	for key, r := range c.routes {
		live := now.Before(r.until)
		for _, until := range r.absent {
			live = live || now.Before(until)
		}
		if !live {
			delete(c.routes, key)
		}
	}
	if len(c.routes) >= maxLacking {
		clear(c.routes)
	}
}

// forget drops what is known of an engine that could not be reached: when it answers again, another process might.
func (c *Client) forget(ep *endpoint.Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.routes, keyOf(ep))
}
