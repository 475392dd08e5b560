package openai

// Usage is what the engine counted for a request, in tokens.
type Usage struct {
	PromptTokens, CompletionTokens int
	// CachedTokens of the prompt were in the engine's prefix cache; meaningful if HaveCached, which engines leave out
	// unless they are configured to report it.
	CachedTokens     int
	Have, HaveCached bool
}

// read reads a usage object of any route but Messages, depth levels inside others.
func (u *Usage) read(s *scanner, depth int, route Route) bool {
	u.Have = true
	prompt, output, details := "prompt_tokens", "completion_tokens", "prompt_tokens_details"
	if route == Responses {
		prompt, output, details = "input_tokens", "output_tokens", "input_tokens_details"
	}
	return s.object(depth, func(key span) bool {
		var buf [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case prompt:
			n, _, ok := s.count(depth + 1)
			u.PromptTokens = n
			return ok
		case output:
			n, _, ok := s.count(depth + 1)
			u.CompletionTokens = n
			return ok
		case details:
			u.CachedTokens, u.HaveCached = 0, false
			if s.space() == '{' {
				return u.details(s, depth+1)
			}
		}
		return s.skip(depth + 1)
	})
}

func (u *Usage) details(s *scanner, depth int) bool {
	return s.object(depth, func(key span) bool {
		var buf [maxName]byte
		if string(nameOf(s.b, key, &buf)) != "cached_tokens" {
			return s.skip(depth + 1)
		}
		var ok bool
		u.CachedTokens, u.HaveCached, ok = s.count(depth + 1)
		return ok
	})
}

// count reads any value: what it counts, and whether it is a number. Negative numbers and fractions count as 0.
func (s *scanner) count(depth int) (n int, isNumber, ok bool) {
	c := s.space()
	at := s.i
	if !s.skip(depth) {
		return 0, false, false
	}
	return max(integer(c, s.b[at:s.i]), 0), c == '-' || c-'0' <= 9, true
}

// messageUsage is a usage object of the Anthropic API, where the tokens of a prompt are counted separately: those read from
// the cache, those written to it, and the rest. A stream sends each number when it is known; an absent one keeps its
// earlier value.
type messageUsage struct {
	have bool
	of   [len(messageCounts)]struct {
		n    int
		have bool
	}
}

var messageCounts = [...]string{"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}

func (m *messageUsage) read(s *scanner, depth int) bool {
	*m = messageUsage{have: true}
	return s.object(depth, func(key span) bool {
		var buf [maxName]byte
		i := keyIndex(messageCounts[:], nameOf(s.b, key, &buf))
		if i < 0 {
			return s.skip(depth + 1)
		}
		var ok bool
		m.of[i].n, m.of[i].have, ok = s.count(depth + 1)
		return ok
	})
}

// add applies the values of a later object.
func (m *messageUsage) add(later *messageUsage) {
	m.have = m.have || later.have
	for i, c := range later.of {
		if c.have {
			m.of[i] = c
		}
	}
}

// usage is the same in the words of the other routes.
func (m *messageUsage) usage() Usage {
	return Usage{
		PromptTokens:     m.of[0].n + m.of[2].n + m.of[3].n,
		CompletionTokens: m.of[1].n,
		CachedTokens:     m.of[2].n,
		Have:             m.have,
		HaveCached:       m.of[2].have,
	}
}
