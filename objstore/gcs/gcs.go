// Package gcs keeps objects in Google Cloud Storage or a server that speaks its protocol. Importing it registers the URL scheme "gs":
//
//	gs://bucket                                  credentials as every Google Cloud tool finds them
//	gs://bucket/prefix
//	gs://bucket?endpoint=http://127.0.0.1:4443   an emulator; so does STORAGE_EMULATOR_HOST
//
// Credentials are the Application Default Credentials: GOOGLE_APPLICATION_CREDENTIALS, the file of gcloud, the metadata server. To an
// endpoint without TLS none are sent. It is a module of its own, so that nobody who embeds the client or the engine gets the SDK with it.
//
// The ETag of an object is its generation, a number that the service makes and that never comes back. A Put is one upload with
// ifGenerationMatch, which is 0 for "not there". Google allows about one write of one object in a second and answers more with 429:
// the records of BtrLog that are replaced are replaced rarely, so this shows at a start, where objstore.Probe takes some seconds.
package gcs

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	apihttp "google.golang.org/api/transport/http"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/remote"
)

func init() { objstore.Register("gs", open) }

// Options of a store beyond what the environment says.
type Options struct {
	Bucket string
	// Prefix is put before every key, without slashes at its ends; may be empty. Google bounds both together to
	// objstore.MaxKeyBytes.
	Prefix string
	// Endpoint is the server's URL, without a path; empty is what STORAGE_EMULATOR_HOST says, and without that Google's.
	Endpoint string
	// Credentials are the SDK's options for credentials; without any the environment is asked. They do not reach a server without TLS.
	Credentials []option.ClientOption
	// Transport replaces the HTTP client's; nil is one with bounded connections and time limits.
	Transport http.RoundTripper
}

