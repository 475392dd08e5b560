package sysdump

import (
	"encoding/json"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// redacted stands for what is left out.
const redacted = "REDACTED"

// secretive are names of flags, variables and keys whose values are left out.
var secretive = regexp.MustCompile(`(?i)(key|token|secret|passw|credential|auth|header|cookie|salt)`)

// shapes are what secrets look like wherever they are: private keys, JSON web tokens, the tokens of well-known services,
// and what follows the word Bearer or stands before the host of a URL.
var shapes = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`\b(sk|pk|hf|ghp|gho|glpat|xox[abp])[-_][A-Za-z0-9_-]{8,}`),
	regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`://[^/\s:@]+:[^/\s@]+@`),
}

// scrub takes secrets out of a text by their looks. It is the last net: what is known to hold secrets is never gathered.
func scrub(text []byte) []byte {
	for i, shape := range shapes {
		with := []byte(redacted)
		if i == len(shapes)-1 {
			with = []byte("://" + redacted + "@")
		}
		text = shape.ReplaceAll(text, with)
	}
	return text
}

// object is an object of the API as a document, without what could be secret in it: the values of environment variables,
// of flags with secretive names, and scripts; without annotations either, in which clients keep copies of the object.
func object(o runtime.Object) (any, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, err
	}
	clean(document)
	return document, nil
}

// clean takes secrets out of maps and lists of any depth.
func clean(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			switch key {
			case "managedFields", "annotations":
				delete(v, key)
			case "env":
				v[key] = variables(inner)
			case "args", "command", "extraArgs":
				v[key] = arguments(inner)
			case "headers": // of a route's match: a value can be a client's key
				v[key] = variables(inner)
			default:
				if text, ok := inner.(string); ok {
					v[key] = plainURL(text)
				}
				clean(inner)
			}
		}
	case []any:
		for i, inner := range v {
			if text, ok := inner.(string); ok {
				v[i] = plainURL(text)
			}
			clean(inner)
		}
	}
}

// variables keeps the names of environment variables and headers, and where their values come from.
func variables(value any) any {
	list, ok := value.([]any)
	if !ok {
		return redacted
	}
	for _, one := range list {
		if m, ok := one.(map[string]any); ok && m["value"] != nil {
			m["value"] = redacted
		}
	}
	return list
}

// arguments keeps flags, and the values of those whose names are not secretive. Scripts, and what follows a flag with a
// secretive name up to the next flag, are left out.
func arguments(value any) any {
	list, ok := value.([]any)
	if !ok {
		return redacted
	}
	hide := false
	for i, one := range list {
		text, _ := one.(string)
		name, _, given := strings.Cut(text, "=")
		switch {
		case !strings.HasPrefix(text, "-"):
			if hide || strings.ContainsAny(text, " \t\n=") && !json.Valid([]byte(text)) {
				list[i] = redacted
			}
			continue
		case given && secretive.MatchString(name):
			list[i] = name + "=" + redacted
			hide = false
			continue
		}
		hide = secretive.MatchString(name)
		list[i] = plainURL(text)
	}
	return list
}

// Parts of URLs that can hold secrets.
var (
	urlUser  = regexp.MustCompile(`://[^/\s@]*@`)
	urlQuery = regexp.MustCompile(`(://[^\s?]*)\?\S+`)
)

// plainURL leaves the users and the queries of URLs out of a text.
func plainURL(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return urlQuery.ReplaceAllString(urlUser.ReplaceAllString(text, "://"+redacted+"@"), "${1}?"+redacted)
}

// meta is what is shown of an object's metadata.
type meta struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   metav1.Time       `json:"created"`
}
