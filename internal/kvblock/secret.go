package kvblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// SecretBytes is the length of a seed's secret.
const SecretBytes = sha256.Size

// Secret is what the seed is, for those who may make the pool's keys too. It must not be shown to anybody else.
func (s Seed) Secret() [SecretBytes]byte { return s.secret }

// SeedOf is the seed with that secret.
func SeedOf(secret [SecretBytes]byte) Seed { return Seed{secret: secret} }

// Name is what people are shown of a key: 12 hexadecimal digits that are the same wherever the seed is, and tell nothing
// of the tokens nor of the seed to who has neither.
func (s Seed) Name(k Key) string {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte("kvasir prefix"))
	mac.Write(binary.LittleEndian.AppendUint64(nil, uint64(k)))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}
