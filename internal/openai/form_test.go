package openai

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"
)

// form makes a form of a file and pairs of names and values.
func form(t *testing.T, pairs ...string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file, err := w.CreateFormFile("file", "priority.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write([]byte("RIFF\n\x00\xff kv_transfer_params priority\r\n"))
	for i := 0; i < len(pairs); i += 2 {
		if err := w.WriteField(pairs[i], pairs[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.Bytes()
}

func TestFieldsOfFormsThatSteer(t *testing.T) {
	for name, tc := range map[string]struct {
		pairs []string
		want  Steering
	}{
		"an ordinary form":                {[]string{"model", "m", "prompt", "priority kv_transfer_params"}, 0},
		"a priority":                      {[]string{"model", "m", "priority", "-5"}, SteersPriority},
		"a transfer":                      {[]string{"kv_transfer_params", "{}"}, SteersTransfer},
		"a transfer, by its member":       {[]string{"kv_transfer_params[remote_host]", "10.0.0.1"}, SteersTransfer},
		"a transfer in the arguments":     {[]string{"vllm_xargs", `{"kv_transfer_params":"x"}`}, SteersTransfer},
		"a report":                        {[]string{"vllm_xargs[kv_cache_report_mode]", "full"}, SteersEvents},
		"such one by its name":            {[]string{"vllm_xargs[kv_transfer_params]", `x`}, SteersTransfer},
		"such one with a dot":             {[]string{"vllm_xargs.kv_transfer_params.remote_host", `x`}, SteersTransfer},
		"other arguments":                 {[]string{"vllm_xargs", `{"speed":"x"}`, "prompt", `{"kv_transfer_params":1}`}, 0},
		"both":                            {[]string{"priority", "1", "data_parallel_rank", "1"}, SteersPriority | SteersTransfer},
		"the last of several of one name": {[]string{"a", "1", "a", "2", "priority", "3"}, SteersPriority},
	} {
		t.Run(name, func(t *testing.T) {
			contentType, body := form(t, tc.pairs...)
			if found, ok, err := FormSteering(contentType, body); found != tc.want || !ok || err != nil {
				t.Errorf("%b, %v, %v, want %b", found, ok, err, tc.want)
			}
		})
	}
	const kind = `Multipart/Form-Data; boundary=x`
	for name, body := range map[string]string{
		"lower case":            "--x\r\ncontent-disposition: form-data; name=\"priority\"\r\n\r\n1\r\n--x--\r\n",
		"no quotes":             "--x\r\nContent-Disposition: form-data; name=priority\r\n\r\n1\r\n--x--\r\n",
		"an extended name":      "--x\r\nContent-Disposition: form-data; name*=utf-8''pri%6Frity\r\n\r\n1\r\n--x--\r\n",
		"a name in two parts":   "--x\r\nContent-Disposition: form-data; name*0=prio; name*1=rity\r\n\r\n1\r\n--x--\r\n",
		"a continued header":    "--x\r\nContent-Disposition: form-data;\r\n name=priority\r\n\r\n1\r\n--x--\r\n",
		"another boundary":      "--y\nContent-Disposition: form-data; name=priority\n\n1\n--y--\n",
		"behind another header": "--x\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; name=priority\r\n\r\n1\r\n--x--\r\n",
		"no end":                "--x\r\nContent-Disposition: form-data; name=priority",
	} {
		if found, _, err := FormSteering(kind, []byte(body)); found != SteersPriority || err != nil {
			t.Errorf("%s: %b, %v", name, found, err)
		}
	}
	for name, body := range map[string]string{
		"two names": "--x\r\nContent-Disposition: form-data; name=a; name=priority\r\n\r\n1\r\n--x--\r\n",
		"no syntax": "--x\r\nContent-Disposition: form-data; name=\"priority\r\n\r\n1\r\n--x--\r\n",
	} {
		if _, ok, err := FormSteering(kind, []byte(body)); err == nil || !ok {
			t.Errorf("%s is read", name)
		}
	}
	for body, want := range map[string]Steering{
		"model=m&prompt=priority": 0, "a=1&pri%6Frity=2": SteersPriority, "vllm_xargs=%7B%22kv_transfer_params%22%3A1%7D": SteersTransfer,
	} {
		if found, ok, err := FormSteering("application/x-www-form-urlencoded", []byte(body)); found != want || !ok || err != nil {
			t.Errorf("%s: %b, %v, %v", body, found, ok, err)
		}
	}
	if _, ok, _ := FormSteering("application/json", []byte(`{}`)); ok {
		t.Error("JSON is a form")
	}
}

// FuzzFormSteering: no form makes it fail otherwise than by an error, and what was written by a form's writer is found.
func FuzzFormSteering(f *testing.F) {
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=\"priority\"\r\n\r\n1\r\n--x--\r\n"))
	f.Add("application/x-www-form-urlencoded", []byte("a=1&vllm_xargs=%7B"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		before := bytes.Clone(body)
		_, _, _ = FormSteering(contentType, body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		boundary := "b" + strings.Repeat("x", 8)
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.SetBoundary(boundary)
		part, _ := w.CreateFormFile("file", "f")
		_, _ = part.Write(body)
		_ = w.WriteField("priority", "1")
		_ = w.Close()
		if found, _, err := FormSteering(w.FormDataContentType(), b.Bytes()); err == nil && found&SteersPriority == 0 {
			t.Fatal("a field behind a file is not found")
		}
	})
}
