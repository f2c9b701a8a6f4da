// Package s3 keeps objects in Amazon S3 or a server that speaks its protocol. Importing it registers the URL scheme "s3":
//
//	s3://bucket                            credentials and region as every AWS tool finds them
//	s3://bucket/prefix?region=eu-west-1
//	s3://bucket?endpoint=http://127.0.0.1:7070&path-style=true
//
// It is a module of its own, so that nobody who embeds the client or the engine gets the SDK with it.
//
// What BtrLog relies on is that PutObject honours If-None-Match: * and If-Match. Servers exist that accept both and ignore them;
// objstore.Probe, which every log node runs at its start, refuses those.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/remote"
)

func init() { objstore.Register("s3", open) }

// Options of a store beyond what the environment says. The zero value is Amazon S3 as the environment describes it.
type Options struct {
	Bucket string
	// Prefix is put before every key, without slashes at its ends; may be empty. S3 bounds both together to
	// objstore.MaxKeyBytes.
	Prefix string
	// Region; empty is what the environment says, and us-east-1 with an Endpoint of one's own.
	Region string
	// Endpoint is the server's URL; empty is Amazon's of the region.
	Endpoint string
	// PathStyle puts the bucket into the path and not into the host's name; most servers other than Amazon's need it.
	PathStyle bool
	// Profile is the one of the shared configuration files; empty is the default.
	Profile string
	// Credentials replace those that the environment names; for tests, and for programs that have their own.
	Credentials aws.CredentialsProvider
	// Transport replaces the HTTP client's; nil is one with bounded connections and time limits.
	Transport http.RoundTripper
}

// readAttempts is how often the SDK tries a read, with jitter; writes are tried once, whoever asked decides.
const readAttempts = 3

type store struct {
	client *s3.Client
	bucket string
	prefix string // with a slash at its end, or empty
	name   string
}

func open(ctx context.Context, u *url.URL) (_ objstore.Store, err error) {
	var o Options
	o.Bucket, o.Prefix, err = remote.ReadURL(u, "s3://bucket/prefix?region=eu-west-1", map[string]remote.Param{
		"region": remote.Text(&o.Region), "endpoint": remote.Text(&o.Endpoint), "profile": remote.Text(&o.Profile),
		"path-style": func(v string) (err error) {
			if o.PathStyle, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("true or false, not %q", v)
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New opens a store. It looks for credentials and region, and makes no request of the store: objstore.Probe does. Errors name
// what is missing.
func New(ctx context.Context, o Options) (objstore.Store, error) {
	switch {
	case o.Bucket == "":
		return nil, fmt.Errorf("objstore: s3: no bucket given")
	case o.Prefix != "" && objstore.CheckKey(o.Prefix) != nil:
		return nil, fmt.Errorf("objstore: s3: prefix %q: %w", o.Prefix, objstore.CheckKey(o.Prefix))
	}
	s := &store{bucket: o.Bucket, name: "s3://" + o.Bucket}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
		s.name += "/" + o.Prefix
	}
	if o.Endpoint != "" {
		e, err := url.Parse(o.Endpoint)
		if err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" || e.User != nil {
			return nil, fmt.Errorf("objstore: s3: the endpoint must be http://host:port or https://host:port, without credentials")
		}
		s.name += " at " + e.Host
	}
	// The SDK's own kind of client, because it knows AWS_CA_BUNDLE.
	client := awshttp.NewBuildableClient().WithTimeout(0).WithDialerOptions(func(d *net.Dialer) {
		d.Timeout, d.KeepAlive = remote.DialTimeout, 30*time.Second
	}).WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost, t.MaxConnsPerHost, t.MaxIdleConns, t.IdleConnTimeout = remote.Connections, remote.Connections, remote.Connections, remote.IdleTimeout
		t.TLSHandshakeTimeout, t.ResponseHeaderTimeout, t.DisableCompression = remote.DialTimeout, remote.HeaderTimeout, true
	})
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client),
		// Checksums that only some servers know are left out: every body of BtrLog has its own, and the signature covers it.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = readAttempts })
		}),
	}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(o.Profile))
	}
	if o.Credentials != nil {
		load = append(load, config.WithCredentialsProvider(o.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("objstore: %s: reading the AWS configuration: %w", s.name, err)
	}
	if cfg.Region == "" {
		if o.Endpoint == "" {
			return nil, fmt.Errorf("objstore: %s: no region; add ?region=… to the URL, or set AWS_REGION", s.name)
		}
		cfg.Region = "us-east-1"
	}
	s.client = s3.NewFromConfig(cfg, func(so *s3.Options) {
		so.UsePathStyle = o.PathStyle
		if o.Transport != nil {
			// Not above, where AWS_CA_BUNDLE asks for the SDK's own kind of client.
			so.HTTPClient = &http.Client{Transport: o.Transport, CheckRedirect: remote.NoRedirect}
		}
		if o.Endpoint != "" {
			so.BaseEndpoint = aws.String(o.Endpoint)
		}
	})
	return s, nil
}

// once is for writes: after a lost reply a second try of a conditional write meets the first one, and its 412 would be taken for
// a lost race. The caller knows that the outcome is unknown, and looks.
func once(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

func (s *store) String() string { return s.name }

// Close leaves idle connections to their time limit: the SDK's client cannot close them.
func (s *store) Close() error { return nil }

func (s *store) key(key string) *string { return aws.String(s.prefix + key) }

func (s *store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.name, key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "put", key); err != nil {
		return objstore.Info{}, err
	}
	in := &s3.PutObjectInput{Bucket: &s.bucket, Key: s.key(key), Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))), Metadata: meta}
	etag, match := cond.Match()
	switch {
	case cond.IsIfAbsent():
		in.IfNoneMatch = aws.String("*")
	case match:
		in.IfMatch = &etag
	}
	ctx, sent := tracked(ctx)
	out, err := s.client.PutObject(ctx, in, once)
	if err != nil {
		return objstore.Info{}, s.err("put", key, err, match, sent.Load())
	}
	return objstore.Info{Key: key, Size: int64(len(body)), ETag: aws.ToString(out.ETag)}, nil
}

