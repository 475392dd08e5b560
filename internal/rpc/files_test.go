package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// house is a picker that takes the files of pool "p", whose pods are a, b and c.
type house struct {
	t       *testing.T
	library *Library
	addr    string
	mu      sync.Mutex
	told    int
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t}
	h.library = &Library{
		Auth: Anybody{}, Log: logr.Discard(),
		PoolOf: func(pod string) (string, bool) { return "p", len(pod) == 1 },
		OnFiles: func(string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.told++
		},
	}
	h.addr = startPicker(t, "127.0.0.1:0", ServerOptions{Library: h.library}).addr
	return h
}

// offer lets a pod offer files. It reports whether the picker has them then, and whether they were read.
func (h *house) offer(pod string, set modelfiles.Set) (held, read bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	client, err := Dial(h.addr, DialOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	defer client.Close()
	list := set.List()
	held, err = client.HandOver(ctx, pod, list, func(put func([]byte) error) error { read = true; return set.Send(&list, put) })
	if err != nil {
		h.t.Fatal(err)
	}
	return held, read
}

func (h *house) expect(set modelfiles.Set, told int) {
	h.t.Helper()
	has := h.library.Held("p")
	got, hash := has.Set, has.Hash
	want := ""
	if set != nil {
		want = set.Hash()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !maps.EqualFunc(got, set, bytes.Equal) || hash != want || h.told != told {
		h.t.Errorf("%d files are held, told %d times; want %d, %d", len(got), h.told, len(set), told)
	}
}

// TestFilesAreHandedOverOncePerContent: the first pod hands them over, the others only say that theirs are the same.
func TestFilesAreHandedOverOncePerContent(t *testing.T) {
	h := newHouse(t)
	h.expect(nil, 0)
	large := bytes.Repeat([]byte("0123456789abcdef"), 3*filePart/16)
	set := modelfiles.Set{"tokenizer.json": large[:3*filePart-7], "empty": nil, "t/chat.jinja": []byte("x")}
	if held, read := h.offer("a", set); !held || !read {
		t.Errorf("the first: held %v, read %v", held, read)
	}
	h.expect(set, 1)
	for _, pod := range []string{"a", "b", "c"} {
		if held, read := h.offer(pod, set); !held || read {
			t.Errorf("pod %s: held %v, read %v", pod, held, read)
		}
	}
	other := modelfiles.Set{"tokenizer.json": []byte("{}")}
	if held, read := h.offer("a", other); held || read {
		t.Error("the files of the fewest pods are taken")
	}
	if held, read := h.offer("b", other); !held || !read {
		t.Error("the files of most pods are not taken")
	}
	h.expect(other, 2)
	if held, read := h.offer("no pod of the pool", set); held || read {
		t.Error("a stranger's files are taken")
	}
	// When pods go, those that stay decide.
	h.library.Keep(map[string]string{"c": "p"})
	if held, read := h.offer("c", set); !held || !read {
		t.Error("what the only pod has is not taken")
	}
	h.library.Keep(nil)
	h.expect(nil, 3)
}

// TestFilesThatAreNotWhatWasOffered: nothing of them is kept, and the next ones are taken.
func TestFilesThatAreNotWhatWasOffered(t *testing.T) {
	h := newHouse(t)
	good := modelfiles.Set{"tokenizer.json": []byte("{}")}
	list := func(change func(*modelfiles.Listing)) modelfiles.Listing {
		l := good.List()
		change(&l)
		return l
	}
	same := func(*modelfiles.Listing) {}
	for name, tc := range map[string]struct {
		pod  string
		list modelfiles.Listing
		set  modelfiles.Set
		err  error
		code codes.Code
	}{
		"other contents":    {"a", list(same), modelfiles.Set{"tokenizer.json": []byte("[]")}, nil, codes.DataLoss},
		"too little":        {"a", list(same), modelfiles.Set{"tokenizer.json": []byte("{")}, nil, codes.Unknown},
		"too much":          {"a", list(same), modelfiles.Set{"tokenizer.json": []byte("{}}")}, nil, codes.DataLoss},
		"another hash":      {"a", list(func(l *modelfiles.Listing) { l.Hash = strings.Repeat("0", 2*sha256.Size) }), good, nil, codes.DataLoss},
		"no hash":           {"a", list(func(l *modelfiles.Listing) { l.Hash = strings.Repeat("0", 1000) }), good, nil, codes.InvalidArgument},
		"a way out":         {"a", list(func(l *modelfiles.Listing) { l.Names = []string{"../x"} }), good, nil, codes.InvalidArgument},
		"one name twice":    {"a", list(func(l *modelfiles.Listing) { l.Names, l.Sizes = []string{"x", "x"}, []int{1, 1} }), good, nil, codes.InvalidArgument},
		"too large":         {"a", list(func(l *modelfiles.Listing) { l.Sizes = []int{modelfiles.MaxBytes + 1} }), good, nil, codes.InvalidArgument},
		"sizes that wrap":   {"a", list(func(l *modelfiles.Listing) { l.Sizes = []int{-1} }), good, nil, codes.InvalidArgument},
		"files that are no": {"a", list(same), nil, errors.New("gone"), codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Dial(h.addr, DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var held bool
			eventually(t, "the offer is looked at", func() bool { // none is while the files of the case before still come
				h.unbar()
				held, err = client.HandOver(ctx, tc.pod, tc.list, func(put func([]byte) error) error {
					if tc.err != nil {
						return tc.err
					}
					return tc.set.Send(&tc.list, put)
				})
				return held || err != nil
			})
			if held || err == nil {
				t.Errorf("held %v, %v", held, err)
			}
			if code := status.Code(errors.Unwrap(err)); tc.code != codes.Unknown && code != tc.code {
				t.Errorf("%v (%s), want %s", err, code, tc.code)
			}
			h.expect(nil, 0)
		})
	}
	h.unbar()
	eventually(t, "good files are taken after all", func() bool { held, _ := h.offer("b", good); return held })
	h.expect(good, 1)
}

// TestOnlyReportersHandFilesOver: a reporter hands over its own pod's files, and no other process does.
func TestOnlyReportersHandFilesOver(t *testing.T) {
	h := newHouse(t)
	h.library.Auth = SharedSecret{Read: func() ([]byte, error) { return []byte("0123456789abcdef"), nil }}
	client, err := Dial(h.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	set := modelfiles.Set{"tokenizer.json": nil}
	_, err = client.HandOver(t.Context(), "a", set.List(), func(func([]byte) error) error { return nil })
	if status.Code(errors.Unwrap(err)) != codes.Unauthenticated {
		t.Errorf("without a proof: %v", err)
	}
	h.library.Auth = identity{UID: "b"}
	_, err = client.HandOver(t.Context(), "a", set.List(), func(func([]byte) error) error { return nil })
	if status.Code(errors.Unwrap(err)) != codes.PermissionDenied {
		t.Errorf("for another pod: %v", err)
	}
	h.expect(nil, 0)
}

// identity is an Authenticator that knows everybody as one.
type identity Identity

func (i identity) Authenticate(context.Context) (Identity, error) { return Identity(i), nil }
