package judge

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Target is an engine that was started with the settings of a Variant and has served nothing.
type Target struct {
	// URL is http://host:port; Events and Replay are host:port of its sockets.
	URL, Events, Replay string
	// Terminate sends SIGTERM to the engine's process and returns at once.
	Terminate func() error
	// QueueLimits: the release has --max-num-queued-reqs. Without it requests wait for a place as long as it takes.
	QueueLimits bool
	// Model is the path that the engine was given for its model; it is replaced in the transcript.
	Model string
	// Adapters are the paths of two LoRA adapters, for the variant with adapters.
	Adapters [2]string
}

// Variant says how an engine was started.
type Variant struct {
	// Name is empty for the documented flags, else it is the prefix of the cases.
	Name string
	// Key guards the API if it is not empty.
	Key string
	// Options: the engine runs with --enable-scale-out, --max-num-seqs 2, --max-num-queued-reqs 2 and --shutdown-timeout,
	// as far as its release has them, with digests for hashes, and without --enable-prompt-tokens-details.
	Options bool
	// Adapters: the engine has LoRA with room for two adapters, and they can be loaded while it runs.
	Adapters bool
	// Rank is the data-parallel rank under observation, of two; the requests name it. 0 is an engine with one rank.
	Rank int
	// Windows: three of the model's four layers look back 128 tokens.
	Windows bool
	// APIs: the engine runs with the bounds of one with options, and is asked for Messages and Responses. It has
	// --enable-scale-out and takes tools that the model may choose.
	APIs bool
	// Pooling: the model generates nothing, it makes embeddings.
	Pooling bool
}

// Bounded reports whether the engine has bounds on what it runs and queues, and time to end it.
func (v Variant) Bounded() bool { return v.Options || v.APIs }

// Context returns the context length and the number of blocks of the engine's cache. With options, running requests must
// outlast the engine's shutdown timeout however fast it is, so they are given room.
func (v Variant) Context() (maxModelLen, blocks int) {
	switch {
	case v.Bounded():
		return 16 * MaxModelLen, 32 * Blocks
	case v.Windows:
		return MaxModelLen, 4 * Blocks // each of four layers has blocks of its own
	}
	return MaxModelLen, Blocks
}

// has reports whether a case belongs to the variant.
func (v Variant) has(name string) bool {
	for _, other := range Variants {
		if other.Name != "" && strings.HasPrefix(name, other.Name) {
			return v.Name == other.Name
		}
	}
	return v.Name == ""
}

// terminates reports whether the variant's last step ends the engine.
func (v Variant) terminates() bool { return v.Name == "" || v.Bounded() }

// long is how many tokens are asked for when a request is to run until it is ended.
func (v Variant) long() int {
	maxModelLen, _ := v.Context()
	return maxModelLen - 100
}

// The variants of a transcript.
var (
	Plain    = Variant{Key: Key}
	Options  = Variant{Name: "with options: ", Options: true}
	Adapters = Variant{Name: "with adapters: ", Adapters: true}
	Ranks    = Variant{Name: "rank 1 of two: ", Rank: 1}
	Windows  = Variant{Name: "with windows: ", Windows: true}
	APIs     = Variant{Name: "other APIs: ", Key: Key, APIs: true}
	Pooling  = Variant{Name: "pooling: ", Pooling: true}
)

// Variants are all variants, in the order in which engines are judged, two at a time.
var Variants = []Variant{Plain, Options, Adapters, Ranks, Windows, APIs, Pooling}

// Frame is a message of the event socket, as recorded.
type Frame struct {
	// Case is what was done before; Seq numbers the message.
	Case    string
	Seq     uint64
	Payload []byte
}

// judge is one engine under observation.
type judge struct {
	Target
	Variant
	client *http.Client
	out    Transcript
	frames []Frame
	events *follower
	hashes renamer
}

