package sparselog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRepeat(t *testing.T) {
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	now := time.Unix(1000, 0)
	l.now = func() time.Time { return now }
	lines := func() int { return strings.Count(out.String(), "\n") }
	say := func(key string) { l.Repeat(slog.LevelWarn, key, "not archived", "log", key) }
	for range 100 {
		say("a")
	}
	say("b")
	if lines() != 2 {
		t.Fatalf("%d lines for two keys:\n%s", lines(), out.String())
	}
	now = now.Add(every)
	say("a")
	say("b")
	if lines() != 4 || strings.Count(out.String(), "left_out=99") != 1 || strings.Count(out.String(), "left_out") != 1 {
		t.Fatalf("after a while:\n%s", out.String())
	}
	for range 10 {
		l.Repeat(slog.LevelInfo, "c", "below the level")
	}
	if lines() != 4 {
		t.Fatalf("a message below the level:\n%s", out.String())
	}
	for i := range 5 * maxKeys {
		say(fmt.Sprint(i))
	}
	if len(l.said) > maxKeys {
		t.Errorf("%d keys are remembered", len(l.said))
	}
}
