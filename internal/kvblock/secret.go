package kvblock

import "crypto/sha256"

// SecretBytes is the length of a seed's secret.
const SecretBytes = sha256.Size

// Secret is what the seed is, for those who may make the pool's keys too. It must not be shown to anybody else.
func (s Seed) Secret() [SecretBytes]byte { return s.secret }

// SeedOf is the seed with that secret.
func SeedOf(secret [SecretBytes]byte) Seed { return Seed{secret: secret} }
