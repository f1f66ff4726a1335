package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread is how many bytes written to a pipe or socket its reader has not taken
// yet; 0 when that cannot be told.
func unread(f *os.File) int {
	// A socket tells what its peer has not read, a pipe what is in it; each
	// refuses the other's question.
	for _, ask := range []uint{unix.SIOCOUTQ, unix.TIOCINQ} {
		if n, err := unix.IoctlGetInt(int(f.Fd()), ask); err == nil {
			return n
		}
	}
	return 0
}
