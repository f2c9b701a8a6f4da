package fabric

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var rough = Conditions{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Late: 5 * time.Millisecond}

// transcript sends frames over all links of three ports and writes down what comes out when.
func transcript(seed uint64, c Conditions, frames int) (string, Counts) {
	f := New(seed, 3, c)
	var out strings.Builder
	drain := func(now time.Duration) {
		for {
			due, ok := f.Next()
			if !ok || due > now {
				return
			}
			to, data, _ := f.Due(due)
			fmt.Fprintf(&out, "%v %d %s\n", due, to, data)
		}
	}
	for i := range frames {
		now := time.Duration(i) * 100 * time.Microsecond
		drain(now)
		from := i % 3
		f.Send(now, from, (from+1+i/3%2)%3, fmt.Appendf(nil, "%d", i))
	}
	drain(time.Hour)
	return out.String(), f.Counts()
}

func TestSameSeedSameFrames(t *testing.T) {
	a, counts := transcript(7, rough, 5000)
	b, _ := transcript(7, rough, 5000)
	if a != b {
		t.Fatal("two runs of one seed differ")
	}
	if other, _ := transcript(8, rough, 5000); other == a {
		t.Fatal("two seeds give the same run")
	}
	if counts.Delivered != counts.Sent-counts.Lost+counts.Duplicated {
		t.Errorf("frames are missing: %+v", counts)
	}
	for what, n := range map[string]uint64{"lost": counts.Lost, "duplicated": counts.Duplicated, "reordered": counts.Reordered} {
		if n < 350 || n > 650 {
			t.Errorf("%d of 5000 frames %s at a probability of 0.1", n, what)
		}
	}
}

// A link's fate does not depend on what other links carry.
func TestLinksAreIndependent(t *testing.T) {
	run := func(noise bool) string {
		f := New(3, 3, rough)
		var out strings.Builder
		for i := range 500 {
			now := time.Duration(i) * time.Millisecond
			f.Send(now, 0, 1, fmt.Appendf(nil, "%d", i))
			if noise {
				f.Send(now, 2, 0, []byte("noise"))
				f.Send(now, 1, 0, []byte("noise"))
			}
		}
		for {
			due, ok := f.Next()
			if !ok {
				return out.String()
			}
			if to, data, _ := f.Due(due); to == 1 {
				fmt.Fprintf(&out, "%v %s\n", due, data)
			}
		}
	}
	if run(false) != run(true) {
		t.Fatal("frames of other links changed a link's fate")
	}
}

func TestOrderIsKeptUnlessDrawn(t *testing.T) {
	c := rough
	c.Reorder, c.Duplicate = 0, 0
	f := New(1, 2, c)
	for i := range 1000 {
		f.Send(time.Duration(i)*10*time.Microsecond, 0, 1, []byte{byte(i >> 8), byte(i)})
	}
	last, n := -1, 0
	for {
		_, data, ok := f.Due(time.Hour)
		if !ok {
			break
		}
		if i := int(data[0])<<8 | int(data[1]); i <= last {
			t.Fatalf("frame %d came behind frame %d", i, last)
		} else {
			last = i
		}
		n++
	}
	if n < 800 || n > 950 {
		t.Errorf("%d of 1000 frames came", n)
	}
}

func TestCutIsOneWay(t *testing.T) {
	f := New(1, 2, Conditions{})
	f.Set(0, 1, Conditions{Cut: true})
	f.Send(0, 0, 1, []byte("a"))
	f.Send(0, 1, 0, []byte("b"))
	if to, data, ok := f.Due(0); !ok || to != 0 || string(data) != "b" {
		t.Fatalf("got %q at port %d, %v", data, to, ok)
	}
	if _, data, ok := f.Due(time.Hour); ok {
		t.Fatalf("%q crossed a cut link", data)
	}
}

func TestHeldFramesAreBounded(t *testing.T) {
	f := New(1, 2, Conditions{Delay: time.Hour})
	for range MaxHeld + 5 {
		f.Send(0, 0, 1, nil)
	}
	if c := f.Counts(); c.Overflow != 5 {
		t.Fatalf("%+v", c)
	}
}
