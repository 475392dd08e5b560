package lab

import (
	"bytes"
	"compress/gzip"
	"reflect"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// FuzzRead: a file of whatever format is refused, or gives requests in the order of their arrival that can be played;
// and the same where it is compressed.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}` + "\n" + `{"timestamp": 3000, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]}` + "\n"))
	f.Add([]byte(trace.AzureHeader + "\n2023-11-16 18:15:46.6805900,700,44\n2023-11-16 18:15:50.9951690,1,109\n"))
	f.Add([]byte(`{"timestamp":1700000000000,"input_length":600,"output_length":9,"hash_ids":[11,12],"pool":"p","model":"m","strategy":"MarginalCost","tokens":"exact","candidates":[],"scored":2,"attempt":0,"outcome":"completed","cached":0,"waited_ms":0,"duration_ms":5}` + "\n{"))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		w, skipped, err := Read("fuzz", bytes.NewReader(text))
		if !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			if _, err := z.Write(text); err != nil || z.Close() != nil {
				t.Fatal(err)
			}
			same, skippedToo, errToo := Read("fuzz", &packed)
			if (err == nil) != (errToo == nil) || err == nil && (!reflect.DeepEqual(w.Requests, same.Requests) || w.Dropped != same.Dropped || skipped.Lines != skippedToo.Lines) {
				t.Errorf("compressed it is another workload: %v, %v", err, errToo)
			}
		}
		if err != nil {
			return
		}
		turns := map[int]int{}
		for i, r := range w.Requests {
			if r.Input < 1 || r.Output < 0 || r.Tick < 0 || r.At < 0 || i > 0 && r.At < w.Requests[i-1].At {
				t.Errorf("request %d: %+v", i, r)
			}
			if r.Session < 0 || r.Session >= w.Sessions || r.Turn != turns[r.Session] {
				t.Errorf("request %d is turn %d of session %d of %d", i, r.Turn, r.Session, w.Sessions)
			}
			turns[r.Session]++
		}
	})
}
