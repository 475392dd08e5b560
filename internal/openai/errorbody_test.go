package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestErrorsNameTheirField(t *testing.T) {
	for _, tc := range []struct{ code, message, want string }{
		{"invalid_request", "messages: is missing", "messages"},
		{"invalid_request", "messages[3].content: want a string", "messages[3].content"},
		{"field_not_allowed", "kv_transfer_params: the policy does not allow it", "kv_transfer_params"},
		{"model_not_found", `The model "x" does not exist.`, "model"},
		{"invalid_request", "invalid JSON at byte 26: unexpected bytes", ""},
		{"invalid_request", "Body: x", ""},
		{"invalid_request", ": x", ""},
		{"invalid_request", "messages:", ""},
		{"invalid_request", "", ""},
		{"invalid_request", strings.Repeat("a", maxParam) + ": x", ""},
		{"overloaded", "queue: is full", ""},
		{"", "messages: is missing", ""},
	} {
		var got struct{ Error struct{ Param *string } }
		if err := json.Unmarshal(AppendError(nil, 400, "t", tc.code, tc.message), &got); err != nil {
			t.Fatal(err)
		}
		if (got.Error.Param == nil) != (tc.want == "") || got.Error.Param != nil && *got.Error.Param != tc.want {
			t.Errorf("%s, %q: param %v, want %q", tc.code, tc.message, got.Error.Param, tc.want)
		}
	}
}
