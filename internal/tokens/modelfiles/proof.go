package modelfiles

// Proof is how far the ids that are made with files equal the engines'. Better is more.
type Proof int

// The proofs.
const (
	// ProofFailed: none are equal, or the files cannot be used.
	ProofFailed Proof = iota - 2
	// ProofPartly: those of texts or of chats are equal.
	ProofPartly
	// ProofNone: they were not compared.
	ProofNone
	// ProofExact: all are equal.
	ProofExact
)
