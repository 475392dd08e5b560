package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// secured compares the proxy with TLS and without, turn by turn, on connections that are kept and on one for each request.
func (b *bench) secured() error {
	p, err := b.child("serve")
	if err != nil {
		return err
	}
	defer p.stop()
	body := fmt.Appendf(nil, `{"model":%q,"max_tokens":16,"prompt":[%s]}`, modelName, strings.TrimSuffix(strings.Repeat("1000,", 190), ","))
	plain, secure := "http://"+p.addresses[2], "https://"+p.addresses[4]
	ways := []struct {
		key, url string
		h2, anew bool
	}{
		{"plainUs", plain, false, false}, {"tlsUs", secure, false, false}, {"h2cUs", plain, true, false}, {"h2TLSUs", secure, true, false},
		{"plainConnectionUs", plain, false, true}, {"tlsConnectionUs", secure, false, true},
	}
	beside := map[string]float64{"bytes": float64(len(body))}
	for range 3 {
		for _, w := range ways {
			n := int(b.length.Seconds() * 100)
			if w.anew {
				n /= 10 // handshakes of an address have a limit
			}
			cost, err := b.kept(p, w.url, body, w.h2, w.anew, n)
			if err != nil {
				return fmt.Errorf("%s: %w", w.key, err)
			}
			if before, ok := beside[w.key]; !ok || cost*1e6 < before {
				beside[w.key] = cost * 1e6
			}
		}
	}
	b.record(row{Row: "proxy over TLS, 1 KB request and answer", Value: beside["tlsUs"] / beside["plainUs"],
		Unit: "x the CPU without TLS", Beside: beside})
	return nil
}

// kept sends n requests with each of 16 workers, and gives the CPU seconds of each.
func (b *bench) kept(p *process, url string, body []byte, h2, anew bool, n int) (float64, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	protocols.SetUnencryptedHTTP2(h2)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableKeepAlives: anew, Protocols: protocols,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // its own child, whose certificate it makes at the start
	defer client.CloseIdleConnections()
	const workers = 16
	var failed error
	var mu sync.Mutex
	send := func(n int) {
		var wait sync.WaitGroup
		for range workers {
			wait.Go(func() {
				for range n {
					answer, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body)) //nolint:noctx // ends
					if err == nil {
						_, err = io.Copy(io.Discard, answer.Body)
						_ = answer.Body.Close()
					}
					if err == nil && answer.StatusCode != http.StatusOK {
						err = fmt.Errorf("status %d", answer.StatusCode)
					}
					if err != nil {
						mu.Lock()
						failed = err
						mu.Unlock()
						return
					}
				}
			})
		}
		wait.Wait()
	}
	send(max(1, n/25))
	before := p.cpu()
	send(n)
	return (p.cpu() - before).Seconds() / float64(workers*n), failed
}
