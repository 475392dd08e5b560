package kvblock

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

func testSeed(t testing.TB) Seed {
	t.Helper()
	seed, err := NewSeed(bytes.Repeat([]byte{7}, MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func randomTokens(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(150_000)
	}
	return tokens
}

func TestEqualPrefixesHaveEqualKeysAndNothingElse(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	root := testSeed(t).Root("m", "")
	for range 200 {
		block := 8 << rng.IntN(4)
		tokens := randomTokens(rng, block*8+rng.IntN(block))
		keys := AppendKeys(nil, root, tokens, block)
		if len(keys) != len(tokens)/block {
			t.Fatalf("%d tokens in blocks of %d have %d keys", len(tokens), block, len(keys))
		}
		changed := rng.IntN(len(keys) * block)
		other := append([]uint32(nil), tokens...)
		other[changed] ^= 1 << rng.IntN(17)
		for i, key := range AppendKeys(nil, root, other, block) {
			if same := key == keys[i]; same != (i < changed/block) {
				t.Fatalf("token %d changed, block size %d: key %d equal = %v", changed, block, i, same)
			}
		}
	}
}

func TestKeysDoNotDependOnWhereTheChainIsCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	root := testSeed(t).Root("m", "")
	tokens := randomTokens(rng, 640)
	whole := AppendKeys(nil, root, tokens, 16)
	for cut := 1; cut < len(whole); cut++ {
		keys := AppendKeys(nil, root, tokens[:cut*16], 16)
		keys = AppendKeys(keys, keys[cut-1], tokens[cut*16:], 16)
		for i := range whole {
			if keys[i] != whole[i] {
				t.Fatalf("cut at %d: key %d differs", cut, i)
			}
		}
	}
}

func TestModelsSaltsSeedsAndExtrasKeepKeysApart(t *testing.T) {
	seed := testSeed(t)
	other, err := NewSeed(bytes.Repeat([]byte{8}, MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 16)
	seen := map[Key]string{}
	for name, key := range map[string]Key{
		"base":                Next(seed.Root("m", ""), tokens, 0),
		"adapter":             Next(seed.Root("m2", ""), tokens, 0),
		"salted":              Next(seed.Root("m", "2"), tokens, 0),
		"other seed":          Next(other.Root("m", ""), tokens, 0),
		"with an image":       Next(seed.Root("m", ""), tokens, Digest(0, "image")),
		"with another image":  Next(seed.Root("m", ""), tokens, Digest(0, "image2")),
		"shorter block":       Next(seed.Root("m", ""), tokens[:8], 0),
		"block with zero end": Next(seed.Root("m", ""), tokens[:15], 0),
	} {
		if twin, ok := seen[key]; ok {
			t.Errorf("%s and %s have the same key", name, twin)
		}
		seen[key] = name
	}
	if seed.ID() == other.ID() || len(seed.ID()) != 16 {
		t.Errorf("key ids %q and %q", seed.ID(), other.ID())
	}
}

func TestAShortSecretIsRefused(t *testing.T) {
	if _, err := NewSeed(make([]byte, MinSeedBytes-1)); err == nil {
		t.Error("a secret of 31 bytes was taken")
	}
}

// TestEveryInputBitReachesEveryKeyBit flips single bits and expects about half of the key's bits to change.
func TestEveryInputBitReachesEveryKeyBit(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const rounds = 400
	for _, tokens := range []int{8, 16, 24} {
		for bit := 0; bit < tokens*32; bit += 7 {
			total := 0
			for range rounds {
				block := randomTokens(rng, tokens)
				parent := Key(rng.Uint64())
				before := Next(parent, block, 0)
				block[bit/32] ^= 1 << (bit % 32)
				total += bits.OnesCount64(uint64(before ^ Next(parent, block, 0)))
			}
			if mean := float64(total) / rounds; mean < 28 || mean > 36 {
				t.Errorf("%d tokens, bit %d: %.1f of 64 key bits change", tokens, bit, mean)
			}
		}
	}
}

func TestAppendKeysDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 8192)
	keys := make([]Key, 0, 512)
	if n := testing.AllocsPerRun(100, func() { keys = AppendKeys(keys[:0], 1, tokens, 16) }); n != 0 {
		t.Errorf("AppendKeys allocates %v times", n)
	}
}

func BenchmarkAppendKeys(b *testing.B) {
	for _, n := range []int{1024, 8192, 100_000} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), n)
			keys := make([]Key, 0, n/16)
			b.SetBytes(int64(n * 4))
			b.ReportAllocs()
			for b.Loop() {
				keys = AppendKeys(keys[:0], 1, tokens, 16)
			}
		})
	}
}

// TestSaltsOfTenantsAreSecretAndTheirOwn: every tenant, every salt of its client and every pool gives another salt, and the
// same ones give the same in every process.
func TestSaltsOfTenantsAreSecretAndTheirOwn(t *testing.T) {
	seed := testSeed(t)
	other, err := NewSeed(bytes.Repeat([]byte{8}, MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	acme := seed.TenantSalt("acme", "")
	seen := map[string]string{}
	for name, salt := range map[string]string{
		"acme": acme, "acme with a salt": seed.TenantSalt("acme", "x"), "anonymous": seed.TenantSalt("", ""),
		"anonymous with a name as salt": seed.TenantSalt("", "acme"), "another tenant with acme's salt": seed.TenantSalt("small", acme),
		"a longer name": seed.TenantSalt("acmex", ""), "another pool": other.TenantSalt("acme", ""),
		"no name, and the form of another": seed.TenantSalt("", "\x04\x00\x00\x00\x00\x00\x00\x00acme"),
	} {
		if seen[salt] != "" || len(salt) != 43 {
			t.Errorf("%s and %q have the salt %s", name, seen[salt], salt)
		}
		seen[salt] = name
	}
	if again := testSeed(t).TenantSalt("acme", ""); again != acme {
		t.Errorf("another process has %s, not %s", again, acme)
	}
}
