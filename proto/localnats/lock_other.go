//go:build !unix

package localnats

import (
	"os"
	"path/filepath"
)

// lockDir creates dir and opens its lock file. Systems without flock get no
// protection from a second server here.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
}
