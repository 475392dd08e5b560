package tokencheck

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// choice is the repository of a model hub whose files a pool wants.
type choice struct {
	modelfiles.Repository // as Config.Want was called with it
	at                    time.Time
}

// find loads the files of a pool. Not ok if there are none to work with.
func (k *keeper) find(pool *Pool, present []Identity) (failed finding, ok bool) {
	f := pool.Files
	if f.ByRoot {
		if len(present) == 0 && k.chosen.Name == "" {
			return finding{State: Unproven, message: "no engine has reported yet where it has the model from"}, false
		}
		f.Repository.Name, f.Missing = k.choose(&f.Repository, len(present) > 0)
	}
	k.want(f.Repository)
	failed, ok = k.model.load(k.config, pool, &f)
	if !ok && f.Optional && failed.State == FilesMissing {
		failed.State = NoFiles
	}
	return failed, ok
}

// choose returns the repository that a pool's engines have the model from: that of most of them, or else the pool's own. It keeps to
// what it has chosen while no engine answers, and for rechooseEvery: engines that report another repository each time must not make
// the picker download each.
func (k *keeper) choose(own *modelfiles.Repository, answered bool) (name string, missing error) {
	before := k.chosen.Name
	if before != "" && (!answered || time.Since(k.chosen.at) < rechooseEvery) {
		return before, nil
	}
	root := k.root()
	switch {
	case modelfiles.NamesRepository(root):
		return root, nil
	case own.Name != "":
		return own.Name, nil
	case root == "":
		return "", errors.New("the engines do not report where they have the model from, and its name is not ORGANIZATION/NAME")
	}
	return "", fmt.Errorf("the engines have the model from %.100q, and neither that nor its name is ORGANIZATION/NAME", root)
}

// root is where most engines that report it have the model from; of several, the first in the order of the alphabet.
func (k *keeper) root() (most string) {
	count := map[string]int{}
	for _, id := range k.identities {
		count[id.Root]++
	}
	delete(count, "")
	for root, n := range count {
		if n > count[most] || n == count[most] && root < most {
			most = root
		}
	}
	return most
}

// want reports which repository's files the pool wants, if it is another one than before.
func (k *keeper) want(r modelfiles.Repository) {
	if r.Name == "" {
		r = modelfiles.Repository{}
	}
	if r == k.chosen.Repository {
		return
	}
	at := k.chosen.at
	if r.Name != k.chosen.Name {
		at = time.Now()
	}
	k.chosen = choice{r, at}
	k.config.Want(k.namespace, k.name, r)
}
