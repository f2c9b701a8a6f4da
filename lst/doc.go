// Package lst is a log-structured trie: a storage engine for thousands of
// append-only streams and a small key-value state, in one directory of segment
// files that hold data and index together. There is no write-ahead log, no
// manifest, no compaction, and no byte is written twice in place.
//
// What holds, numbered so that other files can cite it:
//
//	I1 A Batch is atomic: after any crash all of it is there or none of it.
//	I2 Batches become visible, and survive, in the order of their places in the
//	   files: what a crash takes is a suffix. A Forced commit, and all before it,
//	   is never taken; an Acknowledged one not by the end of the process.
//	I3 Every byte that is returned was checked against a checksum bound to its
//	   file, offset, stream and sequence. Damage in durable data is a *Corruption
//	   error with file and offset; it is never "not found".
//	I4 The first I/O error stops the store until it is reopened. A full disk does
//	   not: it is met when a segment is preallocated, refuses with ErrNoSpace, and
//	   ends when space returns, also by Trim and Reclaim on the full disk.
//	I5 Readers take no lock and never hold up the writer. A read-only opener in
//	   another process changes not one byte.
//	I6 Space comes back by unlinking the oldest segments, when they hold no live
//	   record; what else they held is carried forward first.
//	I7 A restart reads what was committed since the last snapshot: nothing that
//	   grows with the number of messages, streams or keys. A stream or key is read
//	   when it is first asked for, and the rest in the background.
//	I8 A Reader shows one moment: the newest at its Refresh, or a snapshot that is
//	   still on disk (Reader.At), exactly.
//	I9 Retention (DropOldest, RetainAge, Trim) takes data from the front of streams
//	   and unlinks files; what is still needed holds the space, and Retention says so.
//
// The node's event loop uses the split-phase form: Prepare reserves and encodes,
// the owner does the I/O, Complete makes visible. Commit is the same thing for
// callers that may block, with group commit among them.
//
// When not to use it: values are not updated in place, so an overwrite-heavy load
// holds dead bytes until whole segments age out; one record that is never trimmed
// pins its segment and all later ones; key-values and the state of every stream
// are kept in memory and in base snapshots, so a segment should be several times
// as large as they are together.
//
// The files are drawn in docs/FORMAT-LST.md.
package lst
