// Package chat makes up conversations: several sessions with one system prompt in common, each a few turns long, every
// turn sent some time after the answer to the one before. The text is made of a few hundred words and means nothing;
// its lengths and times are what matters. All of it follows from the seed.
package chat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// TokenTime is how long a token of an answer is expected to take.
const TokenTime = 15 * time.Millisecond

// Config describes the conversations.
type Config struct {
	// Sessions begin at even distances over Span; turns that are expected after it are left out.
	Sessions int
	Span     time.Duration
	// SystemWords is the length of the common system prompt. A word is about 1.1 tokens.
	SystemWords int
	// MinTurns and MaxTurns bound the turns of a session that Span does not cut, MinWords and MaxWords the user's words in one, MinAnswer and
	// MaxAnswer the tokens of an answer.
	MinTurns, MaxTurns   int
	MinWords, MaxWords   int
	MinAnswer, MaxAnswer int
	// MeanThink is the mean time between an answer's end and the next turn, exponentially distributed between a quarter
	// and three times of it.
	MeanThink time.Duration
	Seed      uint64
}

// Default is the chat of the demo: a support bot with a long system prompt.
func Default(sessions int, span time.Duration) Config {
	return Config{
		Sessions: sessions, Span: span, SystemWords: 1800,
		MinTurns: 3, MaxTurns: 9, MinWords: 30, MaxWords: 250, MinAnswer: 80, MaxAnswer: 350,
		MeanThink: 15 * time.Second, Seed: 1,
	}
}

// Session is one conversation.
type Session struct {
	// Start is when the first turn is sent, since the beginning.
	Start time.Duration
	Turns []Turn
}

// Turn is what the user says, and the length of the answer.
type Turn struct {
	User string
	// MaxTokens bounds the answer.
	MaxTokens int
	// Think passes between the end of the previous answer and this turn; 0 for the first.
	Think time.Duration
}

// Script is the system prompt and the sessions that begin with it.
type Script struct {
	System   string
	Sessions []Session
}

// Requests is the number of turns of all sessions.
func (s *Script) Requests() int {
	n := 0
	for i := range s.Sessions {
		n += len(s.Sessions[i].Turns)
	}
	return n
}

// New writes the conversations of a configuration. It fails if a bound is not one.
func New(c Config) (*Script, error) {
	for _, b := range []struct {
		what     string
		low, top int
	}{
		{"turns", c.MinTurns, c.MaxTurns}, {"words", c.MinWords, c.MaxWords}, {"tokens of an answer", c.MinAnswer, c.MaxAnswer},
	} {
		if b.low < 1 || b.top < b.low {
			return nil, fmt.Errorf("chat: %d to %d %s", b.low, b.top, b.what)
		}
	}
	if c.Sessions < 0 || c.SystemWords < 0 || c.Span < 0 || c.MeanThink < 0 {
		return nil, fmt.Errorf("chat: %d sessions over %v, %d words of system prompt, thinking %v: want none negative",
			c.Sessions, c.Span, c.SystemWords, c.MeanThink)
	}
	random := rand.New(rand.NewPCG(c.Seed, 0x6b76617369720000))
	script := &Script{System: text(random, c.SystemWords), Sessions: make([]Session, c.Sessions)}
	for i := range script.Sessions {
		s := &script.Sessions[i]
		s.Start = c.Span * time.Duration(2*i+1) / time.Duration(2*c.Sessions)
		expected := s.Start
		for j := range between(random, c.MinTurns, c.MaxTurns) {
			turn := Turn{
				User:      text(random, between(random, c.MinWords, c.MaxWords)),
				MaxTokens: between(random, c.MinAnswer, c.MaxAnswer),
			}
			if j > 0 {
				turn.Think = think(random, c.MeanThink)
			}
			if expected += turn.Think; expected < c.Span {
				s.Turns = append(s.Turns, turn)
			}
			expected += time.Duration(turn.MaxTokens) * TokenTime
		}
	}
	return script, nil
}

// between is uniform over [low, top].
func between(random *rand.Rand, low, top int) int { return low + random.IntN(top-low+1) }

func think(random *rand.Rand, mean time.Duration) time.Duration {
	x := math.Min(3, math.Max(0.25, random.ExpFloat64()))
	return time.Duration(x * float64(mean))
}

// text is n words in sentences.
func text(random *rand.Rand, n int) string {
	var b strings.Builder
	for left := n; left > 0; {
		sentence := min(left, between(random, 6, 16))
		for i := range sentence {
			word := words[random.IntN(len(words))]
			switch {
			case i == 0 && b.Len() > 0:
				b.WriteByte(' ')
				fallthrough
			case i == 0:
				b.WriteString(strings.ToUpper(word[:1]) + word[1:])
			default:
				b.WriteByte(' ')
				b.WriteString(word)
			}
		}
		b.WriteByte('.')
		left -= sentence
	}
	return b.String()
}

var words = strings.Fields(`
able about account across again agent all along already also always amount answer any area around ask attach average
back balance basic become before begin below best better between bill block book both bring build button cable call
cancel card care case cause change charge check choose city clear close code collect come common company complete
connect contact copy correct cost count country cover create credit current customer daily data date day deal decide
delay deliver depend describe detail device different direct discount document door down draft drive early easy edit
email empty end enough enter error even every exact example expect explain fact fail fast fee few field file final find
first fix follow form found free from full gather general give go good group grow guide half hand happen hard have
head help here high hold home hour house idea include inform inside instead invoice issue item join just keep key kind
know label large last late learn leave left less letter level light limit line link list little local long look lose
main make many mark matter mean measure meet member message method middle might minute miss model money month more
most move much name near need network never new next night normal note notice number offer office often old once only
open option order other out over own owner page paper part past pay people period person phone place plan point policy
possible post power present price print problem process product promise proper prove public put question quick quite
range rate reach read ready real reason receive record reduce refund region relate remain repair repeat reply report
request rest result return review right room rule safe same save say search second see seem send serve service set
several share ship short should show side sign simple since single size small some soon sort space speak special stand
start state stay step still stock stop store street strong such sum supply sure system table take talk team tell term
test than then there thing think though through ticket time today together total toward track transfer travel true try
turn under until update upon use user usual value various version very view visit wait want warranty watch way week
well when where which while whole why wide will wish within without word work world write year yes yet
`)
