package config

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

const (
	// defaultSettle is how long the directory must be quiet before it is read: editors and copies write in steps.
	// Under constant change it is read after maxSettle.
	defaultSettle = 50 * time.Millisecond
	maxSettle     = 400 * time.Millisecond
	// defaultPoll is how often it is compared all the same, for changes that are not notified: files behind links,
	// and file systems that do not notify. Without notifications it is poorPoll.
	defaultPoll = 5 * time.Second
	poorPoll    = 400 * time.Millisecond
)

// Follow calls onChange with the state of the directory now and after each change, until ctx ends. onChange is called
// by one goroutine, the caller's.
//
// The directory can be replaced or deleted while it is followed: the last state that was read stays applied until there is
// another one.
func (d *Directory) Follow(ctx context.Context, onChange func(State)) {
	n := newNotifier(d)
	defer n.close()
	poll := time.NewTicker(n.pollEvery())
	defer poll.Stop()
	load := func() {
		n.attach()
		if state, changed := d.Load(ctx); changed {
			onChange(state)
		}
	}
	n.attach()
	state, _ := d.Load(ctx)
	onChange(state)

	quiet := time.NewTimer(0)
	<-quiet.C
	var since time.Time // of the first change that was not read yet; zero for none
	touch := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		quiet.Reset(max(0, min(d.settle, since.Add(maxSettle).Sub(now))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-n.events():
			if ok && n.concerns(event) {
				touch()
			}
		case err, ok := <-n.errors():
			if ok {
				d.log.V(1).Info("Notifications about the directory were lost", "reason", err.Error())
				touch()
			}
		case <-poll.C:
			if d.changed(ctx) {
				touch()
			}
		case <-quiet.C:
			since = time.Time{}
			load()
		}
	}
}

// notifier signals changes in or of a directory. Without notifications from the system it is silent.
type notifier struct {
	directory *Directory
	watcher   *fsnotify.Watcher // nil without
	attached  os.FileInfo       // the directory that is watched
}

func newNotifier(d *Directory) *notifier {
	n := &notifier{directory: d}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		logging.Warn(d.log, "Cannot be notified of changes, comparing files instead", "reason", err.Error())
		return n
	}
	n.watcher = watcher
	// The parent is watched for a replacement of the directory itself. It might be closed to us.
	if err := watcher.Add(filepath.Dir(d.path)); err != nil {
		d.log.V(1).Info("Watching the parent directory failed", "reason", err.Error())
	}
	return n
}

func (n *notifier) close() {
	if n.watcher != nil {
		_ = n.watcher.Close()
	}
}

func (n *notifier) pollEvery() time.Duration {
	if n.watcher == nil {
		return min(poorPoll, n.directory.poll)
	}
	return n.directory.poll
}

func (n *notifier) events() <-chan fsnotify.Event {
	if n.watcher == nil {
		return nil
	}
	return n.watcher.Events
}

func (n *notifier) errors() <-chan error {
	if n.watcher == nil {
		return nil
	}
	return n.watcher.Errors
}

// concerns reports whether an event is about the directory or something in it, and not about its neighbours.
func (n *notifier) concerns(event fsnotify.Event) bool {
	name := filepath.Clean(event.Name)
	if name == n.directory.path {
		n.attached = nil // what is watched might be another directory now
		return true
	}
	return filepath.Dir(name) == n.directory.path
}

// attach watches the directory that is at the path now.
func (n *notifier) attach() {
	if n.watcher == nil {
		return
	}
	info, err := os.Stat(n.directory.path)
	if err != nil {
		return
	}
	if n.attached != nil && os.SameFile(n.attached, info) {
		return
	}
	_ = n.watcher.Remove(n.directory.path)
	if err := n.watcher.Add(n.directory.path); err != nil {
		n.directory.log.V(1).Info("Watching the directory failed", "reason", err.Error())
		return
	}
	n.attached = info
}
