package tokencheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

const (
	// enoughTexts, enoughChats and enoughOfAPI are how many ids must have been compared, and have been equal, for trust;
	// enoughNumbers is how many are needed if engines returned only the number of ids for some of them.
	enoughTexts, enoughChats, enoughOfAPI, enoughNumbers = 20, 8, 5, 10
	// askTimeout is how long an engine can take for one question.
	askTimeout = 3 * time.Second
	// askAgain is how often a question is asked that finds no answer.
	askAgain = 3
)

// ErrRefused is wrapped by errors of engines that refuse a request as it is; others are no answers.
var ErrRefused = errors.New("the engine refuses the request")

// Verdict is what the probe has found out about texts, or about chats.
type Verdict struct {
	// Compared ids were equal in so many cases; in Skipped cases there was nothing to compare, because the request
	// cannot be made here or the engine refuses it.
	Compared, Skipped int
	// Mismatches are the first case of each kind in which they were not.
	Mismatches map[openai.Kind]*Mismatch
	// Missing is why there are no ids here at all; nil where there are.
	Missing error
	// base is the kind that all cases have, and enough how many cases must have been compared.
	base   openai.Kind
	enough int
	// apis are the kinds of requests of other APIs with enough equal cases. In those that numbered has, only the numbers
	// of ids could be compared.
	apis, numbered openai.Kinds
}

// APIs are the kinds of requests of other APIs that are proven with the chats that they stand for.
func (v *Verdict) APIs() openai.Kinds { return v.apis &^ v.Unproven() }

// equals are the equal cases of one kind: those with compared ids, and those with compared numbers of ids.
type equals struct{ ids, numbers int }

// enough reports whether the kind is proven.
func (e equals) enough() bool {
	return e.ids >= enoughOfAPI || e.ids+e.numbers >= enoughNumbers
}

// Proven reports whether ids made here are those of the engine, for requests of no kind that is Unproven.
func (v *Verdict) Proven() bool {
	return v.Missing == nil && v.Mismatches[v.base] == nil && v.Compared >= v.enough
}

// Unproven are the request kinds whose ids differ.
func (v *Verdict) Unproven() (kinds openai.Kinds) {
	for kind := range v.Mismatches {
		kinds |= openai.KindsOf(kind)
	}
	return kinds
}

// complete reports whether all ids are proven.
func (v *Verdict) complete() bool { return v.Proven() && len(v.Mismatches) == 0 }

// settled reports whether no setting of the engine would change the verdict for the better.
func (v *Verdict) settled() bool {
	return v.complete() || v.Missing != nil || len(v.Mismatches) == 0
}

// better reports whether a verdict proves more than another.
func (v *Verdict) better(than *Verdict) bool {
	if v.Proven() != than.Proven() {
		return v.Proven()
	}
	return v.Proven() && len(v.Mismatches) < len(than.Mismatches)
}

// add adds what another engine has shown with the same setting.
func (v *Verdict) add(other *Verdict) {
	v.Compared, v.Skipped = min(v.Compared, other.Compared), max(v.Skipped, other.Skipped)
	v.apis, v.numbered = v.apis&other.apis, v.numbered|other.numbered
	for kind, m := range other.Mismatches {
		if v.Mismatches[kind] == nil {
			v.mismatch(kind, m)
		}
	}
}

func (v *Verdict) mismatch(kind openai.Kind, m *Mismatch) {
	if v.Mismatches == nil {
		v.Mismatches = map[openai.Kind]*Mismatch{}
	}
	v.Mismatches[kind] = m
}

// String describes the result, without any content except the probe's own.
func (v *Verdict) String() string {
	switch {
	case v.Missing != nil:
		return v.Missing.Error()
	case v.Mismatches[v.base] != nil:
		return v.Mismatches[v.base].String()
	case v.Compared < v.enough:
		return fmt.Sprintf("only %d of %d cases could be compared", v.Compared, v.Compared+v.Skipped)
	}
	text := fmt.Sprintf("%d of %d cases are equal, none differs", v.Compared, v.Compared+v.Skipped)
	if len(v.Mismatches) > 0 {
		text = fmt.Sprintf("%d cases are equal", v.Compared)
	}
	for kind := range (v.APIs() & v.numbered).All {
		text += fmt.Sprintf("; of the kind %s the numbers of tokens are equal, because the engine returns no ids of it", kind)
	}
	for kind := range v.Unproven().All {
		text += fmt.Sprintf("; the kind %s is not proven: %s", kind, v.Mismatches[kind])
	}
	return text
}

