//go:build !unix

package vfs

import "os"

// Without a lock two writers could share a directory, so there is none here.
func lockUnix(*os.File) error { return ErrNotSupported }
