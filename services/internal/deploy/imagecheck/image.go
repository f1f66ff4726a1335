package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxCompressed is the size that was promised, in bytes.
const maxCompressed = 30_000_000

// image is an image of an OCI layout.
type image struct {
	config     imageConfig
	manifest   manifest
	compressed int64 // of all layers
}

type manifest struct {
	Config      descriptor        `json:"config"`
	Layers      []descriptor      `json:"layers"`
	Annotations map[string]string `json:"annotations"`
}

type descriptor struct {
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

type imageConfig struct {
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Config       process `json:"config"`
}

// process is how the image wants to be run. The names are those of OCI.
type process struct {
	User       string            `json:"User"`
	Entrypoint []string          `json:"Entrypoint"`
	Cmd        []string          `json:"Cmd"`
	Env        []string          `json:"Env"`
	Labels     map[string]string `json:"Labels"`
	StopSignal string            `json:"StopSignal"`
}

// readImage reads the image of a tag.
func readImage(layout, tag string) (*image, error) {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
		return nil, err
	}
	blob := func(d descriptor) string {
		algorithm, hash, _ := strings.Cut(d.Digest, ":")
		return filepath.Join(layout, "blobs", algorithm, hash)
	}
	for _, d := range index.Manifests {
		if d.Annotations["org.opencontainers.image.ref.name"] != tag {
			continue
		}
		img := &image{}
		if err := readJSON(blob(d), &img.manifest); err != nil {
			return nil, err
		}
		if err := readJSON(blob(img.manifest.Config), &img.config); err != nil {
			return nil, err
		}
		for _, layer := range img.manifest.Layers {
			img.compressed += layer.Size
		}
		return img, nil
	}
	return nil, fmt.Errorf("%s has no image %q", layout, tag)
}

// check returns what is wrong with how the image describes itself.
func (img *image) check(version string) (problems []error) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if img.compressed > maxCompressed {
		wrong("the layers have %d bytes, and %d were promised", img.compressed, maxCompressed)
	}
	c := img.config.Config
	if c.User != "65532:65532" {
		wrong("the user is %q and not 65532:65532", c.User)
	}
	if !slices.Equal(c.Entrypoint, []string{"/millrace"}) || len(c.Cmd) > 0 {
		wrong("the entrypoint is %q and the command %q; want /millrace and nothing", c.Entrypoint, c.Cmd)
	}
	if c.StopSignal != "SIGTERM" {
		wrong("the stop signal is %q", c.StopSignal)
	}
	if img.config.OS != "linux" || img.config.Architecture == "" {
		wrong("the platform is %s/%s", img.config.OS, img.config.Architecture)
	}
	for _, name := range []string{"title", "description", "version", "revision", "source", "licenses"} {
		key := "org.opencontainers.image." + name
		if c.Labels[key] == "" || c.Labels[key] != img.manifest.Annotations[key] {
			wrong("label %s is %q and the annotation %q; both should say the same", key, c.Labels[key], img.manifest.Annotations[key])
		}
	}
	if got := c.Labels["org.opencontainers.image.version"]; got != version {
		wrong("the version in the labels is %q, the tag %q", got, version)
	}
	return problems
}

// checkFiles returns what is wrong with the files of the image.
func checkFiles(root, version, sbomBeside string) (problems []error) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	want := []string{"etc/group", "etc/passwd", "millrace", "usr/share/millrace/LICENSE", "usr/share/millrace/sbom.cdx.json"}
	var got []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		got = append(got, name)
		return err
	})
	if err != nil {
		return []error{err}
	}
	if !slices.Equal(got, want) {
		wrong("the image holds %q; want %q and nothing else", got, want)
	}
	binary, err := elf.Open(filepath.Join(root, "millrace"))
	if err != nil {
		return append(problems, err)
	}
	defer binary.Close() //nolint:errcheck // it was only read
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP || part.Type == elf.PT_DYNAMIC {
			wrong("the binary is not static: it has a segment of type %v", part.Type)
		}
	}
	inside, err := os.ReadFile(filepath.Join(root, "usr/share/millrace/sbom.cdx.json"))
	if err != nil {
		return append(problems, err)
	}
	beside, err := os.ReadFile(sbomBeside)
	if err != nil {
		return append(problems, err)
	}
	if !bytes.Equal(inside, beside) {
		wrong("the bill of materials beside the image is another one than that in it")
	}
	var bill struct {
		Metadata struct {
			Component struct {
				Version string `json:"version"`
			} `json:"component"`
		} `json:"metadata"`
		Components []struct {
			Name string `json:"name"`
		} `json:"components"`
	}
	if err := readJSON(sbomBeside, &bill); err != nil {
		return append(problems, err)
	}
	if bill.Metadata.Component.Version != version {
		wrong("the bill of materials is of version %q", bill.Metadata.Component.Version)
	}
	for _, module := range []string{"std", "github.com/nats-io/nats.go", "google.golang.org/grpc"} {
		if !slices.ContainsFunc(bill.Components, func(c struct {
			Name string `json:"name"`
		},
		) bool {
			return c.Name == module
		}) {
			wrong("the bill of materials does not name %s", module)
		}
	}
	return problems
}
