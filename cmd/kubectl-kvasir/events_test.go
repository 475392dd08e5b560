package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

const frames = "../../internal/vllm/testdata/kv-events"

// TestGoldenFrames decodes frames of the publishers of seven releases. The results are in testdata/events.txt, after the
// name of the frame.
func TestGoldenFrames(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(frames, "*", "*.hex"))
	if err != nil || len(paths) < 90 {
		t.Fatalf("found %d frames, %v", len(paths), err)
	}
	var input strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		input.WriteString(strings.TrimSpace(string(text)) + "\r\n")
	}
	status, stdout, stderr := exec(t, input.String(), "events")
	if status != 0 || stderr != "" {
		t.Fatalf("status is %d, said %q", status, stderr)
	}
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if len(lines) != len(paths) {
		t.Fatalf("%d lines for %d frames", len(lines), len(paths))
	}
	var got strings.Builder
	for i, path := range paths {
		name, _ := strings.CutPrefix(filepath.ToSlash(path), frames+"/")
		fmt.Fprintf(&got, "%s %s\n", strings.TrimSuffix(name, ".hex"), lines[i])
	}
	const golden = "testdata/events.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestEvents(t *testing.T) {
	sglang := "92" + "cb3ff8000000000000" + "91" + "98" + "ab426c6f636b53746f726564" + "91cf0102030405060708" + "c0" + "9105" + "01" + "c0" + "a3475055" + "81aa63616368655f73616c74a173"
	const empty = `{"ts":1.5,"rank":null,"events":[],"skipped":0}`
	stored := func(skipped int) string {
		return fmt.Sprintf(`{"ts":1.5,"rank":null,"events":[{"type":"BlockStored","hashes":["72623859790382856"],"parent":null,"tokens":1,"blockSize":1,`+
			`"medium":"GPU","loraName":null,"group":0,"indexed":true}],"skipped":%d}`, skipped)
	}
	for name, tc := range map[string]struct {
		args, input, want string
	}{
		"no events":                          {"", "92cb3ff800000000000090\n", empty},
		"upper case and blanks":              {"", " 92CB3FF800000000000090 \n", empty},
		"a last line without an end":         {"", "92cb3ff800000000000090", empty},
		"a time that is no number":           {"", "92cb7ff800000000000090\n", `{"ts":null,"rank":null,"events":[],"skipped":0}`},
		"an unknown event":                   {"", "93cb3ff8000000000000" + "9191a178" + "03\n", `{"ts":1.5,"rank":3,"events":[],"skipped":1}`},
		"what only SGLang says, of SGLang":   {"--engine sglang", sglang, stored(0)},
		"what only SGLang says, of vLLM":     {"--engine VLLM", sglang, stored(1)},
		"an odd number of digits":            {"", "9\n", `{"error":"encoding/hex: odd length hex string"}`},
		"no digits":                          {"", "no\n", `{"error":"encoding/hex: invalid byte: U+006E 'n'"}`},
		"an empty line":                      {"", "\n", `{"error":"malformed event batch"}`},
		"an unknown layout":                  {"", "90\n", `{"error":"unknown layout of event batch"}`},
		"errors do not end it":               {"", "90\n92cb3ff800000000000090\n", `{"error":"unknown layout of event batch"}` + "\n" + empty},
		"a medium that no pool knows itself": {"", strings.Replace(sglang, "475055", "58595a", 1), strings.NewReplacer("GPU", "XYZ", "true", "false").Replace(stored(1))},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := exec(t, tc.input, append([]string{"events"}, strings.Fields(tc.args)...)...)
			if status != 0 || stderr != "" {
				t.Errorf("status is %d, said %q", status, stderr)
			}
			if diff := cmp.Diff(tc.want+"\n", stdout); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// publish serves messages to one subscriber of the program, and returns what that has printed by the end.
func publish(t *testing.T, args []string, messages ...zmtp.Message) (status int, stdout, stderr string) {
	t.Helper()
	pub, err := zmtp.ListenPub("127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		args := append([]string{"events", "--connect", "tcp://" + pub.Addr()}, args...)
		done <- run(ctx, args, stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	}()
	for pub.Subscribers() == 0 {
		if ctx.Err() != nil {
			t.Fatal("no client has subscribed")
		}
		time.Sleep(time.Millisecond)
	}
	for _, m := range messages {
		if err := pub.Send(m...); err != nil {
			t.Fatal(err)
		}
	}
	if err := pub.Close(); err != nil {
		t.Fatal(err)
	}
	status = <-done
	if ctx.Err() != nil {
		t.Fatal("it did not end")
	}
	return status, out.String(), strings.ReplaceAll(errs.String(), pub.Addr(), "ADDRESS")
}

func message(t *testing.T, topic string, seq uint64, payload string) zmtp.Message {
	t.Helper()
	b, err := hex.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	return zmtp.Message{[]byte(topic), binary.BigEndian.AppendUint64(nil, seq), b}
}

func TestLivePublisher(t *testing.T) {
	const empty = "92cb3ff800000000000090"
	all := []zmtp.Message{
		message(t, "kv", 7, empty), message(t, "other", 8, "90"), {[]byte("kv")}, message(t, "kv", 9, empty),
	}
	const connected = "Connected to tcp://ADDRESS\n"
	const gone = connected + "error: receiving from ADDRESS: EOF\n"
	const line, sick = `{"ts":1.5,"rank":null,"events":[],"skipped":0}` + "\n", `{"error":"a message of 1 frames without a sequence number"}` + "\n"
	for name, tc := range map[string]struct {
		args        string
		status      int
		out, errors string
	}{
		"until it goes":       {"", 1, line + `{"error":"unknown layout of event batch"}` + "\n" + sick + line, gone},
		"two messages":        {"--count 2 --topic kv", 0, line + sick, connected},
		"one topic":           {"--topic kv", 1, line + sick + line, gone},
		"with their envelope": {"--envelope --count 1", 0, `{"topic":"kv","seq":7,` + line[1:], connected},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := publish(t, strings.Fields(tc.args), all...)
			if status != tc.status || stderr != tc.errors {
				t.Errorf("status is %d, said %q; want %d, %q", status, stderr, tc.status, tc.errors)
			}
			if diff := cmp.Diff(tc.out, stdout); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestSignalsEndTheFollowing(t *testing.T) {
	pub, err := zmtp.ListenPub("127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"events", "--connect", pub.Addr()}, stdio{In: strings.NewReader(""), Out: io.Discard, Err: out})
	}()
	if _, err := in.Read(make([]byte, 100)); err != nil { // it has said that it is connected
		t.Fatal(err)
	}
	cancel()
	if status := <-done; status != 0 {
		t.Errorf("status is %d", status)
	}
}
