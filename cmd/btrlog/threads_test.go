package main

import (
	"os"
	"runtime"
	"testing"
)

// There is room for more threads than processors, unless the environment says otherwise.
func TestRoomForThreads(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	t.Setenv("GOMAXPROCS", "1") // and it is put back
	roomForThreads(3)
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d although GOMAXPROCS is set, want %d as before", got, before)
	}
	os.Unsetenv("GOMAXPROCS")
	roomForThreads(3)
	if got := runtime.GOMAXPROCS(0); got != before+3 {
		t.Errorf("%d, want %d and 3", got, before)
	}
}
