package localdir

import (
	"os"
	"slices"
)

// writeBytes is how much of a body is handed to the disk at once.
const writeBytes = 1 << 20

// writeBody writes a body at the end of a file of offset bytes. A large one goes to the disk piece by piece, so that the write-back of
// many megabytes does not stand in the disk's queue before the small synced writes of whoever else uses it: a log node, say.
// It makes nothing durable.
func writeBody(f *os.File, offset int64, body []byte) error {
	for piece := range slices.Chunk(body, writeBytes) {
		if _, err := f.Write(piece); err != nil {
			return err
		}
		if len(body) > writeBytes {
			if err := settle(f, offset, int64(len(piece))); err != nil {
				return err
			}
		}
		offset += int64(len(piece))
	}
	return nil
}
