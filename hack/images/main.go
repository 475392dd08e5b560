// images makes the container images of Kvasir's programs without a container daemon: a static binary of each, an OCI
// image layout in a tar around it (package oci), and a list of what went into it in SPDX. The same sources and the same Go
// make the same bytes.
//
//	go run ./hack/images -arch amd64,arm64 -tag v1.2.3 picker
//
// writes out/images/picker.tar with both platforms and out/images/picker_ARCH.spdx.json. With several programs, kvasir-TAG.tar has the
// images of all of them, for machines that cannot reach a registry. hack/images/push puts any of the tars into a registry.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/hack/images/oci"
)

// components are the programs that run in a cluster, each a directory of cmd.
var components = []string{"manager", "picker", "reporter", "vllmsim"}

// entrypoint of every image, as the Dockerfile has it.
const entrypoint = "/kvasir"

// buildFlags leave out what reports where and how a binary was built, as -trimpath does, and set what --version says.
func (o *options) buildFlags() []string {
	const set = " -X github.com/kvasir-dev/kvasir/internal/version."
	return []string{"-buildvcs=false", "-ldflags=-s -w" + set + "release=" + o.tag + set + "revision=" + o.revision}
}

type options struct {
	arches     []string
	repository string
	tag        string
	revision   string
	out        string
	trim       bool
	compressed bool
	bundle     bool
	created    time.Time
	components []string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("images: ")
	o, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"), os.Stderr)
	if err != nil {
		os.Exit(2)
	}
	if err := o.run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func parse(args []string, epoch string, stderr io.Writer) (*options, error) {
	o := &options{created: time.Unix(0, 0).UTC()}
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	f.SetOutput(stderr)
	arches := f.String("arch", runtime.GOARCH, "architectures, as Go names them, with commas between")
	f.StringVar(&o.repository, "repository", "kvasir", "the prefix before /COMPONENT in the name")
	f.StringVar(&o.tag, "tag", "dev", "tag, and version on the label")
	f.StringVar(&o.revision, "revision", "", "revision on the label")
	f.StringVar(&o.out, "out", filepath.Join("out", "images"), "`directory` for the tars and lists")
	f.BoolVar(&o.trim, "trimpath", true, "leave this machine's paths out of the binaries, which reproducible ones need; without it packages compiled by go test are used again")
	f.BoolVar(&o.compressed, "compress", true, "compress layers")
	f.BoolVar(&o.bundle, "bundle", true, "write all images into one more tar, if they are several")
	f.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "usage: images [flags] [%s]...\n", strings.Join(components, "|"))
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.arches, o.components = strings.Split(*arches, ","), f.Args()
	if len(o.components) == 0 {
		o.components = components
	}
	err := o.check(epoch)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "images:", err)
	}
	return o, err
}

func (o *options) check(epoch string) error {
	for _, c := range o.components {
		if !slices.Contains(components, c) {
			return fmt.Errorf("%q is none of %s", c, strings.Join(components, ", "))
		}
	}
	if slices.Contains(o.arches, "") || len(slices.Compact(slices.Sorted(slices.Values(o.arches)))) != len(o.arches) {
		return fmt.Errorf("-arch %q: want different architectures", strings.Join(o.arches, ","))
	}
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds", epoch)
		}
		o.created = time.Unix(seconds, 0).UTC()
	}
	return nil
}

func (o *options) run(ctx context.Context, stdout io.Writer) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil { // all users can read what was built
		return fmt.Errorf("making the directory of the images: %w", err)
	}
	for _, component := range o.components {
		digest, err := o.component(ctx, component)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(stdout, "%s %s@%s\n", o.tar(component), o.name(component), digest)
	}
	if !o.bundle || len(o.components) < 2 {
		return nil
	}
	return o.merge(stdout)
}

// merge writes the tar of all images.
func (o *options) merge(stdout io.Writer) error {
	var paths []string
	for _, component := range o.components {
		paths = append(paths, o.tar(component))
	}
	path := o.tar("kvasir-" + o.tag)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making the file of all images: %w", err)
	}
	err = oci.Merge(f, o.created, paths...)
	if closed := f.Close(); err == nil && closed != nil {
		err = fmt.Errorf("writing the file of all images: %w", closed)
	}
	if err == nil {
		_, _ = fmt.Fprintf(stdout, "%s has all of them\n", path)
	}
	return err
}

func (o *options) tar(name string) string { return filepath.Join(o.out, name+".tar") }

func (o *options) name(component string) string { return o.repository + "/" + component + ":" + o.tag }

// component writes one image and its lists.
func (o *options) component(ctx context.Context, component string) (digest string, err error) {
	var images []oci.Image
	for _, arch := range o.arches {
		binary, err := o.build(ctx, component, arch)
		if err != nil {
			return "", err
		}
		image, err := o.image(component, arch, binary)
		if err != nil {
			return "", err
		}
		images = append(images, image)
		list, err := spdx(o.name(component), o.tag, arch, binary, o.created)
		if err != nil {
			return "", fmt.Errorf("listing what %s for %s is made of: %w", component, arch, err)
		}
		if err := os.WriteFile(filepath.Join(o.out, component+"_"+arch+".spdx.json"), list, 0o644); err != nil {
			return "", fmt.Errorf("writing the list of %s: %w", component, err)
		}
	}
	f, err := os.Create(o.tar(component))
	if err != nil {
		return "", fmt.Errorf("making the image's file: %w", err)
	}
	digest, err = oci.Write(f, o.name(component), o.compressed, images...)
	if closed := f.Close(); err == nil && closed != nil {
		err = fmt.Errorf("writing the image of %s: %w", component, closed)
	}
	return digest, err
}

// build compiles a static binary and returns its file.
func (o *options) build(ctx context.Context, component, arch string) (string, error) {
	binary := filepath.Join(o.out, component+"_"+arch)
	args := append([]string{"build", "-o", binary}, o.buildFlags()...)
	if o.trim {
		args = append(args, "-trimpath")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/"+component)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s for %s: %w\n%s", component, arch, err, text)
	}
	return binary, nil
}

func (o *options) image(component, arch, binary string) (oci.Image, error) {
	image := oci.Image{Architecture: arch, Entrypoint: []string{entrypoint}, Created: o.created, Labels: map[string]string{
		"org.opencontainers.image.title":    "kvasir-" + component,
		"org.opencontainers.image.source":   "https://github.com/kvasir-dev/kvasir",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version":  o.tag,
		"org.opencontainers.image.revision": o.revision,
	}}
	files := map[string]string{entrypoint: binary, "/LICENSE": "LICENSE"}
	for at, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			return image, fmt.Errorf("reading what goes into the image: %w", err)
		}
		image.Files = append(image.Files, oci.File{Path: at, Content: content, Executable: at == entrypoint})
	}
	return image, nil
}