// A read is tried so often by the SDK, with jitter; writes are tried once, whoever asked decides.
const (
	readAttempts = 3
	// The SDK takes up a body that was cut short where it ended, of the same generation, as often as there is an answer.
	mostRequests  = 10
	retryDelay    = 200 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

type store struct {
	client *storage.Client
	bucket *storage.BucketHandle
	http   *http.Client
	prefix string // with a slash at its end, or empty
	name   string
}

func open(ctx context.Context, u *url.URL) (_ objstore.Store, err error) {
	var o Options
	o.Bucket, o.Prefix, err = remote.ReadURL(u, "gs://bucket/prefix", map[string]remote.Param{"endpoint": remote.Text(&o.Endpoint)})
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New opens a store. It looks for credentials, and makes no request of the store: objstore.Probe does. Errors name what is missing.
func New(ctx context.Context, o Options) (objstore.Store, error) {
	switch {
	case o.Bucket == "":
		return nil, fmt.Errorf("objstore: gcs: no bucket given")
	case o.Prefix != "" && objstore.CheckKey(o.Prefix) != nil:
		return nil, fmt.Errorf("objstore: gcs: prefix %q: %w", o.Prefix, objstore.CheckKey(o.Prefix))
	}
	s := &store{name: "gs://" + o.Bucket}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
		s.name += "/" + o.Prefix
	}
	endpoint, err := endpointOf(o)
	if err != nil {
		return nil, err
	}
	if endpoint != nil {
		s.name += " at " + endpoint.Host
	}
	var base http.RoundTripper = remote.NewTransport()
	if o.Transport != nil {
		base = o.Transport
	}
	base = remote.Tracker{Base: base}
	if endpoint == nil || endpoint.Scheme == "https" {
		creds := append([]option.ClientOption{option.WithScopes(storage.ScopeReadWrite)}, o.Credentials...)
		if base, err = apihttp.NewTransport(ctx, base, creds...); err != nil {
			return nil, fmt.Errorf("objstore: %s: looking for credentials: %w", s.name, err)
		}
	}
	s.http = &http.Client{Transport: base, CheckRedirect: remote.NoRedirect}
	// The client has the credentials already, or is to have none; the SDK need not look for them again.
	opts := []option.ClientOption{option.WithHTTPClient(s.http), option.WithoutAuthentication()}
	if endpoint != nil {
		opts = append(opts, option.WithEndpoint(endpoint.JoinPath("storage/v1/").String()))
	}
	if s.client, err = storage.NewClient(ctx, opts...); err != nil {
		return nil, fmt.Errorf("objstore: %s: %w", s.name, err)
	}
	s.bucket = s.client.Bucket(o.Bucket).Retryer(storage.WithMaxAttempts(readAttempts),
		storage.WithBackoff(gax.Backoff{Initial: retryDelay, Max: maxRetryDelay, Multiplier: 2}))
	return s, nil
}

// endpointOf returns the server that is not Google's, if one is meant.
func endpointOf(o Options) (*url.URL, error) {
	raw, from := o.Endpoint, "the endpoint"
	if raw == "" {
		if raw, from = os.Getenv("STORAGE_EMULATOR_HOST"), "STORAGE_EMULATOR_HOST"; raw == "" {
			return nil, nil
		}
		if !strings.Contains(raw, "://") {
			raw = "http://" + raw
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("objstore: gcs: %s must be http://host:port or https://host:port, without credentials and path", from)
	}
	return u, nil
}

func (s *store) String() string { return s.name }

// Close closes idle connections.
func (s *store) Close() error {
	s.http.CloseIdleConnections()
	return s.client.Close()
}

// object returns a handle for reads.
func (s *store) object(key string) *storage.ObjectHandle { return s.bucket.Object(s.prefix + key) }

// once returns a handle for a write: after a lost reply a second try of a conditional write meets the first one, and its refusal would
// be taken for a lost race. The caller knows that the outcome is unknown, and looks.
func (s *store) once(key string) *storage.ObjectHandle {
	return s.object(key).Retryer(storage.WithPolicy(storage.RetryNever))
}

// never is a generation that no object has. The service compares, also with an ETag that is none of its own.
const never = math.MaxInt64

// generation returns what ifGenerationMatch says for an ETag. 0 would mean that there is no object.
func generation(etag string) int64 {
	if g, err := strconv.ParseInt(etag, 10, 64); err == nil && g > 0 {
		return g
	}
	return never
}

func etagOf(generation int64) string { return strconv.FormatInt(generation, 10) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.name, key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := s.check(ctx, "put", key); err != nil {
		return objstore.Info{}, err
	}
	object := s.once(key)
	etag, match := cond.Match()
	switch {
	case cond.IsIfAbsent():
		object = object.If(storage.Conditions{DoesNotExist: true})
	case match:
		object = object.If(storage.Conditions{GenerationMatch: generation(etag)})
	}
	ctx, fate := remote.Track(ctx)
	w := object.NewWriter(ctx)
	w.ChunkSize = 0 // one request, and no copy of the body
	w.ContentType = "application/octet-stream"
	w.Metadata = meta
	w.CRC32C, w.SendCRC32C = crc32.Checksum(body, castagnoli), true // the service compares before the object is there
	// What Write meets, Close says: it waits for the answer.
	_, _ = w.Write(body)
	if err := w.Close(); err != nil {
		return objstore.Info{}, s.err(ctx, "put", key, err, fate)
	}
	a := w.Attrs()
	if a == nil || a.Generation <= 0 || a.Size != int64(len(body)) {
		return objstore.Info{}, &objstore.Error{Store: s.name, Op: "put", Key: key, Kind: objstore.ErrUnknown, Err: fmt.Errorf("the answer does not describe the object: %+v", a)}
	}
	return objstore.Info{Key: key, Size: a.Size, ETag: etagOf(a.Generation), Modified: a.Updated}, nil
}

func (s *store) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, s.invalid("get", key, err)
	}
	if r.Offset < 0 || r.Length < 0 {
		return nil, objstore.Info{}, s.invalid("get", key, fmt.Errorf("range at %d of %d bytes", r.Offset, r.Length))
	}
	if err := s.check(ctx, "get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	length := r.Length
	if length == 0 {
		length = -1 // up to the end
	}
	ctx, fate := remote.TrackAtMost(ctx, mostRequests)
	in, err := s.object(key).NewRangeReader(ctx, r.Offset, length)
	if err != nil {
		return nil, objstore.Info{}, s.err(ctx, "get", key, err, fate)
	}
	a := in.Attrs
	info := objstore.Info{Key: key, Size: a.Size, ETag: etagOf(a.Generation), Modified: a.LastModified, Metadata: lower(in.Metadata())}
	kind := objstore.ErrUnavailable
	if a.Generation <= 0 || a.Size < 0 {
		err = fmt.Errorf("the answer names generation %d and size %d", a.Generation, a.Size)
	} else {
		kind, err = remote.Arrived(r, a.StartOffset, a.StartOffset+in.Remain(), a.Size)
	}
	if err != nil {
		in.Close()
		return nil, objstore.Info{}, &objstore.Error{Store: s.name, Op: "get", Key: key, Kind: kind, Err: err}
	}
	return remote.NewBody(s.name, key, in, in.Remain()), info, nil
}

// lower returns names in lower case, as they were written: HTTP has changed them on the way.
func lower(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ToLower(k)] = v
	}
	return out
}

