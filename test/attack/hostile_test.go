package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attackEnv makes this program the attackers of the picker at the addresses in it.
const attackEnv = "KVASIR_ATTACK"

// inForce is what the attackers print once all of them have begun.
const inForce = "in force"

// kindsEnv limits the attackers to the kinds whose names it contains, unless it is empty.
const kindsEnv = "KVASIR_ATTACK_KINDS"

// kind is one kind of hostile client: workers that act until their context ends.
type kind struct {
	workers int
	act     func(a *army, ctx context.Context, worker int)
}

// headerFloods are kinds that cost a picker processor time before it knows whose request it is.
var headerFloods = []string{"huge headers", "requests at once", "calls at once", "reports at once"}

// kinds of hostile clients, by name.
var kinds = map[string]kind{
	"slow uploads":         {300, (*army).slowUpload},
	"huge bodies":          {3, (*army).hugeBody},
	"huge prompts":         {3, (*army).hugePrompt},
	"long conversations":   {3, (*army).longConversation},
	"idle connections":     {1500, (*army).idle},
	"broken requests":      {4, (*army).broken},
	"aborted answers":      {4, (*army).aborted},
	"answers not read":     {32, (*army).unread},
	"resets":               {2, func(a *army, ctx context.Context, _ int) { a.resets(ctx, a.at.Proxy, "/v1/completions") }},
	"resets by gateways":   {2, func(a *army, ctx context.Context, _ int) { a.resets(ctx, a.at.ExtProc, processMethod) }},
	"held streams":         {20, (*army).heldStreams},
	"huge gateway bodies":  {3, (*army).hugeMessages},
	"huge gateway prompts": {2, (*army).hugeGatewayPrompt},
	"incomplete reports":   {60, (*army).incompleteReports},
	"false reports":        {1, (*army).falseReports},
	"false peers":          {80, (*army).falsePeers},
	"pages not read":       {100, (*army).pagesNotRead},
	"huge explanations":    {2, (*army).explain},
	"health watches":       {300, (*army).watchHealth},
	"connections at once":  {4, (*army).connect},
	"headers without end":  {50, (*army).endlessHeader},
	"resets of reports":    {1, func(a *army, ctx context.Context, _ int) { a.resets(ctx, a.at.Reports, inFlightMethod) }},
	"unknown keys, bodies": {20, (*army).strangers},
	"huge headers":         {300, (*army).hugeHeader},
	"empty headers":        {20, (*army).emptyHeaders},
	"empty changes":        {6, (*army).emptyChanges},
	"unread pings":         {150, (*army).unreadPings},
	"prompts of ids":       {3, (*army).promptOfIDs},
	"hostile engines":      {hostileEngines, (*army).hostileEngine},
	"requests of those":    {6, (*army).askHostileEngine},
	"requests at once": {6, func(a *army, ctx context.Context, worker int) {
		a.requestsAtOnce(ctx, worker, a.at.Proxy, "/v1/completions")
	}},
	"calls at once": {6, func(a *army, ctx context.Context, worker int) {
		a.requestsAtOnce(ctx, worker, a.at.ExtProc, processMethod)
	}},
	"reports at once": {6, func(a *army, ctx context.Context, worker int) {
		a.requestsAtOnce(ctx, worker, a.at.Reports, inFlightMethod)
	}},
}

const (
	processMethod  = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
	inFlightMethod = "/kvasir.report.v1.Report/InFlight"
)

// army is all hostile clients of a picker.
type army struct {
	at      targets
	junk    []byte                   // a chat with a huge field that no template reads
	prompts []hugePrompt             // that are expensive to make tokens of
	fields  []byte                   // a header of many small fields, and the beginning of a body
	count   map[string]*atomic.Int64 // of acts, by kind
}

