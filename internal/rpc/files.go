package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// filePart is how much of a model's files goes into one message, in bytes.
const filePart = 1 << 20

// Library takes the files of models from reporters, once for each content: pods that have the same files only announce it.
// Of each pool it holds the files that most pods have. It is safe for concurrent use.
type Library struct {
	UnimplementedModelFilesServer

	// Auth identifies a reporter; required.
	Auth Authenticator
	// PoolOf returns the pool of a pod whose files are requested.
	PoolOf func(pod string) (pool string, ok bool)
	// OnFiles is called when a pool has other files.
	OnFiles func(pool string)
	Log     logr.Logger

	mu    sync.Mutex
	pools map[string]*poolFiles // guarded by mu
}

// poolFiles is what is known of the files of one pool.
type poolFiles struct {
	offers  map[string]string // hash by pod
	taking  string            // the hash of what is just being taken; empty for none
	hash    string
	content modelfiles.Set
}

// best is the hash that most pods offer; of those with as many, the one that is held, and then the first.
func (p *poolFiles) best() string {
	count := map[string]int{}
	for _, hash := range p.offers {
		count[hash]++
	}
	return slices.MaxFunc(append(slices.Collect(maps.Keys(count)), ""), func(a, b string) int {
		held := func(hash string) int {
			if hash == p.hash {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(held(a), held(b)), cmp.Compare(b, a))
	})
}

// Held returns the files of a pool and their hash; nil when no reporter has sent any.
func (f *Library) Held(pool string) (set modelfiles.Set, hash string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pools[pool]; p != nil {
		return p.content, p.hash
	}
	return nil, ""
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
		maps.DeleteFunc(p.offers, func(pod, _ string) bool { return pods[pod] != name })
	}
}

// HandOver implements the service.
func (f *Library) HandOver(stream grpc.BidiStreamingServer[FilesMessage, FilesAnswer]) error {
	who, err := f.Auth.Authenticate(stream.Context())
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "%v", err)
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	offer := first.GetOffer()
	switch {
	case offer == nil:
		return status.Error(codes.InvalidArgument, "the first message is no offer")
	case !who.Is(offer.GetPod()):
		return status.Errorf(codes.PermissionDenied, "pod %q is not the reporter's own", offer.GetPod())
	}
	pool, ok := f.PoolOf(offer.GetPod())
	if !ok {
		return stream.Send(&FilesAnswer{})
	}
	if err := checkOffer(offer); err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	wanted, held := f.offered(pool, offer)
	if err := stream.Send(&FilesAnswer{Wanted: wanted, Held: held}); err != nil || !wanted {
		return err
	}
	set, err := receiveFiles(stream, offer)
	if f.took(pool, offer, set); err != nil {
		return err
	}
	f.Log.Info("Model files received from a reporter", "pool", pool, "pod", offer.GetPod(), "bytes", set.Bytes())
	f.OnFiles(pool)
	return stream.Send(&FilesAnswer{Held: true})
}

// checkOffer refuses what is too large before anything of it is taken.
func checkOffer(o *FilesOffer) error {
	total := uint64(0)
	names := modelfiles.Set{}
	for _, file := range o.GetFiles() {
		total += min(file.GetSize(), modelfiles.MaxBytes+1)
		names[file.GetName()] = nil
	}
	if total > modelfiles.MaxBytes || len(names) != len(o.GetFiles()) {
		return fmt.Errorf("%d files with more than %d bytes, or with duplicate names", len(o.GetFiles()), modelfiles.MaxBytes)
	}
	return names.Check()
}

// offered notes an offer, and reports whether its files are wanted, or held.
func (f *Library) offered(pool string, o *FilesOffer) (wanted, held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pools == nil {
		f.pools = map[string]*poolFiles{}
	}
	p := f.pools[pool]
	if p == nil {
		p = &poolFiles{offers: map[string]string{}}
		f.pools[pool] = p
	}
	p.offers[o.GetPod()] = o.GetHash()
	held = o.GetHash() == p.hash
	if wanted = !held && p.taking == "" && p.best() == o.GetHash(); wanted {
		p.taking = o.GetHash()
	}
	return wanted, held
}

// took keeps what was taken; nil for nothing, and then the offer does not count any more.
func (f *Library) took(pool string, o *FilesOffer, set modelfiles.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[pool]
	if p == nil {
		return
	}
	p.taking = ""
	if set == nil {
		delete(p.offers, o.GetPod())
		return
	}
	p.content, p.hash = set, o.GetHash()
}

// receiveFiles takes the contents of the files that were offered.
func receiveFiles(stream grpc.BidiStreamingServer[FilesMessage, FilesAnswer], offer *FilesOffer) (modelfiles.Set, error) {
	set := modelfiles.Set{}
	var part []byte
	for _, file := range offer.GetFiles() {
		data := make([]byte, 0, file.GetSize())
		for uint64(len(data)) < file.GetSize() {
			if len(part) == 0 {
				m, err := stream.Recv()
				if err != nil {
					return nil, err
				}
				if part = m.GetPart(); len(part) == 0 || len(part) > filePart {
					return nil, status.Error(codes.InvalidArgument, "an empty part, or one that is too large")
				}
			}
			n := min(uint64(len(part)), file.GetSize()-uint64(len(data)))
			data, part = append(data, part[:n]...), part[n:]
		}
		set[file.GetName()] = data
	}
	if len(part) > 0 || set.Hash() != offer.GetHash() {
		return nil, status.Error(codes.DataLoss, "the contents are not those that were offered")
	}
	return set, nil
}

// HandOver offers the files of a model that are listed, and hands them over if the picker wants them: only then are they
// read. held reports whether it has them now; otherwise it might want them another time.
func (c *Client) HandOver(
	ctx context.Context, pod string, list modelfiles.Listing, read func() (modelfiles.Set, error),
) (held bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := NewModelFilesClient(c.conn).HandOver(ctx)
	if err != nil {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	offer := &FilesOffer{Pod: pod, Hash: list.Hash}
	for i, name := range list.Names {
		offer.Files = append(offer.Files, &FileInfo{Name: name, Size: uint64(list.Sizes[i])})
	}
	if err := stream.Send(&FilesMessage{Kind: &FilesMessage_Offer{Offer: offer}}); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	answer, err := stream.Recv()
	if err != nil {
		return false, fmt.Errorf("offering the model's files: %w", err)
	}
	if !answer.GetWanted() {
		return answer.GetHeld(), nil
	}
	set, err := read()
	if err != nil {
		return false, err
	}
	if err := sendFiles(stream, set, list.Names); err != nil {
		return false, fmt.Errorf("handing the model's files over: %w", err)
	}
	if answer, err = stream.Recv(); err != nil {
		return false, fmt.Errorf("handing the model's files over: %w", err)
	}
	return answer.GetHeld(), nil
}

// sendFiles sends the contents. A stream that has ended is no error here: the answer has the reason.
func sendFiles(stream grpc.BidiStreamingClient[FilesMessage, FilesAnswer], set modelfiles.Set, names []string) error {
	for _, name := range names {
		for data := set[name]; len(data) > 0; {
			n := min(len(data), filePart)
			err := stream.Send(&FilesMessage{Kind: &FilesMessage_Part{Part: data[:n]}})
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			data = data[n:]
		}
	}
	return stream.CloseSend()
}
