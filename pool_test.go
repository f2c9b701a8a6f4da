package btrlog

import "testing"

// What a burst has left in the pool goes when a whole interval did not need it.
func TestJobPoolForgetsABurst(t *testing.T) {
	s, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := &Client{sock: s}
	p := &c.jobs
	use := func(n int) {
		var jobs []*sendJob
		for range n {
			jobs = append(jobs, p.get(c))
		}
		for _, j := range jobs {
			p.put(j)
		}
	}
	use(20)
	p.trim()
	if len(p.free) != 20 {
		t.Fatalf("%d jobs after an interval that needed 20", len(p.free))
	}
	use(3)
	use(2)
	p.trim()
	if len(p.free) != 3 {
		t.Errorf("%d jobs after an interval that needed 3", len(p.free))
	}
	p.trim()
	if len(p.free) != 0 {
		t.Errorf("%d jobs after an interval that needed none", len(p.free))
	}
	use(1)
	if len(p.free) != 1 {
		t.Errorf("%d jobs", len(p.free))
	}
}