// attack runs all kinds until standard input ends.
func attack(text string) error {
	a := &army{count: map[string]*atomic.Int64{}}
	if err := json.Unmarshal([]byte(text), &a.at); err != nil {
		return err
	}
	a.junk = []byte(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"x"}],"x":[0` + strings.Repeat(",0", 29<<20) + `]}`)
	a.prompts = hugePrompts()
	a.fields = []byte("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + badKey + "\r\nContent-Length: 4096\r\n")
	for i := 0; len(a.fields) < 63<<10; i++ {
		a.fields = fmt.Appendf(a.fields, "%x:\r\n", i)
	}
	a.fields = append(a.fields, "\r\n{"...)
	ctx, stop := context.WithCancel(context.Background())
	var all, begun sync.WaitGroup
	only := os.Getenv(kindsEnv)
	for name, k := range kinds {
		if only != "" && !strings.Contains(only, name) {
			continue
		}
		count := &atomic.Int64{}
		a.count[name] = count
		for worker := range k.workers {
			begun.Add(1)
			all.Go(func() {
				first := sync.OnceFunc(begun.Done)
				defer first()
				for pause(ctx, time.Duration(rand.IntN(200))*time.Millisecond); ctx.Err() == nil; pause(ctx, 20*time.Millisecond) {
					first()
					k.act(a, ctx, worker)
					count.Add(1)
				}
			})
		}
	}
	begun.Wait()
	fmt.Println(inForce)
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
	for _, name := range slices.Sorted(maps.Keys(a.count)) {
		fmt.Printf("  %-22s %d\n", name, a.count[name].Load())
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// dial connects from one of several addresses. The connection ends, with a reset, when ctx does.
func (a *army) dial(ctx context.Context, address string, worker int) (net.Conn, func()) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+worker%8))}, Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		pause(ctx, 100*time.Millisecond)
		return nil, nil
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return c, func() { stop(); _ = c.Close() }
}

func post(path, key string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		path, key, length)
}

// slowUpload sends a body at about the least rate that is allowed.
func (a *army) slowUpload(ctx context.Context, worker int) { a.trickle(ctx, worker, badKey) }

// strangers do the same without a tenant's key.
func (a *army) strangers(ctx context.Context, worker int) { a.trickle(ctx, worker, "sk-unknown") }

func (a *army) trickle(ctx context.Context, worker int, key string) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_, err := io.WriteString(c, post("/v1/chat/completions", key, 32<<20))
	for sent, piece := 0, 512<<10; err == nil && sent < 32<<20 && ctx.Err() == nil; piece = 2 << 10 {
		_, err = c.Write(a.junk[sent : sent+piece])
		sent += piece
		pause(ctx, time.Second)
	}
}

// hugeBody sends a chat of nearly the largest size.
func (a *army) hugeBody(ctx context.Context, worker int) {
	a.exchange(ctx, worker, post("/v1/chat/completions", badKey, len(a.junk)), a.junk)
}

// hugePrompt is a request whose prompt is expensive.
type hugePrompt struct {
	path string
	body []byte
}

// hugePrompts are prompts that are expensive to normalise, to split, to decode for a template, or to tokenize.
func hugePrompts() (all []hugePrompt) {
	for _, text := range []string{
		strings.Repeat("\u0301", 28<<20), // marks without an end, in one order only
		strings.Repeat("a\u0301\u0323", 4<<20),
		strings.Repeat("the engine computes a prompt ", 1<<20),
		strings.Repeat("x", 16<<20),
	} {
		all = append(all,
			hugePrompt{"/v1/completions", []byte(`{"model":"m","max_tokens":1,"prompt":"` + text + `"}`)},
			hugePrompt{"/v1/chat/completions", []byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`)})
	}
	junk := "[0" + strings.Repeat(",0", 8<<20) + "]"
	tools := `"tools":[{"type":"function","function":{"name":"f","parameters":{"x":` + junk + `}}}]` // which the template prints
	chat := `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],` + tools + `}`
	return append(all, hugePrompt{"/v1/chat/completions", []byte(chat)})
}

// hugePrompt sends one of them.
func (a *army) hugePrompt(ctx context.Context, worker int) {
	p := a.prompts[rand.IntN(len(a.prompts))]
	a.exchange(ctx, worker, post(p.path, badKey, len(p.body)), p.body)
}

// longConversation sends a long text of random words. No two requests share the beginning.
func (a *army) longConversation(ctx context.Context, worker int) {
	var text strings.Builder
	for text.Len() < 200<<10 {
		fmt.Fprintf(&text, " %x", rand.Uint32())
	}
	body := []byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text.String() + `"}]}`)
	a.exchange(ctx, worker, post("/v1/chat/completions", badKey, len(body)), body)
}

