package redisstore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/respcache"
)

const (
	// version of the form of values. Others are invalid.
	version = 1
	// stampSize is that of a time in UTC, by MarshalBinary. fixed is the size of the first part of an answer: when it was stored, its two
	// numbers of tokens, whether it is a stream, and the length of its content type.
	stampSize = 15
	fixed     = stampSize + 4 + 4 + 1 + 1
	// maxContentType is the longest content type of an answer that is stored, in bytes.
	maxContentType = 255
	// maxValue is the most bytes of a value.
	maxValue = 1 + 12 + 16 + fixed + maxContentType + respcache.MaxAnswer
)

// sealer names and seals the answers of one pool under one configuration. A server that does not know the pool's key root can read none of
// them, cannot tell which request a name is of, and can make no value that is taken for an answer.
type sealer struct {
	prefix string
	naming []byte
	values cipher.AEAD
}

func newSealer(root [32]byte, origin respcache.Key, prefix string) (*sealer, error) {
	derive := func(what string) []byte {
		key, err := hkdf.Key(sha256.New, root[:], origin[:], "kvasir response store "+what, 32)
		if err != nil {
			panic(err) // 32 bytes are never too many
		}
		return key
	}
	block, err := aes.NewCipher(derive("values"))
	if err != nil {
		return nil, fmt.Errorf("making the cipher of stored answers: %w", err)
	}
	values, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("making the cipher of stored answers: %w", err)
	}
	return &sealer{prefix: prefix, naming: derive("names"), values: values}, nil
}

// name is the name of a request's answer on the server.
func (s *sealer) name(key respcache.Key) string {
	mac := hmac.New(sha256.New, s.naming)
	mac.Write(key[:])
	return s.prefix + ":" + hex.EncodeToString(mac.Sum(nil))
}

// seal is the value of an answer under a name. ok is false for answers that are not stored.
func (s *sealer) seal(name string, a *respcache.Answer) (value []byte, ok bool) {
	stamp, err := a.Stored.UTC().MarshalBinary()
	if err != nil || len(stamp) != stampSize || len(a.ContentType) > maxContentType || len(a.Body) > respcache.MaxAnswer {
		return nil, false
	}
	plain := make([]byte, 0, fixed+len(a.ContentType)+len(a.Body))
	plain = append(plain, stamp...)
	plain = binary.BigEndian.AppendUint32(plain, uint32(int32(a.PromptTokens)))    //nolint:gosec // an engine's count
	plain = binary.BigEndian.AppendUint32(plain, uint32(int32(a.GeneratedTokens))) //nolint:gosec // an engine's count
	stream := byte(0)
	if a.Stream {
		stream = 1
	}
	plain = append(plain, stream, byte(len(a.ContentType)))
	plain = append(append(plain, a.ContentType...), a.Body...)
	return s.values.Seal([]byte{version}, nil, plain, []byte(name)), true
}

// open reads a value that was stored under a name. It fails with respcache.ErrUnusable.
func (s *sealer) open(name string, value []byte) (*respcache.Answer, error) {
	if len(value) == 0 || value[0] != version {
		return nil, fmt.Errorf("%w: it is no answer of this release", respcache.ErrUnusable)
	}
	plain, err := s.values.Open(nil, nil, value[1:], []byte(name))
	if err != nil || len(plain) < fixed {
		return nil, fmt.Errorf("%w: it is not sealed with the pool's key root", respcache.ErrUnusable)
	}
	var stored time.Time
	rest, length := plain[fixed:], int(plain[fixed-1])
	if length > len(rest) || stored.UnmarshalBinary(plain[:stampSize]) != nil {
		return nil, fmt.Errorf("%w: it is no answer of this release", respcache.ErrUnusable)
	}
	return &respcache.Answer{
		Stored:          stored,
		PromptTokens:    int(int32(binary.BigEndian.Uint32(plain[stampSize:]))),   //nolint:gosec // as it was written
		GeneratedTokens: int(int32(binary.BigEndian.Uint32(plain[stampSize+4:]))), //nolint:gosec // as it was written
		Stream:          plain[stampSize+8] == 1,
		ContentType:     string(rest[:length]), Body: rest[length:],
	}, nil
}
