package main_test

import "testing"

// TestSegmentFilesHoldTheLargestRecord: a node with files that are too small would refuse an allowed record for ever.
func TestSegmentFilesHoldTheLargestRecord(t *testing.T) {
	bad(t, run(t, "", "node", "--store", "file://"+t.TempDir(), "--dir", t.TempDir(), "--segment-file", "4MiB"), 2, "at least 20MiB")
	bad(t, run(t, "", "dev", "--dir", t.TempDir(), "--segment-file", "4MiB"), 2, "at least 20MiB")
}
