package chatprompt

import (
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// release is a release of vLLM, major*1000 + minor; 0 when it is not known.
type release int

// oldest is the first release whose rules are known, v0.11.
const oldest release = 11

// parseRelease reads a version like "0.17.1", "v0.24.0rc1" or "0.20.0+cu129". Versions without a number count as not known.
func parseRelease(s string) release {
	major, rest, ok := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	if end := strings.IndexFunc(minor, func(c rune) bool { return c < '0' || c > '9' }); end >= 0 {
		minor = minor[:end]
	}
	x, errMajor := strconv.Atoi(major)
	y, errMinor := strconv.Atoi(minor)
	if !ok || errMajor != nil || errMinor != nil || x < 0 || x > 1000 || y < 0 || y > 999 {
		return 0
	}
	return release(x*1000 + y)
}

// Before reports whether a version is known to be older than a release of vLLM.
func Before(version string, major, minor int) bool {
	r := parseRelease(version)
	return r != 0 && r < release(major*1000+minor)
}

// change is a change of vLLM's behaviour between two releases: no release below without has it, every one from with on has
// it.
type change struct{ without, with release }

// The changes that a prompt can depend on. The numbers in brackets are vLLM's pull requests.
var (
	// noToolCalls: an empty list of tool calls is dropped.
	noToolCalls = change{11, 17}
	// bothReasonings: an assistant's reasoning reaches the template, as reasoning and as reasoning_content (#33635).
	// Before v0.11.1 it was dropped.
	bothReasonings = change{11, 17}
	// renamedReasoning: reasoning_content in a request is read as reasoning (#42664). Before, it is dropped.
	renamedReasoning = change{21, 23}
	// flatToolContent: content of the role tool is a string for every template (#39899).
	flatToolContent = change{19, 21}
	// effortThinks: reasoning_effort also sets enable_thinking (#43401).
	effortThinks = change{21, 24}
	// effortPassed: reasoning_effort is a variable of the template.
	effortPassed = change{11, 15}
	// systemDevelopers: messages of the role developer become system messages, and all system messages merge into one,
	// where the template does not know the role.
	systemDevelopers = change{23, 23}
	// partExtras: fields of a text part that no kind of part defines reach a template that goes over parts.
	partExtras = change{26, 26}
	// objectArguments: arguments of a tool call that are no JSON object become an empty one.
	objectArguments = change{29, 29}
	// messagesKnown: the chats that Messages requests become are known. Before, vLLM converted system messages in other ways.
	messagesKnown = change{24, 24}
	// messagesSalted: the chat of a Messages request has its cache_salt, which was ignored before.
	messagesSalted = change{27, 27}
	// responsesKnown: the chats that Responses requests become are known. Before, vLLM left tools as they are and put the
	// parts of an assistant's turn into several messages.
	responsesKnown = change{27, 27}
	// messagesThink: thinking of a Messages request counts, and whether inline system messages are merged depends on the
	// templates in use instead of --chat-template.
	messagesThink = change{31, 31}
	// billingDropped: the line with which Claude Code begins system texts, new in each request, is dropped.
	billingDropped = change{32, 32}
	// fieldsWin: add_generation_prompt and the like count more as fields of the request than among
	// chat_template_kwargs, and of the latter those that are null or "auto" are dropped (#32863).
	fieldsWin = change{14, 17}
	// fileCounts: tokenizer.json alone defines the tokens around a text, whatever the tokenizer's class (#30566, with
	// release 5 of the transformers library; v0.19.1 has it, v0.19.0 has not).
	fileCounts = change{19, 20}
)

// TokenizerOf is t as a release of vLLM uses it; as recent ones do where that is not known.
func TokenizerOf(t *tokenizer.Tokenizer, release string) *tokenizer.Tokenizer {
	if other := t.OfClass(); other != nil && parseRelease(release).has(fileCounts) == no {
		return other
	}
	return t
}

// answer is what is known about a change in a release.
type answer uint8

const (
	unknown answer = iota
	no
	yes
)

func (r release) has(c change) answer {
	switch {
	case r >= c.with:
		return yes
	case r != 0 && r < c.without:
		return no
	}
	return unknown
}

// ParseRelease reads a version of vLLM: major*1000 + minor. Not ok when it has no number.
func ParseRelease(version string) (number int, ok bool) {
	r := parseRelease(version)
	return int(r), r != 0
}
