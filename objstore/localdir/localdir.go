// Package localdir is an object store in a directory of a local file system: the
// embedded default, with the semantics of the real ones.
//
// It is safe for any number of processes of one host, and across crashes of
// processes and of the host:
//
//  1. One object is one file: header, description (key, metadata, block
//     checksums), body; see file.go. It is never changed in place.
//  2. Every Put and Delete of a key holds flock(2) on one of 256 lock files, chosen by
//     the key's hash, from the check of the condition to the end of the write.
//     That is what makes conditions exact between processes. The kernel drops the
//     lock when a process dies, however it dies.
//  3. A Put writes and syncs a temporary file, renames it over the object's name
//     and syncs the directory. A crash at any step leaves the old object or the new one.
//  4. What a reader was told survives a power cut: before an object is reported for the first
//     time, the directory that names it is synced. Otherwise a reader could act on an object
//     whose writer died between the rename and the sync, and a power cut would take it back. Who replaces it and does nothing else
//     needs no sync of its own: his Put's covers both names, or takes both with it.
//  5. A temporary file is locked by its writer. Open removes those that nobody holds.
//
// The directory must be on a file system with working flock, fsync and atomic rename (ext4, xfs,
// btrfs, zfs, tmpfs), seen by one host only, and case-sensitive. Directories are not removed when
// they become empty. Objects may be copied or backed up with ordinary tools
// when no process uses the store; names starting with a dot need not be copied except the marker file.
//
// Importing the package registers the scheme "file": file:///absolute/path.
package localdir

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

const (
	markerName = ".btrlog-objstore"
	markerText = "btrlog object store, local directory, format 1\n"
	tempDir    = ".tmp"
	lockDir    = ".locks"

	dirMode  = 0o750
	fileMode = 0o640
)

// Store implements objstore.Store on a directory.
type Store struct {
	dir         string
	self        os.FileInfo // the directory that was opened
	lockTimeout time.Duration
	locks       lockTable
	replaced    sync.WaitGroup // files of replaced objects that are being closed

	// failed holds the first failed sync of a directory. After it the kernel may
	// have dropped what it could not write and report success on the next try, so nothing that this
	// process believes about durability holds any more.
	failed atomic.Pointer[error]

	mu      sync.Mutex
	durable map[string]uint64 // object file → write id whose name is known to be on disk
	madeDir map[string]bool   // directories whose own name is known to be on disk

	// step is called with the name of each step of a Put before the next one; tests crash there.
	step func(string)
}

// Options of Open. The zero value is ready to use.
type Options struct {
	// LockTimeout bounds the wait for another process's lock; default 30 s. A lock is held for
	// a few milliseconds; one that is held longer belongs to a stopped process or a stuck disk.
	LockTimeout time.Duration
}

func init() {
	objstore.Register("file", func(_ context.Context, u *url.URL) (objstore.Store, error) {
		if (u.Host != "" && u.Host != "localhost") || !filepath.IsAbs(u.Path) || u.RawQuery != "" {
			return nil, fmt.Errorf("objstore: a local directory's URL is file:///absolute/path, without host or query")
		}
		return Open(u.Path, Options{})
	})
}

// Exists reports whether dir holds a store: for programs that read one, and must not make one where a path is mistyped or a file
// system is not mounted.
func Exists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, markerName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Open opens the store in dir and creates it if dir is absent or empty. It refuses
// a directory that holds something else.
func Open(dir string, o Options) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("objstore: directory %s: %w", dir, err)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = 30 * time.Second
	}
	s := &Store{dir: abs, lockTimeout: o.LockTimeout,
		durable: make(map[string]uint64), madeDir: make(map[string]bool), step: func(string) {}}
	s.locks.init(filepath.Join(abs, lockDir))
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("objstore: open directory %s: %w", abs, err)
	}
	s.removeLeftovers()
	return s, nil
}

// prepare creates or checks the marker and the private directories.
func (s *Store) prepare() error {
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return err
	}
	marker := filepath.Join(s.dir, markerName)
	text, err := readSmall(marker, 256)
	switch {
	case err == nil && string(text) == markerText:
	case err == nil:
		return fmt.Errorf("%s says %q, this program knows %q: use the program that wrote it", marker, text, markerText)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if err := s.initialise(marker); err != nil {
			return err
		}
	}
	for _, d := range []string{tempDir, lockDir} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), dirMode); err != nil {
			return err
		}
	}
	s.self, err = os.Stat(s.dir)
	return err
}

// here makes sure that the directory is the one that was opened. When its file system is not mounted any more another one is
// in its place, perhaps with a store that was made there by mistake: what went there would be gone when the right one is back, and
// what it does not hold is not absent.
func (s *Store) here() error {
	at, err := os.Stat(s.dir)
	if err == nil && !os.SameFile(at, s.self) {
		return fmt.Errorf("another directory is in the place of %s: mount or move the store back, or restart the process", s.dir)
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(s.dir, markerName))
	}
	return err
}

