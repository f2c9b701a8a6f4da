// Package testdata carries the demo's sample input in the program itself: a
// write-ahead log of a real PostgreSQL server, and what pg_waldump said of it.
// README.md tells how it was made. Package pgwal reads it.
package testdata

import _ "embed"

// PgbenchWAL is the gzip-compressed write-ahead log. It must not be modified.
//
//go:embed pgbench-wal.gz
var PgbenchWAL []byte

// Manifest is the JSON description of PgbenchWAL written by make-sample.sh. It
// must not be modified.
//
//go:embed manifest.json
var Manifest []byte