// exchange sends a request and reads the answer to its end.
func (a *army) exchange(ctx context.Context, worker int, head string, body []byte) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, head); err == nil {
		_, _ = c.Write(body)
	}
	_, _ = io.CopyN(io.Discard, c, 4<<10)
	pause(ctx, 300*time.Millisecond)
}

// idle holds a connection that says nothing.
func (a *army) idle(ctx context.Context, worker int) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_, _ = c.Read(make([]byte, 1))
	pause(ctx, 500*time.Millisecond)
}

// connect opens connections and resets them.
func (a *army) connect(ctx context.Context, worker int) {
	for _, address := range []string{a.at.Proxy, a.at.ExtProc, a.at.Reports, a.at.Metrics, a.at.Health} {
		if c, end := a.dial(ctx, address, worker); c != nil {
			end()
		}
	}
}

// broken sends bytes that are no request, or only its beginning.
func (a *army) broken(ctx context.Context, worker int) {
	random := make([]byte, 1+rand.IntN(4000))
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	whole := []byte(post("/v1/completions", badKey, 40) + `{"model":"m","prompt":"x","max_tokens":1}`)
	chunked := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer " + badKey + "\r\n\r\n"
	for _, b := range [][]byte{
		random, append([]byte(http2.ClientPreface), random...), whole[:rand.IntN(len(whole))], []byte(chunked + "ffffffffffffffff\r\n"),
		[]byte(chunked + "5\r\nab"),
	} {
		for _, address := range []string{a.at.Proxy, a.at.ExtProc, a.at.Reports, a.at.Metrics, a.at.Health} {
			c, end := a.dial(ctx, address, worker)
			if c == nil {
				continue
			}
			_, _ = c.Write(b)
			end()
		}
	}
}

// endlessHeader sends a header that goes on.
func (a *army) endlessHeader(ctx context.Context, worker int) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
	for err == nil && ctx.Err() == nil {
		_, err = io.WriteString(c, "X-"+strings.Repeat("a", 4<<10)+": b\r\n")
		pause(ctx, 200*time.Millisecond)
	}
}

// hugeHeader sends a header of many small fields, and of the body as little as is allowed.
func (a *army) hugeHeader(ctx context.Context, worker int) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	if _, err := c.Write(a.fields); err == nil {
		_, _ = c.Read(make([]byte, 1)) // until the picker has had enough
	}
	pause(ctx, 500*time.Millisecond)
}

// manyFields is the header of a request with as many fields as are allowed, a byte each.
func manyFields(path string) []byte {
	var header bytes.Buffer
	coder := hpack.NewEncoder(&header)
	coder.SetMaxDynamicTableSize(0) // so that the bytes are the same for each request
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"authorization", "Bearer " + badKey}} {
		_ = coder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	for range 1500 {
		_ = coder.WriteField(hpack.HeaderField{Name: "accept-encoding", Value: "gzip, deflate"}) // of the static table
	}
	return header.Bytes()
}

// requestsAtOnce opens as many requests as one connection of HTTP/2 allows, with as large headers as a byte for each field
// makes them, and never ends their bodies.
func (a *army) requestsAtOnce(ctx context.Context, worker int, address, path string) {
	f := a.framed(ctx, address, worker)
	if f == nil {
		return
	}
	defer f.end()
	header := manyFields(path)
	for id := uint32(1); id < 2*4096; id += 2 {
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: header, EndHeaders: true}) != nil {
			return
		}
	}
	f.hold(ctx, 10*time.Second)
}

const longAnswer = `{"model":"m","prompt":"tell me","max_tokens":20000,"stream":true,"ignore_eos":true}`

// aborted leaves in the middle of an answer.
func (a *army) aborted(ctx context.Context, worker int) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = io.WriteString(c, post("/v1/completions", badKey, len(longAnswer))+longAnswer)
	_, _ = io.ReadFull(c, make([]byte, 600))
}

// unread requests an answer and reads nothing of it.
func (a *army) unread(ctx context.Context, worker int) {
	c, end := a.dial(ctx, a.at.Proxy, worker)
	if c == nil {
		return
	}
	defer end()
	_, _ = io.WriteString(c, post("/v1/completions", badKey, len(longAnswer))+longAnswer)
	pause(ctx, 3*time.Second)
}
