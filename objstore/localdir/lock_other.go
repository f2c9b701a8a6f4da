//go:build !unix || solaris || illumos || aix

package localdir

import (
	"errors"
	"os"
)

var errNoFlock = errors.New("this operating system has no flock; use another object store")

func tryLock(*os.File) (bool, error) { return false, errNoFlock }
func unlockFile(*os.File) error      { return errNoFlock }
func unlinked(*os.File) bool         { return false }
