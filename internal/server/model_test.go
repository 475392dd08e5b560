package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func TestAnEngineThatSpeaksOnlyHTTP2IsAskedForItsModel(t *testing.T) {
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	}))
	engine.Config.Protocols = new(http.Protocols)
	engine.Config.Protocols.SetUnencryptedHTTP2(true)
	engine.Start()
	defer engine.Close()
	address := strings.TrimPrefix(engine.URL, "http://")
	if name, err := modelOf(t.Context(), address, endpoint.Wire{H2C: true}); err != nil || name != "m" {
		t.Errorf("model %q, %v", name, err)
	}
	if name, err := modelOf(t.Context(), address, endpoint.Wire{}); err == nil {
		t.Errorf("model %q by HTTP/1.1", name)
	}
}
