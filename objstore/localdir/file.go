package localdir

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// An object's file, little-endian:
//
//	offset  bytes  header
//	     0      8  magic "BTRLOBJ1"
//	     8      8  size of the body
//	    16      8  time of the Put, nanoseconds since 1970
//	    24      8  write id, random per Put
//	    32     16  tag, random per Put (the ETag); earlier programs wrote the MD5 of the body
//	    48      4  D, size of the description
//	    52      4  CRC32C of the description
//	    56      4  zero
//	    60      4  CRC32C of bytes 0..59
//	    64      D  description: key (2-byte length, bytes); number of metadata pairs (2 bytes); per pair
//	               name and value, each with a 2-byte length; CRC32C (4 bytes) of each 64 KiB block of the body
//	  64+D         body, to the end of the file
//
// The key is in the description so that a file that was renamed or copied over another by hand is noticed.
const (
	magic       = "BTRLOBJ1"
	fixedBytes  = 64
	blockBytes  = 64 << 10
	maxNonBlock = 16 << 10 // bound for a description without block checksums
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	size     int64
	modified int64
	writeID  uint64
	tag      [16]byte
	descLen  uint32
	descCRC  uint32

	// from the description
	key    string
	meta   map[string]string
	blocks []uint32
}

func newHeader(key string, body []byte, meta map[string]string, now time.Time) *header {
	h := &header{size: int64(len(body)), modified: now.UnixNano(), key: key, meta: maps.Clone(meta)}
	var random [24]byte
	rand.Read(random[:])
	h.writeID = binary.LittleEndian.Uint64(random[:])
	copy(h.tag[:], random[8:])
	for b := range slices.Chunk(body, blockBytes) {
		h.blocks = append(h.blocks, crc32.Checksum(b, castagnoli))
	}
	return h
}

func (h *header) etag() string { return hex.EncodeToString(h.tag[:]) }

func (h *header) info() objstore.Info {
	return objstore.Info{Key: h.key, Size: h.size, ETag: h.etag(), Modified: time.Unix(0, h.modified), Metadata: h.meta}
}

func (h *header) encode() []byte {
	str := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	desc := str(nil, h.key)
	desc = binary.LittleEndian.AppendUint16(desc, uint16(len(h.meta)))
	for _, k := range slices.Sorted(maps.Keys(h.meta)) {
		desc = str(str(desc, k), h.meta[k])
	}
	for _, c := range h.blocks {
		desc = binary.LittleEndian.AppendUint32(desc, c)
	}
	b := make([]byte, 0, fixedBytes+len(desc))
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.size))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.modified))
	b = binary.LittleEndian.AppendUint64(b, h.writeID)
	b = append(b, h.tag[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(desc, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, desc...)
}

// decodeFixed reads the fixed part and checks it against the file's size.
func decodeFixed(b []byte, fileSize int64) (*header, error) {
	if string(b[:8]) != magic {
		return nil, fmt.Errorf("magic at offset 0 is %q, want %q", b[:8], magic)
	}
	if crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return nil, fmt.Errorf("checksum of the header at offset 0 does not match")
	}
	h := &header{
		size:     int64(binary.LittleEndian.Uint64(b[8:])),
		modified: int64(binary.LittleEndian.Uint64(b[16:])),
		writeID:  binary.LittleEndian.Uint64(b[24:]),
		descLen:  binary.LittleEndian.Uint32(b[48:]),
		descCRC:  binary.LittleEndian.Uint32(b[52:]),
	}
	copy(h.tag[:], b[32:48])
	if h.size < 0 || h.size > objstore.MaxBodyBytes || int64(h.descLen) > maxNonBlock+4*h.blockCount() {
		return nil, fmt.Errorf("header announces a body of %d and a description of %d bytes, beyond the limits", h.size, h.descLen)
	}
	if want := fixedBytes + int64(h.descLen) + h.size; fileSize != want {
		return nil, fmt.Errorf("file has %d bytes, its header says %d", fileSize, want)
	}
	return h, nil
}

func (h *header) blockCount() int64 { return (h.size + blockBytes - 1) / blockBytes }

