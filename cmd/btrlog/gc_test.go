package main

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/spf13/cobra"
)

// The flag goes before GOGC, and GOGC before the default.
func TestGCPercent(t *testing.T) {
	const started = 150 // as the runtime reads it from GOGC
	defer debug.SetGCPercent(debug.SetGCPercent(started))
	set := func() int {
		p := debug.SetGCPercent(started)
		debug.SetGCPercent(p)
		return p
	}
	for _, c := range []struct {
		env, flag string
		want      int
	}{{"", "", defaultGCPercent}, {"150", "", started}, {"150", "300", 300}, {"", "50", 50}} {
		var o nodeFlags
		cmd := &cobra.Command{}
		cmd.Flags().IntVar(&o.gc, "gc-percent", defaultGCPercent, "")
		if c.flag != "" {
			if err := cmd.Flags().Set("gc-percent", c.flag); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("GOGC", c.env) // and it is put back
		if c.env == "" {
			os.Unsetenv("GOGC")
		}
		debug.SetGCPercent(started)
		o.setGC(cmd)
		if got := set(); got != c.want {
			t.Errorf("GOGC %q, --gc-percent %q: %d percent, want %d", c.env, c.flag, got, c.want)
		}
	}
}
