package server

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A client that connects while the picker starts waits until the picker knows its pools. It is not refused because of an
// unknown model.
func TestNobodyIsAnsweredBeforeTheObjectsAreKnown(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	put(t, filepath.Join(dir, "pods.yaml"), sliceText(t, "m", "pod", engine(t, "m")))
	var others strings.Builder // which take a while to read
	for n := range 4000 {
		fmt.Fprintf(&others, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: other-%d, namespace: default}\nstringData: {key: value}\n", n)
	}
	put(t, filepath.Join(dir, "others.yaml"), others.String())
	i, o := listenOn(t, dir)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if status, body := i.complete("m"); status != http.StatusOK {
				t.Errorf("status %d, %s", status, body)
			}
		})
	}
	i.run(o)
	wait.Wait()
}
