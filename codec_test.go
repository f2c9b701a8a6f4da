package btrlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/archive"
)

// A client that cannot uncompress what it reads says what to import. That is no loss, and does not end by waiting.
func TestErrorWithoutTheCodec(t *testing.T) {
	unreadable := func(err error) error {
		return fmt.Errorf("archive: log 1 LSN 7: %w", &archive.UnreadableError{Next: 8, Err: err})
	}
	codec := fmt.Errorf("archive: %q: %w", "arch/key", &archive.CodecError{Compression: archive.Zstd})
	var r Reader
	for _, err := range []error{unreadable(codec), unreadable(errors.Join(archive.ErrDamaged, codec))} {
		if miss := r.coldMiss(err, 7); miss != nil {
			t.Fatalf("%v is taken for a loss", err)
		}
		var e *Error
		if !errors.As(wrap("read", "orders", err), &e) || e.Kind != ErrUnavailable || e.Retryable || !strings.Contains(e.Error(), `import _ "github.com/btrlog/btrlog/compress/zstd"`) {
			t.Fatalf("%+v", e)
		}
	}
	if miss := r.coldMiss(unreadable(archive.ErrDamaged), 7); miss == nil || miss.Next != 8 {
		t.Fatal("damage is no miss")
	}
}
