package oci

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	indexFile = "index.json"
	savedFile = "manifest.json"
	// maxIndex bounds an index or a list that is read, in bytes.
	maxIndex = 1 << 20
)

// Merge writes one layout with the images of several tars that Write has made, for machines that cannot reach a registry. Blobs that
// several have are written once. The same tars make the same bytes.
func Merge(w io.Writer, at time.Time, paths ...string) error {
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	var list []saved
	for _, path := range paths {
		one, more, err := indexOf(path)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		all.Manifests, list = append(all.Manifests, one.Manifests...), append(list, more...)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("writing the index of all images: %w", err)
	}
	listed, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("writing the list of all images: %w", err)
	}
	t := tar.NewWriter(w)
	header := func(name string, size int64) error {
		return t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: at, Format: tar.FormatUSTAR})
	}
	for _, f := range []File{
		{Path: indexFile, Content: text}, {Path: savedFile, Content: listed}, {Path: "oci-layout", Content: []byte(layoutVersion)},
	} {
		if err := header(f.Path, int64(len(f.Content))); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
		if _, err := t.Write(f.Content); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	for _, name := range []string{"blobs/", blobsDir} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: at, Format: tar.FormatUSTAR}); err != nil {
			return fmt.Errorf("writing the directory %s: %w", name, err)
		}
	}
	written := map[string]bool{}
	for _, path := range paths {
		err := each(path, func(name string, size int64, content io.Reader) error {
			if !strings.HasPrefix(name, blobsDir) || written[name] {
				return nil
			}
			written[name] = true
			if err := header(name, size); err != nil {
				return err
			}
			_, err := io.Copy(t, content)
			return err
		})
		if err != nil {
			return fmt.Errorf("copying %s: %w", path, err)
		}
	}
	return t.Close()
}

// blobsDir is where layouts have them.
const blobsDir = "blobs/sha256/"

// indexOf reads the index and the list of a layout.
func indexOf(path string) (found *index, list []saved, err error) {
	err = each(path, func(name string, _ int64, content io.Reader) error {
		if name != indexFile && name != savedFile {
			return nil
		}
		text, err := io.ReadAll(io.LimitReader(content, maxIndex))
		if err != nil {
			return err
		}
		if name == savedFile {
			return json.Unmarshal(text, &list)
		}
		found = &index{}
		return json.Unmarshal(text, found)
	})
	if err == nil && found == nil {
		err = errors.New("it has no " + indexFile)
	}
	return found, list, err
}

// each calls f for each file of a tar.
func each(path string, f func(name string, size int64, content io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // only read
	for r := tar.NewReader(file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := f(h.Name, h.Size, r); err != nil {
			return err
		}
	}
}
