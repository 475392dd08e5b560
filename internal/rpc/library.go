package rpc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// Library takes the files of models from reporters, once for each content: pods that have the same files only announce it.
// Of each pool it holds one pod's set, never parts of several: proven files first, then those that were not found wrong, and of several
// those that most pods have. A pod that sends nothing, too little or wrong files is not asked for a while, so that the next one is. It
// is safe for concurrent use.
type Library struct {
	UnimplementedModelFilesServer

	// Auth identifies a reporter; required.
	Auth Authenticator
	// PoolOf returns the pool of a pod whose files are requested.
	PoolOf func(pod string) (pool string, ok bool)
	// OnFiles is called when a pool has other files.
	OnFiles func(pool string)
	Log     logr.Logger

	stall time.Duration // instead of filesStall, for tests

	mu    sync.Mutex
	pools map[string]*poolFiles // guarded by mu
}

const (
	// barMin and barMax bound the time for which a pod is not asked that has failed; it doubles with each failure.
	barMin, barMax = 15 * time.Second, 10 * time.Minute
	// refutedFor is how long files are avoided that were found wrong: engines of another revision might have been asked.
	refutedFor = time.Hour
	// logFailureEvery bounds how often the failures of one pool are logged.
	logFailureEvery = time.Minute
)

// poolFiles is what is known of the files of one pool.
type poolFiles struct {
	pods    map[string]*podFiles
	taking  string // the hash of what is just being taken; empty for none
	hash    string
	content modelfiles.Set
	from    string // the pod that sent the content
	proofs  map[string]proven
	logged  time.Time
}

// proven is what is known of files by their hash.
type proven struct {
	modelfiles.Proof
	at time.Time
}

// podFiles is what is known of the files of one pod.
type podFiles struct {
	hash    string // of what it offers; empty for nothing
	failure string // why it offers nothing, or was not believed
	bar     fault.Backoff
	barred  time.Time
}

func (p *poolFiles) pod(name string) *podFiles {
	pod := p.pods[name]
	if pod == nil {
		pod = &podFiles{bar: fault.Backoff{Min: barMin, Max: barMax}}
		p.pods[name] = pod
	}
	return pod
}

// proof is what is known of files.
func (p *poolFiles) proof(hash string, now time.Time) modelfiles.Proof {
	if known := p.proofs[hash]; known.Proof == modelfiles.ProofExact || now.Sub(known.at) < refutedFor {
		return known.Proof
	}
	return modelfiles.ProofNone
}

// best is the hash to have: by its proof, then by the number of pods that offer it; of those with as many, the one that is held, and
// then the first. Pods that have failed do not count.
func (p *poolFiles) best(now time.Time) string {
	count := map[string]int{}
	for _, pod := range p.pods {
		if pod.hash != "" && (pod.hash == p.hash || !now.Before(pod.barred)) {
			count[pod.hash]++
		}
	}
	if len(count) == 0 {
		return ""
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(count)), func(a, b string) int {
		held := func(hash string) int {
			if hash == p.hash {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(p.proof(a, now), p.proof(b, now)), cmp.Compare(count[a], count[b]),
			cmp.Compare(held(a), held(b)), cmp.Compare(b, a))
	})
}

// HeldFiles are the files of a pool that reporters have sent.
type HeldFiles struct {
	// Set is nil when there are none.
	Set modelfiles.Set
	// Hash of the set, and the pod that has sent it.
	Hash, Pod string
	// Same of the Pods that are known offer it; those Without offer nothing.
	Same, Pods, Without int
	// FailedPod is one that has no files, or sent none that could be used, for the reason Failure; Failed is how many there are.
	FailedPod, Failure string
	Failed             int
}

// Held returns the files of a pool.
func (f *Library) Held(pool string) (h HeldFiles) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[pool]
	if p == nil {
		return h
	}
	h = HeldFiles{Set: p.content, Hash: p.hash, Pod: p.from, Pods: len(p.pods)}
	for _, name := range slices.Sorted(maps.Keys(p.pods)) {
		pod := p.pods[name]
		if pod.hash == p.hash && p.hash != "" {
			h.Same++
		}
		if pod.hash == "" {
			h.Without++
		}
		if pod.failure != "" {
			if h.Failed++; h.FailedPod == "" {
				h.FailedPod, h.Failure = name, pod.failure
			}
		}
	}
	return h
}

