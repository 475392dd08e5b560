package extproc

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestAdministrativePathsAreAnsweredInPlaceOfTheEngine(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	for _, path := range []string{"/sleep", "/v1/../%73leep/?level=1", "/prefix/v1/load_lora_adapter", "//PAUSE", "/adapters/x",
		"/flush_cache", "/prefix/update_weights_from_disk", "/get_server_info?x"} {
		for _, bodyless := range []bool{true, false} {
			s := h.script()
			s.send(requestHead(bodyless, ":method", "POST", ":path", path))
			answer := s.receive().GetImmediateResponse()
			if code := int(answer.GetStatus().GetCode()); code != 404 {
				t.Errorf("%s, without a body %v: status %d, want 404", path, bodyless, code)
			}
			s.cancel()
		}
	}
	h.outcomes(map[picker.Outcome]int64{})
}
