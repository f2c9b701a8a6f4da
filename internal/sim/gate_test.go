package sim

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestGate: a run fails if over its seeds something that it is there for never happened.
func TestGate(t *testing.T) {
	all := map[string]int{}
	known := (&counters{}).table()
	for _, name := range required {
		if _, ok := known[name]; !ok {
			t.Errorf("nothing is counted as %s", name)
		}
		all[name] = 1
	}
	// Overlapping takeovers, a wiped disk, a torn write, a write of the store that was applied and reported as timed out, a node that comes
	// back with an old epoch, an activation that did not get through, a segment with holes.
	for _, name := range []string{"OverlappingTakeovers", "Wipes", "TornWrites", "AppliedButUnknown", "StaleReturners", "PartialActivations", "HoledSegments"} {
		if !slices.Contains(required, name) {
			t.Errorf("%s may stay at zero", name)
		}
	}
	if m := missing(all, requiredSeeds, requiredSeeds); len(m) > 0 {
		t.Errorf("everything happened, and %v is missing", m)
	}
	for _, name := range required {
		all[name] = 0
		if m := missing(all, requiredSeeds, requiredSeeds); !slices.Equal(m, []string{name}) {
			t.Errorf("%s never happened, and %v is missing", name, m)
		}
		if m := missing(all, requiredSeeds-1, requiredSeeds); len(m) > 0 {
			t.Errorf("few seeds need not do everything, and %v is missing", m)
		}
		all[name] = 1
	}
	// And a real run: two seeds cannot have done everything.
	var out bytes.Buffer
	code := mainRun(Options{From: 1, Seeds: 2, required: 2}, false, &out)
	text := out.String()
	for _, rate := range []string{"; per CPU-second: commits=", " takeovers=", " faults="} {
		if !strings.Contains(text, rate) {
			t.Errorf("the last line has no rate %q", rate)
		}
	}
	if code != 1 || !strings.Contains(text, "never happened: ") || !strings.Contains(text, " failed=0 missing=") || strings.Contains(text, " missing=0 ") {
		t.Fatalf("exit %d of a run in which things never happened:\n%s", code, text)
	}
}
