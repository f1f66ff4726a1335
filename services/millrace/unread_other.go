//go:build !linux

package main

import "os"

// unread is how many bytes its reader has not taken yet; it cannot be told
// here.
func unread(*os.File) int { return 0 }
