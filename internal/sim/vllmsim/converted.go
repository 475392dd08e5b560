package vllmsim

import (
	"encoding/json"
	"net/http"
	"time"
)

// convertedAnswer is an answer to a chat in the form of another API.
type convertedAnswer struct {
	e       *Engine
	id      string
	created int64
	model   string
	prompt  []uint32
	stream  *stream
	// numbered: events have numbers.
	numbered bool
}

// answerWriter writes answers of one API: at once, or as events.
type answerWriter interface {
	plain(v view) any
	begin(send func(event string, data map[string]any))
	// news writes text that is new; first reports whether there was none before.
	news(send func(event string, data map[string]any), text string, first bool)
	end(send func(event string, data map[string]any), v view)
	// fault is the answer to a request whose blocks could not be loaded; breakOff ends its stream.
	fault() error
	breakOff(send func(event string, data map[string]any))
}

// serveConverted answers a chat in the form that an answerWriter gives it.
func (e *Engine) serveConverted(
	w http.ResponseWriter, r *http.Request, req *chatRequest, prompt []uint32, prefix string, as func(*convertedAnswer) answerWriter,
) error {
	if err := e.checkRank(r); err != nil {
		return err
	}
	prompts := [][]uint32{prompt}
	transfer := e.transferParams(&req.common, prompts)
	streams, err := e.submitFor(&req.common, prompts, transfer)
	if err != nil {
		return err
	}
	var load loading
	if err := load.begin(r.Context(), e, &req.common, transfer, prompts, streams); err != nil {
		return err
	}
	t := &convertedAnswer{
		e: e, id: e.requestID(prefix, r, &req.common), created: time.Now().Unix(), model: e.nameOf(req.Model), prompt: prompt, stream: streams[0],
	}
	ended := t.serve(w, r, streams[0], as(t), req.Stream)
	load.end(e, streams, ended)
	return nil
}

// handed are the parameters for the engine that decodes; nil for none.
func (t *convertedAnswer) handed(v view) any { return t.e.handed(t.stream, v, len(t.prompt)) }

// serve writes the answer and reports whether it came to its end; a client that is gone ends it before.
func (t *convertedAnswer) serve(w http.ResponseWriter, r *http.Request, s *stream, in answerWriter, streamed bool) bool {
	flush, failed, number := http.NewResponseController(w), false, 0
	send := func(event string, data map[string]any) {
		data["type"] = event
		if t.numbered {
			data["sequence_number"] = number
			number++
		}
		text, err := json.Marshal(data)
		if err == nil {
			_, err = w.Write([]byte("event: " + event + "\ndata: " + string(text) + "\n\n"))
		}
		failed = failed || err != nil
	}
	if streamed {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		in.begin(send)
	}
	for sent := 0; ; {
		v := s.view()
		if fresh := v.tokens[sent:]; streamed && len(fresh) > 0 {
			in.news(send, t.e.cfg.Text.Decode(fresh), sent == 0)
			sent = len(v.tokens)
		}
		if v.finish == finishError {
			if !streamed {
				t.e.writeError(w, in.fault())
				return true
			}
			in.breakOff(send)
			return flush.Flush() == nil && !failed
		}
		if v.finish != "" {
			if !streamed {
				t.e.writeJSON(w, in.plain(v))
				return true
			}
			in.end(send, v)
			return flush.Flush() == nil && !failed
		}
		if failed || streamed && flush.Flush() != nil {
			return false
		}
		select {
		case <-s.ready:
		case <-r.Context().Done():
			return false
		}
	}
}
