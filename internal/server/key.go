package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// maxKeyFile bounds the key file, in bytes.
const maxKeyFile = 64 << 10

// keyRoot reads the key root from a file, with all bytes of the file; without a file it makes one.
func keyRoot(path string) (root []byte, random bool, err error) {
	if path == "" {
		root = make([]byte, kvblock.MinSeedBytes)
		_, err := rand.Read(root)
		return root, true, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false, fmt.Errorf("reading the key file: %w", err)
	}
	root, err = io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, false, fmt.Errorf("reading the key file: %w", err)
	}
	if len(root) < kvblock.MinSeedBytes || len(root) > maxKeyFile {
		return nil, false, fmt.Errorf("reading the key file: want %d to %d bytes, all bytes of the file count", kvblock.MinSeedBytes, maxKeyFile)
	}
	return root, false, nil
}
