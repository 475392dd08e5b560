// Package sidecarwire is what llm-d's routing sidecar sends and answers, recorded from a running one by the test
// TestTheSidecarsWireIsAsRecorded of test/envoy:
//
//	make sidecar && go test ./test/envoy -run TestTheSidecarsWireIsAsRecorded -update
package sidecarwire

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
)

//go:embed wire.json
var wire []byte

// Record is what one release of the sidecar does. Date is the day of the record.
type Record struct {
	Version, Date string
	Exchanges     []Exchange
}

// Exchange is a request to the sidecar, what its engines get, and its answer. In headers, P is the address of the engine that prefills, D
// that of the one that decodes, and S the sidecar's own.
type Exchange struct {
	Name string
	// Flags of the sidecar beside --secure-proxy=false and --kv-connector=nixlv2.
	Flags []string `json:",omitempty"`
	// Prefillers are the values of the header that names the engine that prefills.
	Prefillers      []string
	Request         Message
	Prefill, Decode []Message
	Answer          Answer
	// Left is what was seen after the client has left; empty if it has stayed.
	Left string `json:",omitempty"`
}

// Message is the part of a request or an answer that does not differ between two runs.
type Message struct {
	Path   string              `json:",omitempty"`
	Header map[string][]string `json:",omitempty"`
	// Body is JSON with sorted fields if the body is JSON.
	Body string `json:",omitempty"`
}

// Answer is what the client gets.
type Answer struct {
	Status int
	// Broken: the connection has ended before the answer did.
	Broken bool `json:",omitempty"`
	Message
}

// Body brings JSON into one form.
func Body(b []byte) string {
	var v any
	if json.Unmarshal(b, &v) != nil {
		return string(b)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return string(b)
	}
	return string(out)
}

// Recorded is the record. It panics if the file cannot be read as one.
func Recorded() *Record {
	r := &Record{}
	if err := json.Unmarshal(wire, r); err != nil {
		panic(fmt.Sprintf("reading wire.json: %v", err))
	}
	return r
}

// Of is the exchange with a name; the zero value if there is none.
func (r *Record) Of(name string) Exchange {
	for _, e := range r.Exchanges {
		if e.Name == name {
			return e
		}
	}
	return Exchange{}
}

// Write writes the record to a file.
func (r *Record) Write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the record of the sidecar's wire: %w", err)
	}
	return nil
}
