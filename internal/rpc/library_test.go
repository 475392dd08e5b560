package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// setOf is a set with a text.
func setOf(text string) modelfiles.Set { return modelfiles.Set{"tokenizer.json": []byte(text)} }

// ordered are two sets: the library prefers the first where nothing else decides.
func ordered() (first, second modelfiles.Set) {
	first, second = setOf("a"), setOf("b")
	if first.Hash() > second.Hash() {
		return second, first
	}
	return first, second
}

// unbar lets pods be asked again at once, as after the time for which they are not.
func (h *house) unbar() {
	h.library.mu.Lock()
	defer h.library.mu.Unlock()
	if p := h.library.pools["p"]; p != nil {
		for _, pod := range p.pods {
			pod.barred = time.Time{}
		}
	}
}

// TestOneReporterDoesNotKeepOthersFromSending: one that announces files and sends none, or always something else, is not asked for a
// while, even if its offer comes first each time; the others' files are taken meanwhile.
func TestOneReporterDoesNotKeepOthersFromSending(t *testing.T) {
	bad, good := ordered()
	const stall = 2 * time.Second // a reporter that does not stall takes less, on a busy machine too
	for name, send := range map[string]func(put func([]byte) error) error{
		"it stalls":               func(func([]byte) error) error { time.Sleep(stall + time.Second); return errors.New("too late") },
		"it sends something else": func(put func([]byte) error) error { return put([]byte("x")) },
		"it sends too little":     func(func([]byte) error) error { return nil },
		"it fails":                func(func([]byte) error) error { return errors.New("no more") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			if name == "it stalls" {
				h.library.stall = stall
			}
			client, err := Dial(h.addr, DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			offer := func() (read bool) {
				_, err := client.HandOver(t.Context(), "a", bad.List(), func(put func([]byte) error) error { read = true; return send(put) })
				if read && err == nil {
					t.Error("what it has sent is taken")
				}
				return read
			}
			if !offer() {
				t.Fatal("the first is not asked")
			}
			eventually(t, "the failure is known", func() bool { return h.library.Held("p").Failure != "" })
			if offer() {
				t.Error("it is asked again at once")
			}
			if held, _ := h.offer("b", good); !held {
				t.Error("the next one's files are not taken")
			}
			if has := h.library.Held("p"); has.Hash != good.Hash() || has.Pod != "b" || has.Pods != 2 || has.Same != 1 {
				t.Errorf("held %+v", has)
			}
			h.unbar()
			if !offer() {
				// With as many pods each, what is held stays.
				h.library.Keep(map[string]string{"a": "p"})
				if !offer() {
					t.Error("it is never asked again")
				}
			}
		})
	}
}

// TestAnOfferThatNeverComes: a stream on which nothing is sent ends.
func TestAnOfferThatNeverComes(t *testing.T) {
	h := newHouse(t)
	h.library.stall = 20 * time.Millisecond
	client, err := Dial(h.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stream, err := NewModelFilesClient(client.conn).HandOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}

// TestFilesThatWereProvenStay: others do not replace them, however many pods have those; files that were found wrong are replaced by
// those of any other pod.
func TestFilesThatWereProvenStay(t *testing.T) {
	wrong, right := ordered()
	h := newHouse(t)
	h.offer("a", wrong)
	h.offer("b", wrong)
	if held, _ := h.offer("c", right); held {
		t.Fatal("the files of one pod replace those of two that nothing speaks against")
	}
	h.library.Proved("p", right.Hash(), modelfiles.ProofExact) // it is not held, so that it cannot have been proven
	if held, _ := h.offer("c", right); held {
		t.Fatal("a proof of other files counts")
	}
	h.library.Proved("p", wrong.Hash(), modelfiles.ProofFailed)
	if has := h.library.Held("p"); has.Failed != 2 || has.FailedPod != "a" || !strings.Contains(has.Failure, "do not give the tokens") {
		t.Errorf("held %+v", has)
	}
	if held, _ := h.offer("c", right); !held {
		t.Fatal("the next pod's files are not tried")
	}
	h.library.Proved("p", right.Hash(), modelfiles.ProofExact)
	h.unbar()
	for i := range 5 { // other files each time, of most pods
		lie := setOf(fmt.Sprint("lie ", i))
		for _, pod := range []string{"a", "b"} {
			if held, read := h.offer(pod, lie); held || read {
				t.Fatal("files that nothing speaks for replace those that were proven")
			}
		}
	}
	// Engines of a new revision: the proof fails, and the files of the new pods are tried.
	h.library.Proved("p", right.Hash(), modelfiles.ProofPartly)
	h.offer("b", setOf("new"))
	if held, _ := h.offer("a", setOf("new")); !held {
		t.Error("files of a new revision are not tried")
	}
	// When they are worse, the earlier ones return.
	h.library.Proved("p", setOf("new").Hash(), modelfiles.ProofFailed)
	if held, _ := h.offer("c", right); !held {
		t.Error("what was proven in part does not return")
	}
}

// TestAPodThatHasNoFilesSaysWhy: the reason is bounded, and the files of others are not affected.
func TestAPodThatHasNoFilesSaysWhy(t *testing.T) {
	h := newHouse(t)
	client, err := Dial(h.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, pod := range []string{"a", "stranger"} {
		if err := client.NoFiles(t.Context(), pod, errors.New("ä"+strings.Repeat("ä", 5000))); err != nil {
			t.Fatal(err)
		}
	}
	has := h.library.Held("p")
	if has.Pods != 1 || has.Failed != 1 || has.FailedPod != "a" || len(has.Failure) > maxFailure || !strings.HasPrefix(has.Failure, "ää") {
		t.Errorf("held %+v", has)
	}
	if held, _ := h.offer("b", setOf("x")); !held {
		t.Error("the files of another pod are not taken")
	}
	if held, _ := h.offer("a", setOf("x")); !held || h.library.Held("p").Failed != 0 {
		t.Error("the failure outlives its end")
	}
}

// TestMemoryGrowsWithWhatIsSent: an offer of as many bytes as there can be makes the picker hold none before they come.
func TestMemoryGrowsWithWhatIsSent(t *testing.T) {
	h := newHouse(t)
	client, err := Dial(h.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	list := modelfiles.Listing{Hash: strings.Repeat("0", 64), Names: []string{"tokenizer.json"}, Sizes: []int{modelfiles.MaxBytes}}
	parts := 0
	_, err = client.HandOver(t.Context(), "a", list, func(put func([]byte) error) error {
		for {
			if err := put(bytes.Repeat([]byte("x"), filePart)); err != nil {
				return err
			}
			parts++
		}
	})
	if err == nil || parts > 3*modelfiles.MaxBytes/filePart {
		t.Errorf("%d parts were taken: %v", parts, err)
	}
	h.expect(nil, 0)
}
