package kvblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// SecretBytes is the length of a seed's secret.
const SecretBytes = sha256.Size

// Secret returns the secret of the seed, for processes that also make the pool's keys. It must not be shown to others.
func (s Seed) Secret() [SecretBytes]byte { return s.secret }

// SeedOf is the seed with that secret.
func SeedOf(secret [SecretBytes]byte) Seed { return Seed{secret: secret} }

// Name is the displayed form of a key: 12 hexadecimal digits, equal for equal seeds. They
// reveal neither the tokens nor the seed.
func (s Seed) Name(k Key) string {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte("kvasir prefix"))
	mac.Write(binary.LittleEndian.AppendUint64(nil, uint64(k)))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}