func (s *Store) initialise(marker string) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		// Names with a dot can be those of another process that initialises at this moment.
		if !strings.HasPrefix(e.Name(), ".") && e.Name() != "lost+found" {
			return fmt.Errorf("it holds %q but no %s: not an object store, choose an empty directory", e.Name(), markerName)
		}
	}
	temp := marker + "." + randomName()
	if err := writeSynced(temp, []byte(markerText)); err != nil {
		os.Remove(temp)
		return err
	}
	// Several processes may do this at once; they all rename the same text into place.
	if err := os.Rename(temp, marker); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.dir))
}

// removeLeftovers unlinks temporary files whose writers died. A file that is locked is being written.
// A file that was created but not locked yet may be taken from its writer here; its rename then
// fails before anything was applied, and the Put is retried by Put itself.
func (s *Store) removeLeftovers() {
	dir := filepath.Join(s.dir, tempDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // a leftover only costs space
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if ok, err := tryLock(f); err == nil && ok {
			os.Remove(name)
		}
		f.Close()
	}
	// The marker's temporary names are tried too: a crash between write and rename leaves them.
	stale, _ := filepath.Glob(filepath.Join(s.dir, markerName+".*"))
	for _, name := range stale {
		if fi, err := os.Stat(name); err == nil && time.Since(fi.ModTime()) > time.Hour {
			os.Remove(name)
		}
	}
}

func (s *Store) String() string { return "file://" + s.dir }

// Close closes the lock files.
func (s *Store) Close() error {
	s.replaced.Wait()
	return s.locks.close()
}

func (s *Store) err(op, key string, kind, cause error) error {
	return &objstore.Error{Store: s.String(), Op: op, Key: key, Kind: kind, Err: cause}
}

// start is the common beginning of every method.
func (s *Store) start(ctx context.Context, op, key string) error {
	if err := s.failed.Load(); err != nil {
		return s.err(op, key, objstore.ErrUnavailable,
			fmt.Errorf("the store stopped after a failed sync, restart the process: %w", *err))
	}
	if err := objstore.CheckContext(ctx, s.String(), op, key); err != nil {
		return err
	}
	if err := s.here(); err != nil {
		return s.err(op, key, objstore.ErrUnavailable, err)
	}
	return nil
}

// Put implements objstore.Store. The ETag is a random number: unlike a hash of the body it never comes back, and it costs no pass over a
// body whose blocks have their checksums.
func (s *Store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.String(), key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := s.start(ctx, "put", key); err != nil {
		return objstore.Info{}, err
	}
	path := s.path(key)
	if len(body) > smallBytes {
		// A condition that already fails need not cost a temporary file. It is decided again under the lock.
		replaced, err := s.checkCondition(key, path, cond)
		if err != nil {
			return objstore.Info{}, err
		}
		s.letGo(replaced)
	}
	h := newHeader(key, body, meta, time.Now())
	for try := 1; ; try++ {
		err := s.put(ctx, key, path, h, body, cond)
		// ENOENT at the rename: the temporary file was swept away by another process's Open, or
		// a directory was removed by hand. Nothing was applied.
		if errors.Is(err, errTempGone) && try < 10 {
			continue
		}
		if err != nil {
			return objstore.Info{}, err
		}
		return h.info(), nil
	}
}

var errTempGone = errors.New("temporary file or directory vanished before the rename")

// smallBytes is up to where a body is written under the key's lock: a record of metadata is checked once then, and a write that is
// refused costs no temporary file. What takes long to be written, a segment, is written before.
const smallBytes = 128 << 10

func (s *Store) put(ctx context.Context, key, path string, h *header, body []byte, cond objstore.Condition) error {
	small := len(body) <= smallBytes
	var unlock func()
	var replaced *os.File
	check := func() (err error) {
		if unlock, err = s.locks.lock(ctx, key, s.lockTimeout); err != nil {
			return s.err("put", key, objstore.ErrUnavailable, err)
		}
		s.step("locked")
		replaced, err = s.checkCondition(key, path, cond)
		return err
	}
	defer func() {
		if unlock != nil {
			unlock()
		}
		s.letGo(replaced)
	}()
	if small {
		if err := check(); err != nil {
			return err
		}
	}
	temp := filepath.Join(s.dir, tempDir, randomName())
	f, err := s.writeTemp(temp, h, body, small)
	if err != nil {
		return s.err("put", key, objstore.ErrUnavailable, err)
	}
	defer f.Close()
	renamed := false
	defer func() {
		if !renamed {
			os.Remove(temp)
		}
	}()
	if !small {
		if err := check(); err != nil {
			return err
		}
	}
	dir := filepath.Dir(path)
	if err := s.makeDir(dir); err != nil {
		return s.err("put", key, objstore.ErrUnavailable, err)
	}
	s.step("dirs-made")
	// The file's bytes are synced before its name changes; reversed, a power cut could leave the
	// object's name on a file without content, and the old object would be gone.
	if err := os.Rename(temp, path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			s.forgetDirs()
			err = errTempGone
		}
		return s.err("put", key, objstore.ErrUnavailable, err)
	}
	renamed = true
	s.step("renamed")
	// The name is synced before the caller hears of success; reversed, a power cut takes back
	// an object that the caller relies on.
	if err := s.sync(dir); err != nil {
		return s.err("put", key, objstore.ErrUnknown, err)
	}
	s.step("dir-synced")
	s.noteDurable(path, h.writeID)
	return nil
}

