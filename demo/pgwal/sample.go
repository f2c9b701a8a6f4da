package pgwal

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"

	"github.com/btrlog/btrlog/demo/testdata"
)

// Manifest is what PostgreSQL's pg_waldump told of the sample; see
// demo/testdata/README.md.
type Manifest struct {
	Server            string `json:"server"`
	Workload          string `json:"workload"`
	Segments          int    `json:"segments"`
	SegmentSizeBytes  int64  `json:"segment_size_bytes"`
	BlockSizeBytes    int64  `json:"block_size_bytes"`
	StreamBytes       int64  `json:"stream_bytes"`  // uncompressed
	StreamSHA256      string `json:"stream_sha256"` // of the uncompressed bytes
	CompressedBytes   int64  `json:"compressed_bytes"`
	Records           int    `json:"records"`
	RecordBytes       int64  `json:"record_bytes"` // sum of the records' lengths
	RecordSizeP50     int    `json:"record_size_p50_bytes"`
	RecordSizeP99     int    `json:"record_size_p99_bytes"`
	RecordSizeMax     int    `json:"record_size_max_bytes"`
	RecordsAbove8192  int    `json:"records_above_8192_bytes"`
	FirstLSN          string `json:"first_lsn"`
	LastLSN           string `json:"last_lsn"`
	EndLSN            string `json:"end_lsn"`
	RecordsListSHA256 string `json:"records_sha256"`
}

// Sample opens the sample log that is part of the program: about 32 MiB written by a
// PostgreSQL server under pgbench. Each call starts a new, independent stream of the
// uncompressed log. It needs no closing.
func Sample() (io.Reader, error) {
	z, err := gzip.NewReader(bytes.NewReader(testdata.PgbenchWAL))
	if err != nil {
		return nil, fmt.Errorf("pgwal: the embedded sample log: %w", err)
	}
	return z, nil
}

// SampleManifest describes the log that Sample opens.
func SampleManifest() (Manifest, error) {
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(testdata.Manifest))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("pgwal: the embedded manifest of the sample log: %w", err)
	}
	return m, nil
}
