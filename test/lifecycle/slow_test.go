package lifecycle

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// slowWatches gives a way to the API server, as whom a kubeconfig says, on which all that is watched arrives late. What
// is asked and written is not delayed. The file is a kubeconfig for it.
func (w *world) slowWatches(kubeconfig string, late time.Duration) (file string) {
	w.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	w.must(err)
	config.QPS = -1
	transport, err := rest.TransportFor(config)
	w.must(err)
	server, err := url.Parse(config.Host)
	w.must(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if watch := r.Request.URL.Query().Get("watch"); watch == "true" || watch == "1" {
				r.Body = newLateReader(r.Body, late)
			}
			return nil
		},
		// A failed request is aborted, as it would be without a proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	s := httptest.NewServer(proxy)
	w.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	const name = "slow"
	made := clientcmdapi.NewConfig()
	made.Clusters[name] = &clientcmdapi.Cluster{Server: s.URL}
	made.AuthInfos[name] = &clientcmdapi.AuthInfo{}
	made.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	made.CurrentContext = name
	f, err := os.CreateTemp(w.dir, "*.kubeconfig")
	w.must(err)
	w.must(f.Close())
	w.must(clientcmd.WriteToFile(*made, f.Name()))
	return f.Name()
}

// lateReader returns data some time after it has arrived, in the same pieces.
type lateReader struct {
	from   io.ReadCloser
	pieces chan piece
	left   piece
	closed chan struct{}
	close  func() error
}

// piece of a body, and when it is due. The last has the error that ended it.
type piece struct {
	data []byte
	err  error
	due  time.Time
}

// pieces that can be on their way.
const piecesOnTheWay = 10_000

func newLateReader(from io.ReadCloser, late time.Duration) *lateReader {
	l := &lateReader{from: from, pieces: make(chan piece, piecesOnTheWay), closed: make(chan struct{})}
	l.close = sync.OnceValue(func() error { close(l.closed); return from.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			select {
			case l.pieces <- piece{append([]byte(nil), buffer[:n]...), err, time.Now().Add(late)}:
			case <-l.closed:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return l
}

// Read implements io.Reader.
func (l *lateReader) Read(p []byte) (int, error) {
	if len(l.left.data) == 0 && l.left.err == nil {
		select {
		case l.left = <-l.pieces:
		case <-l.closed:
			return 0, io.ErrClosedPipe
		}
		select {
		case <-time.After(time.Until(l.left.due)):
		case <-l.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, l.left.data)
	l.left.data = l.left.data[n:]
	if len(l.left.data) > 0 {
		return n, nil
	}
	return n, l.left.err
}

// Close implements io.Closer.
func (l *lateReader) Close() error { return l.close() }