// Mismatch is a case in which ids differ.
type Mismatch struct {
	// Case is its index in Cases, Name what it is about.
	Case int
	Name string
	// At is the first token that differs, -1 where the engine has returned only their number. Own and Engine are the
	// lengths in tokens, Own -1 when the template refuses here what the engine takes.
	At, Own, Engine int
}

func (m *Mismatch) String() string {
	switch {
	case m.At < 0:
		return fmt.Sprintf("case %d (%s): %d tokens here, %d in the engine", m.Case, m.Name, m.Own, m.Engine)
	case m.Own < 0:
		return fmt.Sprintf("case %d (%s): the template refuses here what the engine takes", m.Case, m.Name)
	}
	return fmt.Sprintf("case %d (%s): token %d differs, of %d here and %d in the engine", m.Case, m.Name, m.At, m.Own, m.Engine)
}

// reply is an engine's answer to a case.
type reply struct {
	Tokens
	refused bool
}

// ask lets an engine answer all cases. It fails when a question finds no answer.
func ask(ctx context.Context, cases []Case, engine func(ctx context.Context, c *Case) (Tokens, error)) ([]reply, error) {
	replies := make([]reply, len(cases))
	for i := range cases {
		var err error
		for range askAgain {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			replies[i].Tokens, err = engine(asking, &cases[i])
			cancel()
			if err == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) {
				break
			}
		}
		if replies[i].refused = errors.Is(err, ErrRefused); err != nil && !replies[i].refused {
			return nil, fmt.Errorf("case %d (%s): %w", i, cases[i].Name, err)
		}
	}
	return replies, nil
}

// Prompter makes ids in process, as a *chatprompt.Prompter does.
type Prompter interface {
	AppendTokens(ctx context.Context, dst []uint32, body []byte, r *openai.Request) ([]uint32, error)
}

// compare compares the engine's answers with what is made here. A case that differs counts against its main kind.
func compare(ctx context.Context, cases []Case, replies []reply, own Prompter) (texts, chats Verdict, err error) {
	texts = Verdict{base: openai.KindText, enough: enoughTexts}
	chats = Verdict{base: openai.KindChat, enough: enoughChats}
	var r openai.Request
	var ids []uint32
	var equal [openai.NumKinds]equals // of other APIs
	for i := range cases {
		c, v := &cases[i], &texts
		if c.Route != openai.Completions {
			v = &chats
		}
		if err := openai.Parse(c.Route, c.Body, &r); err != nil {
			return texts, chats, fmt.Errorf("reading case %d: %w", i, err)
		}
		kind := r.Kinds().Main()
		if v.Mismatches[kind] != nil {
			continue
		}
		var failure error
		ids, failure = own.AppendTokens(ctx, ids[:0], c.Body, &r)
		switch {
		case ctx.Err() != nil:
			return texts, chats, ctx.Err()
		case errors.Is(failure, chatprompt.ErrUnsupported), failure == nil && replies[i].refused:
			v.Skipped++
		case failure != nil && replies[i].refused:
			v.Skipped++ // both refuse it
		case failure != nil:
			v.mismatch(kind, &Mismatch{Case: i, Name: c.Name, Own: -1, Engine: replies[i].len()})
		case !replies[i].equal(ids):
			m := &Mismatch{Case: i, Name: c.Name, At: -1, Own: len(ids), Engine: replies[i].len()}
			if replies[i].Number == 0 {
				m.At = commonPrefix(ids, replies[i].IDs)
			}
			v.mismatch(kind, m)
		case c.Route != openai.Messages && c.Route != openai.Responses:
			v.Compared++
		case replies[i].Number > 0:
			equal[kind].numbers++
		default:
			equal[kind].ids++
		}
	}
	for kind, e := range equal {
		if e.enough() {
			chats.apis |= openai.KindsOf(openai.Kind(kind)) // below NumKinds
		}
		if e.numbers > 0 {
			chats.numbered |= openai.KindsOf(openai.Kind(kind)) // below NumKinds
		}
	}
	return texts, chats, nil
}

func commonPrefix(a, b []uint32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
