package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
)

// acks is the file outside of BtrLog in which a writer notes what was acknowledged to it: one line "LSN hash" for each
// record, written after the acknowledgement and never before. What stands in it must never be missing from the log.
type acks struct {
	mu     sync.Mutex
	f      *os.File
	buf    *bufio.Writer
	base   uint64   // LSN of hashes[0]
	hashes []string // of what was appended and is not acknowledged yet
	acked  uint64
	err    error
}

func openAcks(path string) (*acks, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &acks{f: f, buf: bufio.NewWriter(f)}, nil
}

func hash(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:8])
}

// expect notes the content of a record that is about to be appended under lsn.
func (a *acks) expect(lsn uint64, data []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.hashes) == 0 {
		a.base = lsn
	}
	a.hashes = append(a.hashes, hash(data))
}

// acknowledged writes a line for every record at or below lsn that has none yet, and hands them to the kernel, so that a
// kill of this process loses none of them.
func (a *acks) acknowledged(lsn uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for n < len(a.hashes) && a.base+uint64(n) <= lsn {
		if _, err := fmt.Fprintf(a.buf, "%d %s\n", a.base+uint64(n), a.hashes[n]); err != nil && a.err == nil {
			a.err = err
		}
		n++
	}
	a.base += uint64(n)
	a.hashes = a.hashes[n:]
	a.acked = max(a.acked, lsn)
	if err := a.buf.Flush(); err != nil && a.err == nil {
		a.err = err
	}
}

func (a *acks) last() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acked
}

func (a *acks) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.f.Close(); a.err == nil {
		a.err = err
	}
	return a.err
}

// readAcks returns the hash by LSN. A last line that the kill cut short is not an acknowledgement.
func readAcks(path string) (map[uint64]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[uint64]string{}
	in := bufio.NewScanner(f)
	for in.Scan() {
		var lsn uint64
		var h string
		if n, err := fmt.Sscanf(in.Text(), "%d %s", &lsn, &h); n != 2 || err != nil || len(h) != 16 {
			continue
		}
		if old, ok := out[lsn]; ok && old != h {
			return nil, fmt.Errorf("%s: LSN %d was acknowledged with two contents", path, lsn)
		}
		out[lsn] = h
	}
	return out, in.Err()
}