// decodeDesc reads the description into h.
func (h *header) decodeDesc(b []byte, key string) error {
	if crc32.Checksum(b, castagnoli) != h.descCRC {
		return fmt.Errorf("checksum of the description at offset %d does not match", fixedBytes)
	}
	short := false
	number := func() int {
		if len(b) < 2 {
			short = true
			return 0
		}
		n := binary.LittleEndian.Uint16(b)
		b = b[2:]
		return int(n)
	}
	str := func() string {
		n := number()
		if n > len(b) {
			short = true
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	h.key = str()
	if n := number(); n > 0 {
		h.meta = make(map[string]string)
		for ; n > 0 && !short; n-- {
			k := str()
			h.meta[k] = str()
		}
	}
	if short || int64(len(b)) != 4*h.blockCount() {
		return fmt.Errorf("description at offset %d has the wrong length", fixedBytes)
	}
	if h.key != key {
		return fmt.Errorf("file holds object %q: it was renamed or copied here", h.key)
	}
	h.blocks = make([]uint32, h.blockCount())
	for i := range h.blocks {
		h.blocks[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return nil
}

func (s *Store) damaged(op, key, path string, err error) error {
	return s.err(op, key, objstore.ErrDamaged,
		fmt.Errorf("file %s: %w (restore the file from a copy, or delete the object)", path, err))
}

// openObject opens an object's file and reads its header; full also reads the description.
func (s *Store) openObject(op, key, path string, full bool) (*os.File, *header, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, s.err(op, key, objstore.ErrNotFound, nil)
	}
	if err != nil {
		return nil, nil, s.err(op, key, objstore.ErrUnavailable, err)
	}
	h, err := s.readOpened(f, op, key, path, full)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, h, nil
}

func (s *Store) readOpened(f *os.File, op, key, path string, full bool) (*header, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, s.err(op, key, objstore.ErrUnavailable, err)
	}
	if !fi.Mode().IsRegular() || fi.Size() < fixedBytes {
		return nil, s.damaged(op, key, path, fmt.Errorf("%s of %d bytes is not an object", fi.Mode(), fi.Size()))
	}
	var fixed [fixedBytes]byte
	if _, err := f.ReadAt(fixed[:], 0); err != nil {
		return nil, s.damaged(op, key, path, err)
	}
	h, err := decodeFixed(fixed[:], fi.Size())
	if err != nil {
		return nil, s.damaged(op, key, path, err)
	}
	if !full {
		return h, nil
	}
	desc := make([]byte, h.descLen)
	if _, err := f.ReadAt(desc, fixedBytes); err != nil {
		return nil, s.damaged(op, key, path, err)
	}
	if err := h.decodeDesc(desc, key); err != nil {
		return nil, s.damaged(op, key, path, err)
	}
	return h, nil
}

// settle makes an object's name durable before anybody is told that it exists; see invariant 4.
func (s *Store) settle(op, key, path string, h *header) error {
	if s.isDurable(path, h.writeID) {
		return nil
	}
	if err := s.settleDir(op, key, s.dirOf(path)); err != nil {
		return err
	}
	s.noteDurable(path, h.writeID)
	return nil
}

// settleDir makes the names in dir, of dir, and of all directories above it durable.
func (s *Store) settleDir(op, key, dir string) error {
	err := s.makeDir(dir)
	if err == nil {
		err = s.sync(dir)
	}
	if err != nil {
		return s.err(op, key, objstore.ErrUnavailable, err)
	}
	return nil
}

// readHeader returns a settled object's header with its description.
func (s *Store) readHeader(op, key, path string) (*header, error) {
	f, h, err := s.openObject(op, key, path, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return h, s.settle(op, key, path, h)
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, s.err("head", key, objstore.ErrInvalid, err)
	}
	if err := s.start(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	h, err := s.readHeader("head", key, s.path(key))
	if err != nil {
		return objstore.Info{}, err
	}
	return h.info(), nil
}

// Get implements objstore.Store. Every block that is read is checked, also for a range.
func (s *Store) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, s.err("get", key, objstore.ErrInvalid, err)
	}
	if err := s.start(ctx, "get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	path := s.path(key)
	f, h, err := s.openObject("get", key, path, true)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if !objstore.IsReplacing(ctx) {
		if err := s.settle("get", key, path, h); err != nil {
			f.Close()
			return nil, objstore.Info{}, err
		}
	}
	from, to, ok := r.Resolve(h.size)
	if !ok {
		f.Close()
		return nil, objstore.Info{}, s.err("get", key, objstore.ErrInvalid,
			fmt.Errorf("range at %d of %d bytes does not fit an object of %d bytes", r.Offset, r.Length, h.size))
	}
	return &bodyReader{s: s, ctx: ctx, f: f, h: h, path: path, at: from, end: to}, h.info(), nil
}

// bodyReader reads whole blocks, checks them, and hands out the part that was asked for.
type bodyReader struct {
	s       *Store
	ctx     context.Context
	f       *os.File
	h       *header
	path    string
	at, end int64 // next and last offset in the body
	buf     []byte
	rest    []byte // checked bytes not handed out yet
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		if r.at >= r.end {
			return 0, io.EOF
		}
		if err := objstore.CheckContext(r.ctx, r.s.String(), "get", r.h.key); err != nil {
			return 0, err
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *bodyReader) fill() error {
	block := r.at / blockBytes
	start := block * blockBytes
	stop := min(start+blockBytes, r.h.size)
	if r.buf == nil {
		r.buf = make([]byte, min(blockBytes, r.h.size))
	}
	b := r.buf[:stop-start]
	offset := fixedBytes + int64(r.h.descLen) + start
	if _, err := r.f.ReadAt(b, offset); err != nil {
		return r.s.damaged("get", r.h.key, r.path, fmt.Errorf("read of %d bytes at offset %d: %w", len(b), offset, err))
	}
	if crc32.Checksum(b, castagnoli) != r.h.blocks[block] {
		return r.s.damaged("get", r.h.key, r.path, fmt.Errorf("checksum of the %d bytes at offset %d does not match", len(b), offset))
	}
	r.rest = b[r.at-start : min(stop, r.end)-start]
	r.at += int64(len(r.rest))
	return nil
}

func (r *bodyReader) Close() error { return r.f.Close() }

func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, bytes.NewReader(text)); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
