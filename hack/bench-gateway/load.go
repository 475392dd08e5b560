package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/build"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// size of the chats of a row.
type size struct {
	name          string
	bytes         int
	turns         int
	conversations int
	rate          int     // requests per second
	limit         float64 // ms of CPU
}

var sizes = []size{
	{"ext_proc, 32 KB chat", 32 << 10, 24, 16, 800, 0.5},
	{"ext_proc, 2 KB prompt", 2 << 10, 2, 16, 800, 0.25},
	{"ext_proc, 400 KB prompt", 400 << 10, 40, 4, 40, 4},
}

// newest is the size of the last turn, which is new with every request.
const newest = 200

// chat is a conversation whose newest turn is different every time.
type chat struct {
	body []byte
	last int
}

var text = sync.OnceValue(func() string {
	var b strings.Builder
	files, err := filepath.Glob(filepath.Join(build.Default.GOROOT, "src", "net", "*", "*.go"))
	if err != nil || len(files) == 0 {
		panic(fmt.Sprint("no text: ", err))
	}
	for i := 0; b.Len() < 4<<20; i++ {
		raw, err := os.ReadFile(files[i%len(files)])
		if err != nil {
			panic(err)
		}
		b.Write(bytes.ToValidUTF8(raw, nil))
	}
	return b.String()
})

func conversations(s size) []*chat {
	var all []*chat
	for i := range s.conversations {
		type message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		messages := []message{{"system", "You are a helpful assistant."}}
		each := (s.bytes - newest - 100) / max(1, s.turns-1)
		for j := range s.turns - 1 {
			at := (i*7919 + j*104729) * 97 % (3 << 20)
			messages = append(messages, message{[]string{"user", "assistant"}[j%2], strings.ToValidUTF8(text()[at:at+each*9/10], "")})
		}
		mark := strings.Repeat("@", newest)
		messages = append(messages, message{"user", mark})
		body, err := json.Marshal(map[string]any{"model": modelName, "messages": messages, "stream": true, "max_tokens": 100})
		if err != nil {
			panic(err)
		}
		all = append(all, &chat{body: body, last: bytes.Index(body, []byte(mark))})
	}
	return all
}

// turn is the request with the i-th newest turn, a copy.
func (c *chat) turn(i int) []byte {
	body := append([]byte(nil), c.body...)
	words := body[c.last : c.last+newest]
	copy(words, text()[(i*1009+7)*131%(3<<20):])
	for j, b := range words {
		if b >= 0x80 || b < ' ' || b == '"' || b == '\\' {
			words[j] = ' '
		}
	}
	return body
}

// engine is all engines: one server on every loopback address.
type engine struct {
	port    string
	metrics []byte
	answer  []byte
}

func startEngine() (*engine, error) {
	l, err := net.Listen("tcp", "0.0.0.0:0") //nolint:noctx // of all loopback addresses
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	e := &engine{port: port, metrics: metricsPage()}
	e.answer = fmt.Appendf(nil, `{"choices":[{"text":"%s"}],"usage":{"prompt_tokens":200,"completion_tokens":100}}`,
		strings.Repeat("x", 1<<10-90))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(e.metrics) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":%q}]}`, modelName)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(e.answer)
	})
	mux.HandleFunc("POST /v1/chat/completions", stream)
	go func() { _ = http.Serve(l, mux) }()
	return e, nil
}

// stream answers with events that say when they were made, in nanoseconds.
func stream(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	if n, err := strconv.Atoi(r.Header.Get(eventsHeader)); err == nil { // at once
		for range n {
			_, _ = w.Write(event)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		return
	}
	for range streamEvents {
		_, _ = fmt.Fprintf(w, "data: {\"t\":%d,\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n", time.Now().UnixNano())
		_ = http.NewResponseController(w).Flush()
		time.Sleep(streamEvery)
	}
}

// eventsHeader of a request is the number of events of its answer, which come without a pause.
const eventsHeader = "X-Events"

const (
	streamEvents = 400
	streamEvery  = 3 * time.Millisecond
)

// metricsPage is as large as that of a vLLM, with the lines that are read and many that are not.
func metricsPage() []byte {
	var b bytes.Buffer
	for i := range 30 {
		fmt.Fprintf(&b, "# HELP vllm:histogram_%d Of something.\n# TYPE vllm:histogram_%d histogram\n", i, i)
		for j := range 20 {
			fmt.Fprintf(&b, "vllm:histogram_%d_bucket{engine=\"0\",le=\"%d.0\",model_name=%q} %d.0\n", i, j, modelName, i*j)
		}
	}
	for _, line := range []string{
		"vllm:num_requests_running{engine=\"0\",model_name=%q} 3.0", "vllm:num_requests_waiting{engine=\"0\",model_name=%q} 0.0",
		"vllm:kv_cache_usage_perc{engine=\"0\",model_name=%q} 0.25",
	} {
		fmt.Fprintf(&b, line+"\n", modelName)
	}
	fmt.Fprintln(&b, `vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="20000"} 1.0`)
	return b.Bytes()
}