func (s *store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, s.invalid("head", key, err)
	}
	if err := s.check(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	ctx, fate := remote.Track(ctx)
	a, err := s.object(key).Attrs(ctx)
	if err != nil {
		return objstore.Info{}, s.err(ctx, "head", key, err, fate)
	}
	return objstore.Info{Key: key, Size: a.Size, ETag: etagOf(a.Generation), Modified: a.Updated, Metadata: lower(a.Metadata)}, nil
}

// listed are the attributes that a listing asks for.
var listed = []string{"Name", "Size", "Generation", "Updated"}

// List asks with startOffset, which includes the key itself, and follows page tokens until it has what was asked for.
func (s *store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.name, prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	q := &storage.Query{Prefix: s.prefix + prefix, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection(listed); err != nil {
		return objstore.Page{}, s.invalid("list", prefix, err)
	}
	most := limit
	if startAfter != "" {
		q.StartOffset = s.prefix + startAfter
		most = min(limit+1, objstore.MaxListLimit) // the service's largest page
	}
	ctx, fate := remote.Track(ctx)
	it := s.bucket.Objects(ctx, q)
	it.PageInfo().MaxSize = most
	page, last := objstore.Page{}, ""
	for {
		// The end of what has arrived and a token for more: there is no need to fetch it, for More may be wrong about a full page.
		if len(page.Objects) == limit && it.PageInfo().Remaining() == 0 {
			page.More = it.PageInfo().Token != ""
			return page, nil
		}
		a, err := it.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return page, nil
		case err != nil:
			return objstore.Page{}, s.err(ctx, "list", prefix, err, fate)
		}
		key := strings.TrimPrefix(a.Name, s.prefix)
		if key <= last {
			// Everything that pages through a listing relies on the order.
			return objstore.Page{}, &objstore.Error{Store: s.name, Op: "list", Key: prefix, Kind: objstore.ErrDenied,
				Err: fmt.Errorf("the bucket lists %q after %q: buckets without order cannot be used", key, last)}
		}
		last = key
		if key <= startAfter {
			continue
		}
		if len(page.Objects) == limit {
			page.More = true
			return page, nil
		}
		page.Objects = append(page.Objects, objstore.Info{Key: key, Size: a.Size, ETag: etagOf(a.Generation), Modified: a.Updated})
	}
}

func (s *store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.invalid("delete", key, err)
	}
	if err := s.check(ctx, "delete", key); err != nil {
		return err
	}
	ctx, fate := remote.Track(ctx)
	if err := s.once(key).Delete(ctx); err != nil {
		if err = s.err(ctx, "delete", key, err, fate); !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// check refuses a key that is too long with its prefix, and a request that was given up already.
func (s *store) check(ctx context.Context, op, key string) error {
	if n := len(s.prefix) + len(key); n > objstore.MaxKeyBytes {
		return s.invalid(op, key, fmt.Errorf("with its prefix it has %d bytes, Google allows %d", n, objstore.MaxKeyBytes))
	}
	return objstore.CheckContext(ctx, s.name, op, key)
}

func (s *store) invalid(op, key string, err error) error {
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: objstore.ErrInvalid, Err: err}
}
