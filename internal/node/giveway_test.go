package node

import (
	"syscall"
	"testing"
)

// Only the thread that archives gives way, and it is not used for anything else afterwards.
func TestArchivingGivesWay(t *testing.T) {
	nice := func() int {
		raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
		if err != nil {
			t.Fatal(err)
		}
		return 20 - raw
	}
	before, background := nice(), make(chan int)
	go func() {
		giveWay()
		background <- nice()
	}()
	if got := <-background; got != min(before+backgroundNice, 19) {
		t.Errorf("nice %d in the background, %d before", got, before)
	}
	for range 100 {
		after := make(chan int)
		go func() { after <- nice() }()
		if got := <-after; got != before {
			t.Fatalf("another goroutine runs with nice %d, %d before", got, before)
		}
	}
}
