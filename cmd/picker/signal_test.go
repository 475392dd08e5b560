//go:build unix

package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// asProgram makes the test binary the program.
const asProgram = "PICKER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The first signal drains and ends with status 0; the second one ends at once.
func TestSignals(t *testing.T) {
	for name, twice := range map[string]bool{"once": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			dir, e := t.TempDir(), engine(t, "m")
			put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
			const local = "127.0.0.1:0"
			logs := &buffer{}
			cmd := exec.Command(os.Args[0], "--standalone", dir, "--proxy-address", local, "--health-address", local, "--metrics-address", local)
			cmd.Env, cmd.Stderr = append(os.Environ(), asProgram+"=1"), logs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() //nolint:errcheck // it has ended in the good case
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()

			i := &instance{t: t, client: http.DefaultClient}
			var proxy string
			i.eventually("the log tells the addresses and that objects were applied", func() bool {
				text := logs.String()
				found := regexp.MustCompile(`msg=Serving proxy=(\S+)`).FindStringSubmatch(text)
				if found == nil || !regexp.MustCompile(`msg="Objects applied" pools=1`).MatchString(text) {
					return false
				}
				proxy = found[1]
				return true
			})
			e.Pause()
			defer e.Resume()
			answer := make(chan int, 1)
			go func() {
				status, _ := i.do(http.MethodPost, "http://"+proxy+"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`)
				answer <- status
			}()
			i.eventually("a request is in the pod", func() bool { return requests(e) == 1 })
			signal := func() {
				t.Helper()
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			signal()
			i.eventually("it drains", func() bool { return regexp.MustCompile("msg=Draining").MatchString(logs.String()) })
			if twice {
				signal()
				var exit *exec.ExitError
				if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 1 {
					t.Errorf("it ended with %v, want status 1", err)
				}
				if status := <-answer; status == http.StatusOK {
					t.Error("the request was answered by a pod that stands still")
				}
				return
			}
			e.Resume()
			if status := <-answer; status != http.StatusOK {
				t.Errorf("status %d, want 200", status)
			}
			if err := <-ended; err != nil {
				t.Errorf("it ended with %v\n%s", err, logs)
			}
		})
	}
}
