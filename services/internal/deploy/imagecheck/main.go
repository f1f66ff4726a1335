// Command imagecheck holds the image to what is promised of it and runs it:
//
//	imagecheck FOLDER VERSION
//
// FOLDER is what deploy/image/build has made. The image is run by runc as
// Kubernetes runs it under the restricted Pod Security Standard: as a user
// without a name, without capabilities, with a root that cannot be written. It
// needs umoci, runc, curl, and root for runc. The network is that of the host,
// and the image listens on the loopback interface only.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// limit is how long all of it may take; only a fault takes longer.
const limit = 2 * time.Minute

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "imagecheck:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string, w io.Writer) error {
	if len(args) != 2 {
		return errors.New("want FOLDER VERSION")
	}
	folder, version := args[0], args[1]
	img, err := readImage(filepath.Join(folder, "oci"), version)
	if err != nil {
		return err
	}
	var problems []error
	problems = append(problems, img.check(version)...)
	dir, err := os.MkdirTemp("", "millrace-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it lies where the system cleans up
	b := bundle{dir: filepath.Join(dir, "bundle"), state: filepath.Join(dir, "state")}
	if err := b.unpack(ctx, filepath.Join(folder, "oci")+":"+version); err != nil {
		return err
	}
	problems = append(problems, checkFiles(filepath.Join(b.dir, "rootfs"), version, filepath.Join(folder, "sbom.cdx.json"))...)
	if err := errors.Join(problems...); err != nil {
		return err
	}
	began := time.Now()
	answer, err := b.call(ctx, img.config.Config)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "image %s for %s: %.1f MB compressed; as user %s without capabilities on a read-only root it answered a call %.1f s after its start:\n%.120s…\n",
		version, img.config.Architecture, float64(img.compressed)/1e6, img.config.Config.User, time.Since(began).Seconds(), answer)
	return err
}

// freePort returns a port of the loopback interface that was free just now.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := ln.Addr().String()
	return addr, ln.Close()
}

// readJSON reads a file.
func readJSON(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
