package openai

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"
)

// formError says that a form cannot be read with certainty.
func formError() error { return &FieldError{Field: "form", Msg: "the header of a part cannot be read"} }

// FormSteering is what the fields of a form control, by the same names as Request.Steering: contentType is the header of the
// request. ok is false for a body that is no form.
//
// Parsers of multipart bodies differ in what they take for a part. So every line that begins like the header of one counts,
// wherever it stands, and a form with such a header that cannot be read fails with a *FieldError.
func FormSteering(contentType string, body []byte) (found Steering, ok bool, err error) {
	kind, _, _ := strings.Cut(contentType, ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); {
	case kind == "application/x-www-form-urlencoded":
		for field := range bytes.FieldsFuncSeq(body, func(r rune) bool { return r == '&' || r == ';' }) {
			name, value, _ := bytes.Cut(field, []byte("="))
			text, err := url.QueryUnescape(string(value))
			plain, nameErr := url.QueryUnescape(string(name))
			if err != nil || nameErr != nil {
				return found, true, formError()
			}
			found |= fieldSteering(plain, []byte(text))
		}
		return found, true, nil
	case !strings.HasPrefix(kind, "multipart/"):
		return 0, false, nil
	}
	var name string // of the part whose content is looked for
	for content := -1; ; {
		at := nextPart(body)
		if content >= 0 {
			found |= fieldSteering(name, body[content:max(content, at)])
		}
		if at == len(body) {
			return found, true, nil
		}
		body = body[at:]
		line := headerLine(body)
		_, value, _ := strings.Cut(string(line), ":")
		_, parameters, err := mime.ParseMediaType(strings.TrimSpace(value))
		if err != nil {
			return found, true, formError()
		}
		name, body, content = parameters["name"], body[len(line):], 0
	}
}

// disposition is how the header of a part begins that names the field.
const disposition = "content-disposition"

// FormModel is the model that a multipart form names, as engines read it: the last field of this name. It is empty for other bodies, and
// for forms that cannot be read. Another parser can find another one, so no right depends on it.
func FormModel(contentType string, body []byte) (model string) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" {
		return ""
	}
	parts := multipart.NewReader(bytes.NewReader(body), parameters["boundary"])
	for range maxFormParts {
		part, err := parts.NextRawPart()
		if err != nil {
			return model
		}
		if part.FormName() != "model" || part.FileName() != "" {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(part, maxFormModel+1))
		if err != nil || len(text) > maxFormModel {
			return ""
		}
		model = string(text)
	}
	return ""
}

const (
	// maxFormModel is the longest name of a model in a form, in bytes.
	maxFormModel = 4 << 10
	// maxFormParts bounds the work for a form: engines refuse those with more than 1000 fields and 1000 files.
	maxFormParts = 2001
)

// nextPart is where the header of the next part begins, at the start of a line; the end of body without one.
func nextPart(body []byte) int {
	for at := 0; ; {
		if len(body)-at >= len(disposition) && strings.EqualFold(string(body[at:at+len(disposition)]), disposition) {
			return at
		}
		next := bytes.IndexByte(body[at:], '\n')
		if next < 0 {
			return len(body)
		}
		at += next + 1
	}
}

// headerLine is a header to its end, with the lines that continue it.
func headerLine(body []byte) []byte {
	for end := 0; ; end++ {
		next := bytes.IndexByte(body[end:], '\n')
		if next < 0 {
			return body
		}
		if end += next; end+1 >= len(body) || body[end+1] != ' ' && body[end+1] != '\t' {
			return body[:end]
		}
	}
}

// fieldSteering is what a field of a form controls. Frameworks read a[b] and a.b as the member b of a, and some read JSON.
func fieldSteering(name string, content []byte) (found Steering) {
	outer, inner, nested := strings.Cut(strings.NewReplacer("[", ".", "]", "").Replace(strings.TrimSpace(name)), ".")
	found = steeringOf([]byte(outer))
	if !holdsArguments([]byte(outer)) {
		return found
	}
	if nested {
		for part := range strings.SplitSeq(inner, ".") {
			found |= steeringOf([]byte(part)) &^ SteersPriority
		}
	}
	s := scanner{b: content}
	if i := bytes.IndexByte(content, '{'); i >= 0 {
		s.i = i
		s.arguments(0, &found)
	}
	return found
}
