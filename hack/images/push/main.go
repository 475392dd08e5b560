// push puts images of OCI layouts, as hack/images writes them, into a registry, without a container daemon. The credentials are those of
// `docker login` or `podman login`.
//
//	go -C hack/images/push run . -registry registry.example.com/team out/images/kvasir-v1.tar
package main

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// nameKey is the annotation with an image's name.
const nameKey = "io.containerd.image.name"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("push", flag.ContinueOnError)
	f.SetOutput(stderr)
	registry := f.String("registry", "", "registry, and the `prefix` of repositories in it, such as registry.example.com/team")
	insecure := f.Bool("insecure", false, "use HTTP, for a registry that has no TLS")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if *registry == "" || f.NArg() == 0 {
		_, _ = fmt.Fprintln(stderr, "push: want -registry registry.example.com/team FILE.tar...")
		return 2
	}
	for _, path := range f.Args() {
		if err := push(ctx, path, strings.TrimRight(*registry, "/"), *insecure, stdout); err != nil {
			_, _ = fmt.Fprintf(stderr, "push: %s: %v\n", path, err)
			return 1
		}
	}
	return 0
}

// push puts all images of a tar into a registry.
func push(ctx context.Context, path, registry string, insecure bool, stdout io.Writer) error {
	dir, err := os.MkdirTemp("", "push-")
	if err != nil {
		return fmt.Errorf("making a directory for the layout: %w", err)
	}
	defer os.RemoveAll(dir) // only a copy
	if err := unpack(path, dir); err != nil {
		return err
	}
	images, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("reading the layout: %w", err)
	}
	all, err := images.IndexManifest()
	if err != nil {
		return fmt.Errorf("reading the layout: %w", err)
	}
	if len(all.Manifests) == 0 {
		return errors.New("the layout has no image")
	}
	for i := range all.Manifests {
		if err := pushOne(ctx, images, &all.Manifests[i], registry, insecure, stdout); err != nil {
			return err
		}
	}
	return nil
}

// pushOne puts one image, or the index of an image's platforms, into a registry.
func pushOne(ctx context.Context, images v1.ImageIndex, d *v1.Descriptor, registry string, insecure bool, stdout io.Writer) error {
	target, err := targetOf(d.Annotations[nameKey], registry, insecure)
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if d.MediaType.IsIndex() {
		var index v1.ImageIndex
		if index, err = images.ImageIndex(d.Digest); err == nil {
			err = remote.WriteIndex(target, index, options...)
		}
	} else {
		var image v1.Image
		if image, err = images.Image(d.Digest); err == nil {
			err = remote.Write(target, image, options...)
		}
	}
	if err != nil {
		return fmt.Errorf("pushing %s: %w", target, err)
	}
	_, _ = fmt.Fprintf(stdout, "%s@%s\n", target, d.Digest)
	return nil
}

// targetOf is an image's name in another registry.
func targetOf(image, registry string, insecure bool) (name.Reference, error) {
	if image == "" {
		return nil, errors.New("an image of the layout has no name")
	}
	if host, rest, found := strings.Cut(image, "/"); found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		image = rest
	}
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	target, err := name.ParseReference(registry+"/"+image, options...)
	if err != nil {
		return nil, fmt.Errorf("naming the image: %w", err)
	}
	return target, nil
}

// unpack writes the files of a tar into a directory. Names that lead out of it are refused.
func unpack(path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpacking: %w", err)
	}
	defer root.Close() // nothing is buffered
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpacking: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := file(root, h.Name, r); err != nil {
			return fmt.Errorf("unpacking %s: %w", h.Name, err)
		}
	}
}

func file(root *os.Root, path string, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := root.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
