//go:build !amd64 && !arm64

package lst

import "unsafe"

func prefetch(unsafe.Pointer) {}

func pause() {}
