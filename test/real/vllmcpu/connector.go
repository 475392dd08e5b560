package vllmcpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// Connector is a package by which engines transfer blocks: what an environment of its own would need to use it.
type Connector struct {
	// Dir is where its modules lie.
	Dir string
	// Libraries are directories of shared libraries that it loads.
	Libraries []string
}

// nixl and mooncake are packages of requirements.txt.
const (
	nixl     = "nixl"
	mooncake = "mooncake-transfer-engine-non-cuda"
)

// NIXL installs the library of NixlConnector beside an environment. Its build for the version of CUDA that the environment's torch was
// made for also serves without a GPU.
func NIXL(root, venv string) (Connector, error) {
	version, err := Pinned(nixl)
	if err != nil {
		return Connector{}, err
	}
	cuda, err := cudaOf(venv)
	if err != nil {
		return Connector{}, err
	}
	dir, err := install(root, venv, "nixl-cu"+cuda+"-"+version, nixl+"=="+version, "nixl-cu"+cuda+"=="+version)
	return Connector{Dir: dir}, err
}

// Mooncake installs the library of MooncakeConnector beside an environment. It needs libibverbs, also where there is no such device; that
// of NIXL's package takes its place where the machine has none.
func Mooncake(root, venv string) (Connector, error) {
	version, err := Pinned(mooncake)
	if err != nil {
		return Connector{}, err
	}
	dir, err := install(root, venv, mooncake+"-"+version, mooncake+"=="+version)
	if err != nil {
		return Connector{}, err
	}
	other, err := NIXL(root, venv)
	if err != nil {
		return Connector{}, err
	}
	found, err := filepath.Glob(filepath.Join(other.Dir, "*.libs", "libibverbs-*.so.1.*"))
	if err != nil || len(found) != 1 {
		return Connector{}, fmt.Errorf("finding libibverbs in the package of NIXL: %d files", len(found))
	}
	link := filepath.Join(dir, "libibverbs.so.1")
	if err := os.Symlink(found[0], link); err != nil && !errors.Is(err, os.ErrExist) {
		return Connector{}, fmt.Errorf("naming libibverbs for Mooncake: %w", err)
	}
	return Connector{Dir: dir, Libraries: []string{dir, filepath.Dir(found[0])}}, nil
}

// cudaOf is the major version of CUDA that an environment's torch was built for.
func cudaOf(venv string) (string, error) {
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages", "torch", "version.py"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("finding the version of torch: %d files", len(found))
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return "", fmt.Errorf("reading the version of torch: %w", err)
	}
	major := regexp.MustCompile(`(?m)^cuda\b.*= '(\d+)\.`).FindSubmatch(text)
	if major == nil {
		return "", fmt.Errorf("%s names no version of CUDA", found[0])
	}
	return string(major[1]), nil
}

// install makes a directory of packages unless it is there: complete if it exists.
func install(root, venv, name string, packages ...string) (string, error) {
	home := filepath.Join(root, "connectors")
	dir := filepath.Join(home, name)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("making the directory of connectors: %w", err)
	}
	unlock, err := lock(filepath.Join(home, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	uv, err := findUV(root)
	if err != nil {
		return "", err
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("removing an aborted installation: %w", err)
	}
	args := []string{"pip", "install", "--quiet", "--no-cache", "--python", filepath.Join(venv, "bin", "python"), "--target", partial, "--no-deps"}
	if err := command(uv, append(args, packages...)...); err != nil {
		return "", err
	}
	if err := os.Rename(partial, dir); err != nil {
		return "", fmt.Errorf("putting %s in place: %w", name, err)
	}
	return dir, nil
}