// Observe sends all requests of a variant to t, ends it, and returns what it has shown and the messages of its event
// socket that belong to named cases.
func Observe(ctx context.Context, t Target, v Variant) (Transcript, []Frame, error) {
	j := &judge{
		Target: t, Variant: v, out: Transcript{}, hashes: renamer{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute},
	}
	var err error
	if j.events, err = follow(ctx, t.Events, t.Replay); err != nil {
		return nil, nil, err
	}
	defer j.events.close()
	for _, step := range j.steps() {
		if err := step(ctx); err != nil {
			return nil, nil, err
		}
	}
	return j.out, j.frames, nil
}

// steps are what the variant is asked, in order.
func (j *judge) steps() []func(context.Context) error {
	type steps []func(context.Context) error
	switch {
	case j.Options && j.QueueLimits:
		return steps{j.cache, j.answers, j.queue, j.terminate}
	case j.Options:
		return steps{j.cache, j.answers, j.terminate}
	case j.Variant.Adapters:
		return steps{j.cache, j.stops}
	case j.Rank > 0:
		return steps{j.cache, j.replays, j.metrics, j.ranks}
	case j.Windows:
		return steps{j.cache}
	case j.APIs && j.QueueLimits:
		return steps{j.answers, j.queue, j.terminate}
	case j.APIs:
		return steps{j.answers, j.terminate}
	case j.Pooling:
		return steps{j.answers, j.metrics}
	}
	return steps{j.cache, j.replays, j.answers, j.metrics, j.idle, j.terminate}
}

// observation is the place for what a case shows.
func (j *judge) observation(name string) Observation {
	name = j.Name + name
	if j.out[name] == nil {
		j.out[name] = Observation{}
	}
	return j.out[name]
}

// answers sends the requests whose answers are compared.
func (j *judge) answers(ctx context.Context) error {
	list := requests()
	switch {
	case j.Options:
		list = append(renderings(), completions()[:6]...)
	case j.APIs:
		list = apis()
	case j.Pooling:
		list = pooling()
	}
	for _, r := range list {
		if err := j.ask(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// ask sends one request and notes the answer.
func (j *judge) ask(ctx context.Context, r request) error {
	resp, body, err := j.send(ctx, r)
	if err != nil {
		return err
	}
	j.answer(j.observation(r.name), resp, body, r.ids)
	return nil
}

// answer notes a response.
func (j *judge) answer(o Observation, resp *http.Response, body []byte, ids bool) {
	o.set("status", fmt.Sprint(resp.StatusCode))
	o.noteHeaders(resp.Header)
	switch kind := resp.Header.Get("Content-Type"); {
	case strings.HasPrefix(kind, "text/event-stream"):
		o.noteStream("stream", body)
	case strings.HasPrefix(kind, "text/plain") && resp.StatusCode == http.StatusOK:
		o.set("body", "text")
	default:
		o.noteJSON("body", body, ids)
	}
}

func (j *judge) send(ctx context.Context, r request) (*http.Response, []byte, error) {
	resp, err := j.open(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the answer: %w", err)
	}
	return resp, body, nil
}

// open sends a request and returns when the header of the answer is there.
func (j *judge) open(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, j.URL+r.path, strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.method == http.MethodPost || r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if j.Key != "" {
		req.Header.Set("Authorization", "Bearer "+j.Key)
	}
	if j.Rank > 0 {
		req.Header.Set(rankHeader, strconv.Itoa(j.Rank))
	}
	for i := 0; i+1 < len(r.headers); i += 2 {
		req.Header.Del(r.headers[i])
		if r.headers[i+1] != "" {
			req.Header.Set(r.headers[i], r.headers[i+1])
		}
	}
	return j.client.Do(req)
}

// settled waits until probe returns the same twice in a row: engines publish and count a little after they answer.
func settled[T comparable](ctx context.Context, probe func() (T, error)) (T, error) {
	last, err := probe()
	for err == nil {
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return last, ctx.Err()
		}
		var now T
		if now, err = probe(); err == nil && now == last {
			return now, nil
		}
		last = now
	}
	return last, err
}
