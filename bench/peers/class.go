package peers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Record fills p with the bytes of record i.
func Record(p []byte, i uint64) {
	x := i*0x9E3779B97F4A7C15 + 1
	for k := 0; k+8 <= len(p); k += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(p[k:], x)
	}
}

const childVariable = "BTRLOG_PEERS_CHILD"

// Child runs what Class asked this process for, and does not return then. Programs and tests that call Class call it first.
func Child() {
	job := os.Getenv(childVariable)
	if job == "" {
		return
	}
	err := child(job)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// child appends for ever, and reports each acknowledgement on standard output, unbuffered: what the parent has read was
// acknowledged before the kill.
func child(job string) error {
	name, dir, ok := strings.Cut(job, ",")
	if !ok {
		return fmt.Errorf("%s is %q, not engine,directory", childVariable, job)
	}
	for _, e := range append([]Engine{LST}, Others...) {
		if e.Name != name {
			continue
		}
		l, err := e.Open(dir, e.OnlyForced)
		if err != nil {
			return err
		}
		recs := make([][]byte, batchRecords)
		for i := range recs {
			recs[i] = make([]byte, recordBytes)
		}
		var ack [8]byte
		for n := uint64(0); ; {
			for _, r := range recs {
				n++
				Record(r, n)
			}
			if err := l.Append(recs); err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(ack[:], n)
			if _, err := os.Stdout.Write(ack[:]); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no engine %q", name)
}

const (
	batchRecords = 16
	recordBytes  = 128
)

// Proof is the outcome of kill -9 tests of one engine.
type Proof struct {
	Engine   string `json:"engine"`
	Config   string `json:"config"`
	Rounds   int    `json:"rounds"`
	Acked    uint64 `json:"acknowledged"`
	Lost     uint64 `json:"lost"`
	Survives bool   `json:"survives_kill_9"`
	Why      string `json:"why,omitempty"` // the first loss
}

// Class kills a writing process with SIGKILL rounds times, in the middle of its work, opens what it left, and reads every
// record that was acknowledged. args makes this program call Child. The seed decides how long each round lives.
func Class(e Engine, dir string, rounds int, seed uint64, args ...string) (Proof, error) {
	p := Proof{Engine: e.Name, Config: e.Unforced, Rounds: rounds, Survives: true}
	if e.OnlyForced {
		p.Config = e.Forced
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds {
		sub := fmt.Sprintf("%s/%d", dir, round)
		batches := 200 + random.IntN(4000)
		if e.OnlyForced || e.Name == "bbolt" {
			batches = 50 + random.IntN(500) // slower: as long in time
		}
		acked, err := killOne(e, sub, batches, args)
		if err != nil {
			return p, fmt.Errorf("%s, round %d: %w", e.Name, round, err)
		}
		lost, why, err := verify(e, sub, acked)
		if err != nil {
			return p, fmt.Errorf("%s, round %d: %w", e.Name, round, err)
		}
		p.Acked += acked
		p.Lost += lost
		if lost > 0 && p.Survives {
			p.Survives, p.Why = false, fmt.Sprintf("round %d: %s", round, why)
		}
		if err := os.RemoveAll(sub); err != nil {
			return p, err
		}
	}
	return p, nil
}

// killOne returns the last record acknowledged before the kill.
func killOne(e Engine, dir string, batches int, args []string) (uint64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childVariable+"="+e.Name+","+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	// A child that hangs is killed, and the round fails.
	hung := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	in := bufio.NewReader(out)
	var ack [8]byte
	acked, killed := uint64(0), false
	for n := 0; ; n++ {
		if _, err := io.ReadFull(in, ack[:]); err != nil {
			break // the end of the child
		}
		acked = binary.LittleEndian.Uint64(ack[:])
		if n == batches {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				return 0, err
			}
		}
	}
	_ = cmd.Wait() // killed: its status says nothing
	if !killed {
		return 0, fmt.Errorf("the writer ended by itself after record %d: %s", acked, strings.TrimSpace(stderr.String()))
	}
	return acked, nil
}

func verify(e Engine, dir string, acked uint64) (lost uint64, why string, err error) {
	l, err := e.Open(dir, e.OnlyForced)
	if err != nil {
		return acked, fmt.Sprintf("it does not open: %v", err), nil
	}
	defer l.Close()
	want := make([]byte, recordBytes)
	for i := uint64(1); i <= acked; i++ {
		got, err := l.Read(i)
		Record(want, i)
		if err == nil && bytes.Equal(got, want) {
			continue
		}
		lost++
		if why == "" {
			why = fmt.Sprintf("record %d of %d acknowledged: %v", i, acked, err)
			if err == nil {
				why = fmt.Sprintf("record %d of %d acknowledged has other bytes", i, acked)
			}
		}
	}
	return lost, why, nil
}
