package reporter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/logging"
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
		defer file.Close()
		k.feed.Resume, err = k.mirror.Load(file)
	}
	if err != nil {
		c.Log.Error(err, "Discarding the saved mirror", "rank", k.number)
		return
	}
	c.Log.Info("Mirror loaded", "rank", k.number, "blocks", k.mirror.Stats().Blocks)
}

// keepSaved saves the mirror now and then, as long as it changes.
func (r *Reporter) keepSaved(ctx context.Context, k *rank) {
	ticks := time.NewTicker(r.cfg.SaveEvery)
	defer ticks.Stop()
	var saved events.Position
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			r.caught("Saving the mirror panicked", func() {
				if at := k.mirror.Position(); at != saved && k.save(&r.cfg) {
					saved = at
				}
			}, "rank", k.number)
		}
	}
}

// save replaces the file at once. A mirror without a position has nothing to resume from.
func (k *rank) save(c *Config) bool {
	err := k.write()
	if err == nil {
		k.saveFailed = ""
		return true
	}
	k.saveErrors.Add(1)
	if why := err.Error(); k.saveFailed != why {
		k.saveFailed = why
		logging.Warn(c.Log, "Saving the mirror failed, keeping the last good one", "rank", k.number, "reason", why)
	}
	return false
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
