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

// Handed are the files of a pool that reporters have sent.
type Handed struct {
	// Set is nil when there are none.
	Set  modelfiles.Set
	Hash string
	// Note describes their origin, for people; without a set, why there is none.
	Note string
}

// contents are the files of a model, and where they are from: Dir, or Set.
type contents struct {
	dir    string
	set    modelfiles.Set
	handed string // the hash of a set from reporters; empty for others
	origin string
}

// find loads the files of a pool. Not ok if there are none to work with.
func (k *keeper) find(pool *Pool, present []Identity) (failed finding, ok bool) {
	f := pool.Files
	for range 2 { // the second time without files of reporters that cannot be used
		from, failed, ok := k.source(pool, present, &f)
		switch {
		case ok:
			failed, ok = k.model.load(k.config, from, f.Template)
		case failed.State == FilesMissing:
			k.model.forget()
		}
		if ok {
			return finding{}, true
		}
		if from.handed != "" && k.judge(&f, failed) {
			continue
		}
		if f.Optional && failed.State == FilesMissing {
			failed.State = NoFiles
		}
		return failed, false
	}
	return finding{State: Unproven, message: "files of the model are being replaced"}, false
}

// source returns the files to use. A set is from one source, and of one revision: what one source lacks is not taken from another.
func (k *keeper) source(pool *Pool, present []Identity, f *Files) (from contents, failed finding, ok bool) {
	var handed Handed
	if f.Reporters {
		handed = k.config.Handed(pool.Namespace, pool.Name)
	}
	reporters := contents{set: handed.Set, handed: handed.Hash, origin: handed.Note}
	switch {
	case handed.Set != nil && k.prefersReporters(f, handed.Hash):
		if !f.Optional {
			k.want(modelfiles.Repository{})
		}
		return reporters, finding{}, true
	case f.Missing == nil && f.Dir != "":
		k.want(modelfiles.Repository{})
		return contents{dir: f.Dir}, finding{}, true
	case f.Missing == nil && f.Set != nil:
		k.want(modelfiles.Repository{})
		return contents{set: f.Set}, finding{}, true
	case f.Reporters && !f.Optional:
		k.want(modelfiles.Repository{})
		err := "no reporter has handed the model's files over yet"
		if handed.Note != "" {
			err += "; " + handed.Note
		}
		return from, finding{State: FilesMissing, message: err}, false
	}
	if from, failed, ok = k.ofHub(present, f); !ok && handed.Set != nil {
		return reporters, finding{}, true
	}
	if !ok && handed.Note != "" {
		failed.message += "; " + handed.Note
	}
	return from, failed, ok
}

// prefersReporters reports whether files of reporters are used though the pool can have others: they are those that the engines have. A
// pool that names a repository of the hub itself prefers that, and files of reporters that were found wrong are the last choice.
func (k *keeper) prefersReporters(f *Files, hash string) bool {
	if !f.Optional || f.Missing != nil {
		return true
	}
	named := !f.ByRoot && f.Repository.Name != ""
	return !named && (k.refuted.hash != hash || time.Since(k.refuted.at) >= proveEvery)
}

// refuted are files of reporters that do not give the engines' ids.
type refuted struct {
	hash string
	at   time.Time
}

// judge reports to the reporters' side how far the files of theirs that are in use were proven. It reports whether others are to be
// tried at once.
func (k *keeper) judge(f *Files, found finding) (again bool) {
	hash := k.model.handed
	if hash == "" {
		return false
	}
	proof := modelfiles.ProofNone
	switch found.State {
	case Exact:
		proof = modelfiles.ProofExact
	case TextsOnly:
		proof = modelfiles.ProofPartly
	case Failed:
		if proof = modelfiles.ProofFailed; found.texts || found.chats {
			proof = modelfiles.ProofPartly
		}
	case FilesMissing, TokenizerUnsupported:
		proof = modelfiles.ProofFailed
	case Starting, NoFiles, Unproven:
		return false
	}
	k.config.Proved(k.namespace, k.name, hash, proof)
	exact := proof == modelfiles.ProofExact
	if exact || found.State == TextsOnly {
		k.refuted = refuted{}
		if exact && k.prefersReporters(f, hash) {
			k.want(modelfiles.Repository{}) // the hub is not asked for what is not needed
		}
		return false
	}
	again = k.prefersReporters(f, hash) && f.Optional && f.Missing == nil
	k.refuted = refuted{hash, time.Now()}
	return again
}

// ofHub returns the files that the model hub has.
func (k *keeper) ofHub(present []Identity, f *Files) (from contents, failed finding, ok bool) {
	if f.ByRoot {
		if len(present) == 0 && k.chosen.Name == "" {
			return from, finding{State: Unproven, message: "no engine has reported yet where it has the model from"}, false
		}
		f.Repository.Name, f.Missing = k.choose(&f.Repository, len(present) > 0)
	}
	k.want(f.Repository)
	if f.Missing == nil {
		from.dir, from.origin, f.Missing = k.config.Fetched(f.Repository)
	}
	if f.Missing != nil {
		return contents{}, finding{State: FilesMissing, message: f.Missing.Error()}, false
	}
	return from, finding{}, true
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
