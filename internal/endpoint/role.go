package endpoint

// Role is which parts of a request an endpoint serves. The endpoints of a pool can have different roles.
type Role uint8

const (
	// Both prefills and decodes. It is the default.
	Both Role = iota
	// Prefill computes prompts whose answers other endpoints generate. No request is sent to such an endpoint alone.
	Prefill
	// Decode generates answers to prompts that other endpoints have computed. It can also compute prompts itself.
	Decode
	// Neither takes no requests of the pool. It encodes images, for example.
	Neither
)

// String is the role as labels and people spell it.
func (r Role) String() string { return [...]string{"both", "prefill", "decode", "neither"}[r] }

// Prefills reports whether endpoints of the role compute prompts for others.
func (r Role) Prefills() bool { return r == Both || r == Prefill }

// Decodes reports whether endpoints of the role generate answers.
func (r Role) Decodes() bool { return r == Both || r == Decode }
