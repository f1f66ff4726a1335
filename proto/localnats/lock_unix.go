//go:build unix

package localnats

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// errInUse says that another process serves the directory.
var errInUse = errors.New("in use by another server")

// lockDir creates dir and takes an exclusive lock in it, because the server
// itself would let a second one open the same files. The lock ends with the
// returned file, so also when the process dies.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errInUse
		}
		return nil, err
	}
	return f, nil
}
