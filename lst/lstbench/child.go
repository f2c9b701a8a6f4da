package lstbench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/btrlog/btrlog/lst"
)

const childVariable = "BTRLOG_LSTBENCH_CHILD"

// job is what a writing process does until it is killed.
type job struct {
	Dir             string
	Streams         int
	Payload, Batch  int
	SnapshotRecords int
	SegmentBytes    int64
	Seed            uint64
	// Stop is the number of records after which it only waits for its end; 0: it writes until it is killed.
	Stop int
}

// Child does what a row asked this process for, and does not return then. It returns at once in a process that no row
// has started. Programs and tests that call Run call it first, with Config.ChildArgs leading to it.
func Child() {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.write(os.Stdout, os.Stdin)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

const reportEvery = 1000 // records

// write appends, and reports what is acknowledged on out: a record number in eight bytes, written without a buffer.
func (j job) write(out io.Writer, in io.Reader) error {
	opt := byRecords(j.SnapshotRecords)
	opt.SegmentBytes = j.SegmentBytes
	s, _, err := lst.Open(j.Dir, opt)
	if err != nil {
		return err
	}
	l := newLoader(s, j.Streams, j.Payload, j.Seed)
	l.resume()
	pick := first
	if j.Streams > 1 {
		pick = l.uniform
	}
	if j.Streams > 1 && l.records == 0 {
		// Every stream exists, so that their number is what it says.
		for k := 0; k < j.Streams; k += j.Batch {
			next := k - 1
			if err := l.commit(min(j.Batch, j.Streams-k), func() int { next++; return next }); err != nil {
				return err
			}
		}
	}
	var ack [8]byte
	reported := int64(0)
	// Before the interval in front of the last snapshot everything is made durable: how far the device lags behind
	// the appends of a process that does nothing else is no part of the comparison.
	syncAt := int64(j.Stop - j.SnapshotRecords - j.SnapshotRecords/2)
	for j.Stop == 0 || l.records < int64(j.Stop) {
		n := j.Batch
		if j.Stop > 0 {
			n = min(n, j.Stop-int(l.records))
		}
		if err := l.commit(n, pick); err != nil {
			return err
		}
		if j.Stop > 0 && l.records >= syncAt && l.records-int64(n) < syncAt {
			if err := s.Sync(); err != nil {
				return err
			}
		}
		if l.records-reported >= reportEvery || l.records == int64(j.Stop) {
			reported = l.records
			binary.LittleEndian.PutUint64(ack[:], uint64(reported))
			if _, err := out.Write(ack[:]); err != nil {
				return err
			}
		}
	}
	_, err = io.ReadAll(in) // until the kill
	return fmt.Errorf("the parent is gone: %w", err)
}

// writeAndKill runs a writing process and ends it with SIGKILL when it has reported records. It returns the last record
// that was acknowledged.
func (r *run) writeAndKill(j job, records int) (int64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, r.ChildArgs...)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	// A child that hangs is killed as well; its report then falls short.
	hung := time.AfterFunc(30*time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	buf := bufio.NewReader(out)
	var ack [8]byte
	acked, killed := int64(0), false
	var stopped error
	for n := 0; ; n++ {
		if _, err := io.ReadFull(buf, ack[:]); err != nil {
			break // the end of the child
		}
		acked = int64(binary.LittleEndian.Uint64(ack[:]))
		if n%64 == 0 {
			stopped = errors.Join(stopped, r.progress(int(acked), records))
		}
		if (acked >= int64(records) || stopped != nil) && !killed {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				return 0, err
			}
		}
	}
	_ = cmd.Wait() // killed: its status says nothing
	if stopped != nil {
		return 0, stopped
	}
	if !killed {
		return 0, fmt.Errorf("the writing process ended by itself after record %d of %d: %s", acked, records, strings.TrimSpace(stderr.String()))
	}
	return acked, nil
}
