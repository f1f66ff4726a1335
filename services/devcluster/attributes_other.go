//go:build !linux

package devcluster

import "syscall"

// attributes of a process: here it stays behind when this one is killed.
func attributes() *syscall.SysProcAttr { return nil }
