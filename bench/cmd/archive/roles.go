package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
	_ "github.com/btrlog/btrlog/objstore/s3"
)

// readResult is what a process that reads prints. Seconds begin before it connects.
type readResult struct {
	Records int64   `json:"records,omitempty"`
	Bytes   int64   `json:"bytes"` // of records; of streams: of objects
	Seconds float64 `json:"seconds"`
	Peak    int64   `json:"peak_bytes"` // VmHWM of the process
	Cold    uint64  `json:"cold_records,omitempty"`
	CPU     float64 `json:"processor_seconds"`
}

func (r *readResult) finish(began time.Time) error {
	r.Seconds = time.Since(began).Seconds()
	_, peak, err := memoryOf(os.Getpid())
	r.Peak = peak
	cpu, cerr := processorTime(os.Getpid())
	r.CPU = cpu.Seconds()
	return errors.Join(err, cerr, json.NewEncoder(os.Stdout).Encode(r))
}

// scanRole reads LSNs of a log from the object store alone, through the archive's reader, which the client has in it.
func scanRole(ctx context.Context, store string, log protocol.LogID, to uint64) error {
	began := time.Now()
	s, err := objstore.Open(ctx, store)
	if err != nil {
		return err
	}
	defer s.Close()
	a, err := archive.New(s, archive.Options{})
	if err != nil {
		return err
	}
	var r readResult
	for rec, err := range a.Reader(log).Scan(ctx, 1, protocol.LSN(to), archive.Watermark{}) {
		if err != nil {
			return err
		}
		r.Records++
		r.Bytes += int64(len(rec.Data))
	}
	return r.finish(began)
}

// clientRole reads a whole log as any user does.
func clientRole(ctx context.Context, store, name string) error {
	began := time.Now()
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: store, Name: "reader", Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer c.Close()
	log, err := c.OpenReader(ctx, name)
	if err != nil {
		return err
	}
	var r readResult
	for rec, err := range log.Scan(ctx, 1, 0) {
		if err != nil {
			return err
		}
		r.Records++
		r.Bytes += int64(len(rec.Data))
	}
	r.Cold = log.Stats().ColdRecords
	return r.finish(began)
}

// streamsRole downloads whole objects by plain HTTP/1.1 requests, width of them at a time, and looks at no byte.
func streamsRole(ctx context.Context, store, keys string, width int) error {
	began := time.Now()
	transport := &http.Transport{MaxIdleConnsPerHost: width, DisableCompression: true, ReadBufferSize: 256 << 10}
	client := &http.Client{Transport: transport}
	next := make(chan string)
	var mu sync.Mutex
	var r readResult
	var errs []error
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for key := range next {
				n, err := download(ctx, client, store, key, buf)
				mu.Lock()
				r.Bytes += n
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, key := range strings.Fields(keys) {
		next <- key
	}
	close(next)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.finish(began)
}

func download(ctx context.Context, client *http.Client, store, key string, buf []byte) (int64, error) {
	req, err := objectRequest(ctx, store, key)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return 0, fmt.Errorf("GET %s: %s: %s", key, resp.Status, b)
	}
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buf)
}

// objectRequest is a GET of an object from either kind of server.
func objectRequest(ctx context.Context, store, key string) (*http.Request, error) {
	endpoint, ok := strings.CutPrefix(store, s3URL(""))
	if !ok {
		return http.NewRequestWithContext(ctx, http.MethodGet, store+httpstore.Path+key, nil)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/"+bucket+"/"+key, nil)
	if err != nil {
		return nil, err
	}
	none := sha256.Sum256(nil)
	hash := hex.EncodeToString(none[:])
	req.Header.Set("X-Amz-Content-Sha256", hash)
	return req, v4.NewSigner().SignHTTP(ctx, aws.Credentials{AccessKeyID: s3Key, SecretAccessKey: s3Key}, req, hash, "s3", "us-east-1", time.Now())
}

// The credentials of the S3 server that is started here, and of nothing else.
const s3Key = "btrlogbench"

// s3URL is the store's URL of an endpoint.
func s3URL(endpoint string) string {
	return "s3://" + bucket + "?path-style=true&region=us-east-1&endpoint=" + endpoint
}

// memoryOf reads a process's resident memory and its peak, in bytes.
func memoryOf(pid int) (resident, peak int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			resident = kb << 10
		case "VmHWM:":
			peak = kb << 10
		}
	}
	return resident, peak, err
}

// processorTime reads how long a process has run on a processor. The kernel counts in hundredths of a second.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}