// writeTemp leaves a complete and synced file, open and locked against removeLeftovers.
func (s *Store) writeTemp(temp string, h *header, body []byte, small bool) (*os.File, error) {
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; was the store's directory removed?", err)
	}
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*os.File, error) {
		f.Close()
		os.Remove(temp)
		return nil, err
	}
	if _, err := tryLock(f); err != nil {
		return fail(err)
	}
	s.step("temp-created")
	head := h.encode()
	if small {
		head, body = append(head, body...), nil // one write
	}
	if _, err := f.Write(head); err != nil {
		return fail(err)
	}
	s.step("temp-header")
	if len(body) > 0 {
		if err := writeBody(f, int64(len(head)), body); err != nil {
			return fail(err)
		}
	}
	s.step("temp-written")
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	s.step("temp-synced")
	return f, nil
}

// checkCondition compares cond with the object that is there. Of an IfMatch that holds it returns the file that is about to be replaced, open:
// while it is, the rename over its name need not free its blocks, which is a fifth of the time of a small replacement.
func (s *Store) checkCondition(key, path string, cond objstore.Condition) (replaced *os.File, err error) {
	if cond == objstore.Always() {
		return nil, nil
	}
	if etag, ok := cond.Match(); ok {
		// The version that is about to be replaced need not be settled, only one of which a refusal tells.
		if f, h, err := s.openObject("put", key, path, true); err == nil {
			if h.etag() == etag {
				return f, nil
			}
			f.Close()
		}
	}
	h, err := s.readHeader("put", key, path)
	switch {
	case err == nil && cond.Holds(true, h.etag()), errors.Is(err, objstore.ErrNotFound) && cond.Holds(false, ""):
		return nil, nil
	case err == nil, errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrDamaged) && cond.IsIfAbsent():
		return nil, s.err("put", key, objstore.ErrPrecondition, nil)
	}
	return nil, err
}

// letGo closes the file of an object that may have been replaced; that frees its blocks, and nobody waits for it but Close.
func (s *Store) letGo(replaced *os.File) {
	if replaced != nil {
		s.replaced.Go(func() { replaced.Close() })
	}
}

// makeDir makes dir and its parents, down from the store's directory, and sees to it that their
// names are on disk. A directory that exists is not enough: the process that made it may have died
// before its sync, and a power cut would then take the whole subtree.
func (s *Store) makeDir(dir string) error {
	if dir == s.dir {
		return nil
	}
	s.mu.Lock()
	known := s.madeDir[dir]
	s.mu.Unlock()
	if known {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := s.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.sync(parent); err != nil {
		return err
	}
	s.mu.Lock()
	s.madeDir[dir] = true
	s.mu.Unlock()
	return nil
}

func (s *Store) forgetDirs() {
	s.mu.Lock()
	clear(s.madeDir)
	s.mu.Unlock()
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.err("delete", key, objstore.ErrInvalid, err)
	}
	if err := s.start(ctx, "delete", key); err != nil {
		return err
	}
	unlock, err := s.locks.lock(ctx, key, s.lockTimeout)
	if err != nil {
		return s.err("delete", key, objstore.ErrUnavailable, err)
	}
	defer unlock()
	path := s.path(key)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.err("delete", key, objstore.ErrUnavailable, err)
	}
	// Also when there was nothing to remove: another process may have unlinked it and died before
	// its sync.
	if err := s.sync(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.err("delete", key, objstore.ErrUnknown, err)
	}
	s.mu.Lock()
	delete(s.durable, path)
	s.mu.Unlock()
	return nil
}

// sync makes the names in dir durable. A failed sync stops the store; a directory that cannot be opened, for want of a
// descriptor, was not synced, and the next try says how it is.
func (s *Store) sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err = d.Sync(); err != nil {
		s.failed.CompareAndSwap(nil, &err)
	}
	return err
}

// maxDurable bounds the memory that remembers durable names; past it all are forgotten, which
// costs one sync of the directory at their next use.
const maxDurable = 1 << 16

func (s *Store) noteDurable(path string, writeID uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.durable) >= maxDurable {
		clear(s.durable)
	}
	s.durable[path] = writeID
}

func (s *Store) isDurable(path string, writeID uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.durable[path]
	return ok && id == writeID
}

func randomName() string {
	var b [12]byte
	rand.Read(b[:]) // never fails, by its contract
	return hex.EncodeToString(b[:])
}
