//go:build unix

// Package fleet starts simulated pods and a picker in front of them as processes of this machine, all on 127.0.0.1, and
// ends them.
package fleet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
)

const (
	// startTimeout bounds the start of the entire fleet.
	startTimeout = 30 * time.Second
	// mostOthers bounds the processes that can run beside the pods, those included that have ended.
	mostOthers = 100
)

// Options describe a fleet.
type Options struct {
	// Bin holds the programs picker and vllmsim.
	Bin string
	// Dir is an empty directory for objects and logs; the caller removes it.
	Dir string
	// Pods is the number of simulated pods.
	Pods int
	// Strategy is the picker's. If it is empty, the picker has no policy, only defaults.
	Strategy string
	// Policy is further fields of the policy's spec, in lines of YAML with two spaces before each; only with a Strategy.
	Policy string
	// Prefillers is how many of the pods, the first ones, only prefill. The others decode, and requests are handed over by cost. With 0, all
	// pods serve whole requests.
	Prefillers int
	// Profile names the pods' time model, Blocks is the size of each cache in blocks of 16 tokens.
	Profile string
	Blocks  int
	// SpeedUp divides the pods' times; StreamInterval is the number of tokens in a streamed event.
	SpeedUp        float64
	StreamInterval int
	// Tokenizer is a directory with a tokenizer.json.gz and a tokenizer_config.json: pods and picker then have a model's
	// files, and the picker makes tokens itself. Empty: the pods have a tokenizer of their own, which the picker asks.
	Tokenizer string
	// ProxyPort and MetricsPort are the picker's if they are free; other ones are taken otherwise, and for 0.
	ProxyPort, MetricsPort int
}

// BlockTokens is the size of the pods' blocks, in tokens.
const BlockTokens = 16

// Fleet is a running fleet.
type Fleet struct {
	// Pods are the pods' names, PodURLs their addresses.
	Pods, PodURLs []string
	// Ports are those of the pods.
	Ports []Ports
	// ProxyURL takes requests, MetricsURL serves the picker's metrics.
	ProxyURL, MetricsURL string
	// Objects is the picker's directory.
	Objects string

	options Options
	pods    []*Process
	picker  *Process
	died    chan *Process // has room for all
}

// Start starts a fleet and returns when the picker is ready to pick among all pods.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	f, err := StartPods(ctx, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := f.startPicker(ctx); err != nil {
		_, _, stopErr := f.Stop()
		return nil, errors.Join(err, stopErr)
	}
	return f, nil
}

// StartPods starts the pods of a fleet, without a picker, and returns when all of them answer.
func StartPods(ctx context.Context, o Options) (*Fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f := &Fleet{options: o, died: make(chan *Process, o.Pods+mostOthers)}
	if err := f.startPods(ctx); err != nil {
		_, _, stopErr := f.Stop()
		return nil, errors.Join(err, stopErr)
	}
	return f, nil
}

