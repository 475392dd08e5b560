package openai

import (
	"strconv"
	"unicode/utf8"
)

// AppendError appends an error body in the style of the OpenAI API. typ names the kind of error; code is the HTTP
// status in words of the caller, or empty for the status as a number, which is what vLLM sends. message can hold
// anything: what is not UTF-8 becomes U+FFFD.
func AppendError(dst []byte, status int, typ, code, message string) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendJSONString(dst, message)
	dst = append(dst, `,"type":`...)
	dst = appendJSONString(dst, typ)
	dst = append(dst, `,"param":`...)
	if param := paramOf(code, message); param != "" {
		dst = appendJSONString(dst, param)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"code":`...)
	if code == "" {
		dst = strconv.AppendInt(dst, int64(status), 10)
	} else {
		dst = appendJSONString(dst, code)
	}
	return append(dst, "}}"...)
}

// paramOf is the field of the request that an error is about: messages about a field begin with its path. It is empty where there is none.
func paramOf(code, message string) string {
	switch code {
	case "model_not_found":
		return "model"
	case "invalid_request", "field_not_allowed":
	default:
		return ""
	}
	for i := range len(message) {
		switch c := message[i]; {
		case c == ':' && i > 0 && i < maxParam && i+1 < len(message) && message[i+1] == ' ':
			return message[:i]
		case c >= 'a' && c <= 'z' || c == '_' || i > 0 && (c >= '0' && c <= '9' || c == '.' || c == '[' || c == ']'):
		default:
			return ""
		}
	}
	return ""
}

// maxParam bounds the path of a field in an error, in bytes.
const maxParam = 200

// anthropicErrors are the kinds of errors of the Anthropic API by status; others are api_error.
var anthropicErrors = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
	405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
	504: "timeout_error", 529: "overloaded_error",
}

// AppendMessagesError appends an error body in the style of the Anthropic API, for the route Messages and those below it.
// message can hold anything, as that of AppendError.
func AppendMessagesError(dst []byte, status int, message string) []byte {
	kind, ok := anthropicErrors[status]
	if !ok {
		kind = "api_error"
	}
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","message":`...)
	dst = appendJSONString(dst, message)
	return append(dst, "}}"...)
}

// AppendErrorEvent appends an error as the last event of a stream, in the form of a route's API, with what ends such a stream.
// It has the arguments of AppendError.
func AppendErrorEvent(dst []byte, route Route, status int, typ, code, message string) []byte {
	switch route {
	case Messages:
		dst = append(dst, "event: error\ndata: "...)
		dst = AppendMessagesError(dst, status, message)
		return append(dst, "\n\n"...)
	case Responses:
		if code == "" {
			code = typ
		}
		dst = append(dst, `event: error`+"\n"+`data: {"type":"error","code":`...)
		dst = appendJSONString(dst, code)
		dst = append(dst, `,"message":`...)
		dst = appendJSONString(dst, message)
		return append(dst, `,"param":null,"sequence_number":0}`+"\n\n"...)
	}
	dst = append(dst, "data: "...)
	dst = AppendError(dst, status, typ, code, message)
	return append(dst, "\n\ndata: [DONE]\n\n"...)
}

func appendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