func (s *store) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, s.invalid("get", key, err)
	}
	if r.Offset < 0 || r.Length < 0 {
		return nil, objstore.Info{}, s.invalid("get", key, fmt.Errorf("range at %d of %d bytes", r.Offset, r.Length))
	}
	if err := objstore.CheckContext(ctx, s.name, "get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	in := &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(key)}
	if r != objstore.Whole {
		in.Range = aws.String(rangeHeader(r))
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return nil, objstore.Info{}, s.err("get", key, err, false, true)
	}
	info := objstore.Info{Key: key, Size: aws.ToInt64(out.ContentLength), ETag: aws.ToString(out.ETag), Modified: aws.ToTime(out.LastModified), Metadata: metadata(out.Metadata)}
	want := info.Size
	if r != objstore.Whole {
		from, to, size, err := remote.ContentRange(aws.ToString(out.ContentRange))
		kind := objstore.ErrUnavailable
		if err == nil {
			kind, err = remote.Arrived(r, from, to, size)
		}
		if err != nil {
			out.Body.Close()
			return nil, objstore.Info{}, &objstore.Error{Store: s.name, Op: "get", Key: key, Kind: kind, Err: err}
		}
		info.Size, want = size, to-from
	}
	return remote.NewBody(s.name, key, out.Body, want), info, nil
}

func rangeHeader(r objstore.Range) string {
	if r.Length == 0 {
		return fmt.Sprintf("bytes=%d-", r.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)
}

func (s *store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, s.invalid("head", key, err)
	}
	if err := objstore.CheckContext(ctx, s.name, "head", key); err != nil {
		return objstore.Info{}, err
	}
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	if err != nil {
		return objstore.Info{}, s.err("head", key, err, false, true)
	}
	return objstore.Info{Key: key, Size: aws.ToInt64(out.ContentLength), ETag: aws.ToString(out.ETag), Modified: aws.ToTime(out.LastModified), Metadata: metadata(out.Metadata)}, nil
}

// metadata returns names in lower case, as they were written: HTTP has changed them on the way.
func metadata(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ToLower(k)] = v
	}
	return out
}

func (s *store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.name, prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: s.key(prefix), MaxKeys: aws.Int32(int32(limit))}
	if startAfter != "" {
		in.StartAfter = s.key(startAfter)
	}
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return objstore.Page{}, s.err("list", prefix, err, false, true)
	}
	page := objstore.Page{More: aws.ToBool(out.IsTruncated) && len(out.Contents) > 0}
	last := startAfter
	for _, o := range out.Contents {
		key := strings.TrimPrefix(aws.ToString(o.Key), s.prefix)
		if key <= last {
			// Everything that pages through a listing relies on the order; a directory bucket has none.
			return objstore.Page{}, &objstore.Error{Store: s.name, Op: "list", Key: prefix, Kind: objstore.ErrDenied,
				Err: fmt.Errorf("the bucket lists %q after %q: buckets without order cannot be used", key, last)}
		}
		last = key
		page.Objects = append(page.Objects, objstore.Info{Key: key, Size: aws.ToInt64(o.Size), ETag: aws.ToString(o.ETag), Modified: aws.ToTime(o.LastModified)})
	}
	return page, nil
}

func (s *store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.invalid("delete", key, err)
	}
	if err := objstore.CheckContext(ctx, s.name, "delete", key); err != nil {
		return err
	}
	ctx, sent := tracked(ctx)
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(key)}, once)
	if err != nil {
		if err = s.err("delete", key, err, false, sent.Load()); !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (s *store) invalid(op, key string, err error) error {
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: objstore.ErrInvalid, Err: err}
}
