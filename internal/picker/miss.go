package picker

// Miss is why an engine found nothing of a prompt although the index had something of it.
type Miss string

// The causes.
const (
	// MissNone: something was found, or nothing was predicted.
	MissNone Miss = ""
	// MissNoCacheRead: the engine looks nothing up for such a request, so that nothing was predicted.
	MissNoCacheRead Miss = "no-cache-read"
	// MissDistrusted: the endpoint's matches are distrusted for such requests, so nothing was predicted.
	MissDistrusted Miss = "distrusted"
	// MissRetried: another endpoint served than the one that was predicted for.
	MissRetried Miss = "retried"
	// MissUnreported: the answer did not report how much was cached.
	MissUnreported Miss = "not-told"
	// MissSeveral: the prediction is for several prompts, while the answer counts one of them.
	MissSeveral Miss = "several-prompts"
	// MissApproximate: the prediction was by what was routed there before: by the text, or in a pool without events by its keys.
	MissApproximate Miss = "approximate"
	// MissDiffers: the endpoint counts or announces other tokens for such requests than the other endpoints.
	MissDiffers Miss = "endpoint-differs"
	// MissTokens: the engine counted another number of prompt tokens, so that its blocks are others.
	MissTokens Miss = "tokens-differ"
	// MissCleared: the engine cleared its cache, fell asleep or was restarted after the pick.
	MissCleared Miss = "cleared"
	// MissEvicted: the first block was removed after the pick.
	MissEvicted Miss = "evicted"
	// MissLate: events of the endpoint were late or missing, so that removals might not be known.
	MissLate Miss = "events-late"
	// MissSpeculative: no event had announced the blocks. They were assumed for requests that were just sent there, or an earlier
	// answer had shown them.
	MissSpeculative Miss = "speculative"
	// MissFields: none of these, and the request has fields that can change what the engine looks up.
	MissFields Miss = "fields"
	// MissUnknown: none of these.
	MissUnknown Miss = "unknown"
)

// missed finds the cause of a completed request's miss. Removals whose event arrives after the answer's end are not known
// yet. d.mu is held.
func (d *Decision) missed() Miss {
	t := &d.Targets[0]
	exact := d.Tokens != TokensNone && d.Tokens != TokensApproximate
	switch held := t.Found.Blocks() > 0; {
	case d.NoCacheRead && held:
		return MissNoCacheRead
	case t.Distrusted && held:
		return MissDistrusted
	case t.Predicted == 0 || d.found > 0:
		return MissNone
	case d.retried:
		return MissRetried
	case d.found < 0:
		return MissUnreported
	case d.otherTokens > 0 || len(d.more) > 0:
		return MissSeveral
	case !exact:
		return MissApproximate
	case t.Differs:
		return MissDiffers
	case d.reported.Prompt != d.PromptTokens:
		return MissTokens
	case t.member.sleep.discarded() || t.member.removals.clearedSince(d.picked):
		return MissCleared
	case len(d.keys) > 0 && t.member.removals.happened(d.keys[0], d.picked):
		return MissEvicted
	case t.Doubted || t.member.doubted.Load():
		return MissLate
	case t.Confirmed == 0 && d.view.spec.NoEvents:
		return MissApproximate
	case t.Confirmed == 0:
		return MissSpeculative
	case d.class.traits&TraitFields != 0:
		return MissFields
	}
	return MissUnknown
}
