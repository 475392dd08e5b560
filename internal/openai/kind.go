package openai

import "math/bits"

// Kind is a property of a request that decides how its prompt is made. The prompts of one kind can be wrong while
// those of all others are right: a release of the engine treats the role developer differently, for example. What is
// proven, checked and trusted about tokens is therefore kept per kind.
//
// A request has one kind at least and often several (a chat with tools); they are a Kinds. The order is from common to
// particular: of several kinds the last one is the first suspect.
type Kind uint8

// The kinds.
const (
	// KindText: prompts are texts (completions, embeddings).
	KindText Kind = iota
	// KindIDs: prompts are token ids.
	KindIDs
	// KindList: there are several prompts.
	KindList
	// KindChat: every chat.
	KindChat
	// KindParts: some message of a chat has content in parts.
	KindParts
	// KindTools: a chat with tools, calls of tools, or their results.
	KindTools
	// KindReasoning: some message of a chat has reasoning.
	KindReasoning
	// KindArguments: a chat with arguments for its template: chat_template_kwargs, reasoning_effort, documents,
	// add_generation_prompt, continue_final_message, add_special_tokens or a template of its own.
	KindArguments
	// KindDeveloper: some message of a chat has the role developer.
	KindDeveloper
	// KindMessages: the route is /v1/messages.
	KindMessages
	// KindResponses: the route is /v1/responses.
	KindResponses
	// KindContent: the prompt has content besides text, or is kept by the engine (images, embeddings,
	// previous_response_id).
	KindContent

	NumKinds int = iota
)

var kindNames = [NumKinds]string{"text", "ids", "list", "chat", "parts", "tools", "reasoning", "arguments", "developer",
	"messages", "responses", "content"}

// String is the value of a metric label.
func (k Kind) String() string { return kindNames[k] }

// Kinds is a set of kinds.
type Kinds uint16

// KindsOf is the set of the kinds listed.
func KindsOf(list ...Kind) (k Kinds) {
	for _, kind := range list {
		k |= 1 << kind
	}
	return k
}

// Has reports whether kind is in the set.
func (k Kinds) Has(kind Kind) bool { return k&(1<<kind) != 0 }

// Main is the most particular kind of a set: the one to suspect when the prompt was not as expected, because requests
// without it are seen as well. The main kind of the empty set is KindText.
func (k Kinds) Main() Kind {
	return Kind(max(0, bits.Len16(uint16(k))-1)) // below 16
}

// All calls yield for each kind in the set, in order, until it returns false.
func (k Kinds) All(yield func(Kind) bool) {
	for ; k != 0; k &= k - 1 {
		if !yield(Kind(bits.TrailingZeros16(uint16(k)))) { // below 16
			return
		}
	}
}

// Kinds are the kinds of the request.
func (r *Request) Kinds() Kinds {
	k := r.seen
	if r.arguments != 0 {
		k |= KindsOf(KindArguments)
	}
	switch {
	case r.Route == Responses:
		k = KindsOf(KindResponses)
	case r.Route == Messages:
		k = KindsOf(KindMessages)
	case len(r.Prompts) == 0 && r.Route != Completions:
		k |= KindsOf(KindChat)
		if len(r.Tools) > 0 {
			k |= KindsOf(KindTools)
		}
	case len(r.Prompts) > 0 && r.Prompts[0].IsTokens:
		k = KindsOf(KindIDs)
	default:
		k = KindsOf(KindText)
	}
	if len(r.Prompts) > 1 {
		k |= KindsOf(KindList)
	}
	if r.Embeds || r.Multimodal || r.Stateful {
		k |= KindsOf(KindContent)
	}
	return k
}

// argumentFields of a chat are arguments of its template.
var argumentFields = [...]string{"chat_template_kwargs", "reasoning_effort", "documents", "add_generation_prompt",
	"continue_final_message", "add_special_tokens", "chat_template"}

// kindOfField is what a field of a message shows about the request's kinds; role and content are read elsewhere.
func kindOfField(field []byte) Kinds {
	switch string(field) {
	case "tool_calls", "tool_call_id":
		return KindsOf(KindTools)
	case "reasoning", "reasoning_content":
		return KindsOf(KindReasoning)
	}
	return 0
}
