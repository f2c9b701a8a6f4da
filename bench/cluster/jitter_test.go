package cluster

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

func TestJitterIsOfItsSeed(t *testing.T) {
	j := Jitter{Mean: 200 * time.Microsecond, StallChance: 0.01, StallLeast: time.Millisecond, StallMax: 5 * time.Millisecond, Seed: 1}
	a, b := newJitterFS(vfs.OS, j), newJitterFS(vfs.OS, j)
	j.Seed = 2
	other := newJitterFS(vfs.OS, j)
	var sum time.Duration
	same, stalls, n := 0, 0, 100000
	for range n {
		x := a.draw()
		if x != b.draw() {
			t.Fatal("one seed gave two delays")
		}
		if x == other.draw() {
			same++
		}
		sum += x
		if x > 3*time.Millisecond { // hardly ever without a stall
			stalls++
		}
	}
	if mean := sum / time.Duration(n); mean < 220*time.Microsecond || mean > 240*time.Microsecond { // 200 and a hundredth of 3,000
		t.Errorf("mean %v", mean)
	}
	if stalls < n*45/10000 || stalls > n*65/10000 { // somewhat more than half of them
		t.Errorf("%d long delays in %d", stalls, n)
	}
	if same > n/1000 {
		t.Errorf("%d delays of two seeds are the same", same)
	}
}