func (f *Fleet) startPods(ctx context.Context) error {
	o := &f.options
	free, err := freeport.Consecutive(loopback, 3*o.Pods)
	if err != nil {
		return err
	}
	if o.Tokenizer != "" {
		if err := WriteModel(o.Tokenizer, filepath.Join(o.models(), modelName)); err != nil {
			return err
		}
	}
	for i := range o.Pods {
		ports := Ports{HTTP: free + 3*i, Events: free + 3*i + 1, Replay: free + 3*i + 2}
		name := "pod-" + strconv.Itoa(i)
		p, err := f.Run(name, filepath.Join(o.Bin, "vllmsim"), nil, podArgs(o, i, ports)...)
		if err != nil {
			return err
		}
		f.pods = append(f.pods, p)
		f.Ports = append(f.Ports, ports)
		f.Pods = append(f.Pods, name)
		f.PodURLs = append(f.PodURLs, "http://"+Local(ports.HTTP))
	}
	for i, p := range f.pods {
		if err := p.Await(ctx, p.name, Healthy(f.PodURLs[i]+"/health")); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) startPicker(ctx context.Context) error {
	first, err := freeport.Consecutive(loopback, 4)
	if err != nil {
		return err
	}
	free := []int{first, first + 1, first + 2, first + 3}
	for i, wanted := range []int{f.options.ProxyPort, f.options.MetricsPort} {
		if isFree(ctx, wanted) {
			free[i] = wanted
		}
	}
	args, err := f.PickerArgs()
	if err != nil {
		return err
	}
	f.ProxyURL, f.MetricsURL = "http://"+Local(free[0]), "http://"+Local(free[1])
	args = append(args, "--proxy-address", Local(free[0]), "--metrics-address", Local(free[1]),
		"--health-address", Local(free[2]), "--ext-proc-address", Local(free[3]))
	f.picker, err = f.Run("picker", filepath.Join(f.options.Bin, "picker"), nil, args...)
	if err != nil {
		return err
	}
	return f.picker.Await(ctx, "the picker", Healthy("http://"+Local(free[2])+"/readyz"))
}

// PickerArgs writes the objects of a picker in front of the pods, and returns the flags that make a picker read them.
func (f *Fleet) PickerArgs() ([]string, error) {
	f.Objects = filepath.Join(f.options.Dir, "objects")
	if err := writeObjects(f.Objects, &f.options, f.Pods, f.Ports); err != nil {
		return nil, err
	}
	args := []string{"--standalone", f.Objects}
	if f.options.Tokenizer != "" {
		args = append(args, "--model-root", f.options.models())
	}
	return args, nil
}

// Run starts another process beside the pods, with its output in the fleet's directory. env is added to the environment.
// The caller ends it.
func (f *Fleet) Run(name, path string, env []string, args ...string) (*Process, error) {
	return start(f.died, name, f.options.Dir, path, env, args...)
}

// KillPod ends a pod at once, as a crash does.
func (f *Fleet) KillPod(i int) error { return f.pods[i].Kill() }

// models is the directory below which the picker finds the model's files.
func (o *Options) models() string { return filepath.Join(o.Dir, "models") }

// podArgs are the flags of pod i. It listens on 127.0.0.1 only.
func podArgs(o *Options, i int, p Ports) []string {
	args := []string{
		"--host", "127.0.0.1", "--port", strconv.Itoa(p.HTTP),
		"--served-model-name", Model,
		"--profile", o.Profile, "--num-gpu-blocks", strconv.Itoa(o.Blocks), "--block-size", strconv.Itoa(BlockTokens),
		"--speed-up", strconv.FormatFloat(o.SpeedUp, 'g', -1, 64), "--stream-interval", strconv.Itoa(o.StreamInterval),
		"--kv-events-port", strconv.Itoa(p.Events), "--kv-replay-port", strconv.Itoa(p.Replay), "--seed", strconv.Itoa(1 + i),
	}
	if o.Prefillers > 0 {
		args = append(args, "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`)
	}
	if o.Tokenizer != "" {
		args = append(args, "--model-dir", filepath.Join(o.models(), modelName))
	}
	return args
}

// Ended waits until a process of the fleet ends by itself, and returns which pod it was. For the picker it fails.
func (f *Fleet) Ended(ctx context.Context) (pod int, err error) {
	select {
	case p := <-f.died:
		if pod = slices.Index(f.pods, p); pod < 0 {
			return 0, p.ended()
		}
		return pod, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Restart starts a pod that has ended again, with its former flags.
func (f *Fleet) Restart(pod int) error {
	p, err := f.Run(f.Pods[pod], filepath.Join(f.options.Bin, "vllmsim"), nil, podArgs(&f.options, pod, f.Ports[pod])...)
	if err != nil {
		return err
	}
	f.pods[pod] = p
	return nil
}

// PID of a pod's process.
func (f *Fleet) PID(pod int) int { return f.pods[pod].PID() }

// Watch returns an error as soon as a process of the fleet ends by itself, or nil when ctx ends.
func (f *Fleet) Watch(ctx context.Context) error {
	select {
	case p := <-f.died:
		return p.ended()
	case <-ctx.Done():
		return nil
	}
}

// Stop ends all processes and returns when none is left, with the processor time of pods and picker.
func (f *Fleet) Stop() (pods, picker time.Duration, err error) {
	var pickerErr error
	if f.picker != nil {
		picker, pickerErr = stop([]*Process{f.picker}, stopTimeout)
	}
	pods, err = stop(f.pods, stopTimeout)
	f.picker, f.pods = nil, nil
	return pods, picker, errors.Join(err, pickerErr)
}

// Healthy asks a URL for a status of 200.
func Healthy(url string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
}

func isFree(ctx context.Context, port int) bool {
	if port == 0 {
		return false
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", Local(port))
	return err == nil && l.Close() == nil
}

const loopback = "127.0.0.1"

// Local is the address of a port on 127.0.0.1.
func Local(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
