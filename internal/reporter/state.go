package reporter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvasir-dev/kvasir/internal/ingest"
)

// stateFile is where a rank's mirror is saved.
func stateFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.mirror", rank))
}

// load fills the mirror with what was saved, if anything was.
func (k *rank) load(c *Config) {
	file, err := os.Open(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		defer file.Close() //nolint:errcheck // it was only read
		k.feed.Resume, err = k.mirror.Load(file)
	}
	if err != nil {
		c.Log.Error(err, "The saved mirror is of no use", "rank", k.number)
		return
	}
	c.Log.Info("Mirror loaded", "rank", k.number, "blocks", k.mirror.Stats().Blocks)
}

// keepSaved saves the mirror now and then, as long as it changes.
func (k *rank) keepSaved(ctx context.Context, c *Config) {
	ticks := time.NewTicker(c.SaveEvery)
	defer ticks.Stop()
	var saved ingest.Position
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			if at := k.mirror.Position(); at != saved {
				if k.save(c) {
					saved = at
				}
			}
		}
	}
}

// save replaces the file at once. A mirror without a position has nothing to go on from.
func (k *rank) save(c *Config) bool {
	err := k.write()
	if err != nil {
		c.Log.Error(err, "The mirror cannot be saved", "rank", k.number)
	}
	return err == nil
}

func (k *rank) write() (err error) {
	file, err := os.OpenFile(k.file+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if err := errors.Join(k.mirror.Save(file), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), k.file)
}
