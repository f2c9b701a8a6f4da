// Package sparselog keeps a log readable while the same thing goes wrong again and again: it says it once, then at most once in
// a while with how often it was left out.
package sparselog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// every is how long a message with one key is left out after it was said.
	every = 30 * time.Second
	// maxKeys bounds what is remembered; beyond it all is forgotten, and messages come once too often.
	maxKeys = 1024
)

// Logger adds Repeat to a slog.Logger. All methods may be called concurrently.
type Logger struct {
	*slog.Logger
	now func() time.Time

	mu   sync.Mutex
	said map[string]*saying
}

type saying struct {
	next time.Time
	left int
}

// New returns a Logger on top of l.
func New(l *slog.Logger) *Logger {
	return &Logger{Logger: l, now: time.Now, said: make(map[string]*saying)}
}

// Repeat logs what may come again and again. key tells apart what is not the same: the node or the log that it is about.
func (l *Logger) Repeat(level slog.Level, key, message string, args ...any) {
	if !l.Enabled(context.Background(), level) {
		return
	}
	key = message + "\x00" + key
	l.mu.Lock()
	s := l.said[key]
	if s == nil {
		if len(l.said) >= maxKeys {
			clear(l.said)
		}
		s = new(saying)
		l.said[key] = s
	}
	now := l.now()
	if now.Before(s.next) {
		s.left++
		l.mu.Unlock()
		return
	}
	left := s.left
	s.next, s.left = now.Add(every), 0
	l.mu.Unlock()
	if left > 0 {
		args = append(args, "left_out", left)
	}
	l.Log(context.Background(), level, message, args...)
}