// Keep forgets the pods that are not among pods any more, which maps each to its pool, and pools without any.
func (f *Library) Keep(pods map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]bool{}
	for _, pool := range pods {
		wanted[pool] = true
	}
	for name, p := range f.pools {
		if !wanted[name] {
			delete(f.pools, name)
			continue
		}
		before := len(p.pods)
		maps.DeleteFunc(p.pods, func(pod string, _ *podFiles) bool { return pods[pod] != name })
		if len(p.pods) != before {
			// What was wrong might have been so for the engines that left.
			maps.DeleteFunc(p.proofs, func(hash string, known proven) bool { return known.Proof != modelfiles.ProofExact })
		}
	}
}

// Proved reports how far the files that are held were proven. Files that were found wrong are replaced by others that a pod offers.
func (f *Library) Proved(pool, hash string, proof modelfiles.Proof) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[pool]
	if p == nil || hash == "" || hash != p.hash {
		return
	}
	now := time.Now()
	before, known := p.proofs[hash]
	offered := map[string]bool{}
	for _, pod := range p.pods {
		offered[pod.hash] = true
	}
	maps.DeleteFunc(p.proofs, func(of string, known proven) bool { return !offered[of] || now.Sub(known.at) >= refutedFor })
	p.proofs[hash] = proven{proof, now}
	if known && before.Proof == proof {
		return
	}
	for _, pod := range p.pods {
		switch {
		case pod.hash != hash:
		case proof == modelfiles.ProofFailed:
			pod.failure = "its files do not give the tokens of the engines"
			pod.barred = now.Add(pod.bar.Next())
		case proof == modelfiles.ProofExact:
			pod.failure = ""
			pod.bar.Reset()
		}
	}
}

// at is what is known of a pool.
func (f *Library) at(pool string) *poolFiles {
	if f.pools == nil {
		f.pools = map[string]*poolFiles{}
	}
	p := f.pools[pool]
	if p == nil {
		p = &poolFiles{pods: map[string]*podFiles{}, proofs: map[string]proven{}}
		f.pools[pool] = p
	}
	return p
}

// offered notes an offer, and reports whether its files are wanted, or held.
func (f *Library) offered(pool string, o *FilesOffer) (wanted, held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, now := f.at(pool), time.Now()
	pod := p.pod(o.GetPod())
	pod.hash = o.GetHash()
	if held = pod.hash == p.hash; held && p.proof(p.hash, now) != modelfiles.ProofFailed {
		pod.failure = ""
	}
	wanted = !held && p.taking == "" && !now.Before(pod.barred) && p.best(now) == o.GetHash()
	if wanted {
		p.taking = o.GetHash()
	}
	return wanted, held
}

// failed notes why a pod has no files.
func (f *Library) failed(pool, name, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.at(pool)
	pod := p.pod(name)
	pod.hash = ""
	f.note(pool, p, pod, name, why)
}

// note stores the failure of a pod, and logs it if it is new.
func (f *Library) note(pool string, p *poolFiles, pod *podFiles, name, why string) {
	why = shortened(why)
	if now := time.Now(); why != pod.failure && now.Sub(p.logged) >= logFailureEvery {
		p.logged = now
		f.Log.Info("No model files from a reporter", "pool", pool, "pod", name, "reason", why)
	}
	pod.failure = why
}

// took keeps what was taken. Nothing was, if there is an error; then the pod's offer does not count for a while.
func (f *Library) took(pool string, o *FilesOffer, set modelfiles.Set, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[pool]
	if p == nil {
		return
	}
	p.taking = ""
	pod := p.pods[o.GetPod()]
	switch {
	case pod == nil: // it left meanwhile
	case set == nil:
		pod.hash = ""
		pod.barred = time.Now().Add(pod.bar.Next())
		f.note(pool, p, pod, o.GetPod(), fmt.Sprintf("sending failed: %v", err))
	default:
		pod.failure = ""
		p.content, p.hash, p.from = set, o.GetHash(), o.GetPod()
	}
}
