// Package azure keeps objects in Azure Blob Storage or a server that speaks its protocol. Importing it registers the URL scheme "az":
//
//	az://container?account=name                                       credentials as the SDK's default chain finds them
//	az://container/prefix?endpoint=https://name.blob.core.windows.net
//	az://container?endpoint=http://127.0.0.1:10000/devstoreaccount1   the emulator Azurite, with its well-known key
//
// The account is the one of the URL or of AZURE_STORAGE_ACCOUNT. Credentials are the first of these that is there:
// AZURE_STORAGE_CONNECTION_STRING (only without account and endpoint in the URL), AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, and then
// what azidentity.NewDefaultAzureCredential finds: environment, workload identity, managed identity, the tools of a developer. It is a
// module of its own, so that nobody who embeds the client or the engine gets the SDK with it.
//
// Objects are block blobs, each written by one Put Blob with If-None-Match: * or If-Match. Azure refuses the first with 409
// BlobAlreadyExists where S3 says 412. A blob's ETag is made by the service and changes with every write. Three rules of Azure show
// through:
//
//   - A name has at most 254 elements, and none ends in a dot, which Azure drops: such keys are refused as invalid.
//   - Names of metadata are identifiers, so a hyphen is stored as "_h", and a digit in front gets "_d" before it. A value that is
//     empty or begins with "=" gets a "=" before it.
//   - An account with a hierarchical namespace lists in another order than that of the bytes. It cannot be used.
package azure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/remote"
)

func init() { objstore.Register("az", open) }

// Options of a store beyond what the environment says.
type Options struct {
	Container string
	// Prefix is put before every key, without slashes at its ends; may be empty.
	Prefix string
	// Account is the storage account's name; empty is what the environment or the endpoint says.
	Account string
	// Endpoint is the URL of the account's blob service; empty is https://ACCOUNT.blob.core.windows.net. Emulators have the account
	// in its path.
	Endpoint string
	// Key, SAS or Credential, the first that is given, replace what the environment says; for tests, and for programs that have
	// their own.
	Key        string
	SAS        string
	Credential azcore.TokenCredential
	// Transport replaces the HTTP client's; nil is one with bounded connections and time limits.
	Transport http.RoundTripper
}

// readRetries is how often the SDK repeats a read, with jitter; writes are tried once, whoever asked decides.
const (
	readRetries   = 2
	retryDelay    = 200 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// The account of Azurite and of the emulators before it, and its key: the same everywhere, and no secret.
const (
	emulatorAccount = "devstoreaccount1"
	emulatorKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

type store struct {
	client    *container.Client
	transport *http.Client
	prefix    string // with a slash at its end, or empty
	name      string
}

func open(ctx context.Context, u *url.URL) (_ objstore.Store, err error) {
	var o Options
	o.Container, o.Prefix, err = remote.ReadURL(u, "az://container/prefix?account=name", map[string]remote.Param{
		"account": remote.Text(&o.Account), "endpoint": remote.Text(&o.Endpoint)})
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New opens a store. It looks for credentials, and makes no request of the store: objstore.Probe does. Errors name what is missing.
func New(_ context.Context, o Options) (objstore.Store, error) {
	switch {
	case o.Container == "":
		return nil, fmt.Errorf("objstore: azure: no container given")
	case o.Prefix != "":
		err := objstore.CheckKey(o.Prefix)
		if err == nil {
			err = checkName(o.Prefix)
		}
		if err != nil {
			return nil, fmt.Errorf("objstore: azure: prefix %q: %w", o.Prefix, err)
		}
	}
	s := &store{name: "az://" + o.Container}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
		s.name += "/" + o.Prefix
	}
	var base http.RoundTripper = remote.NewTransport()
	if o.Transport != nil {
		base = o.Transport
	}
	s.transport = &http.Client{Transport: remote.Tracker{Base: base}, CheckRedirect: remote.NoRedirect}
	if err := s.connect(o); err != nil {
		return nil, err
	}
	if u, err := url.Parse(s.client.URL()); err == nil {
		s.name += " at " + u.Host
	}
	return s, nil
}

func (s *store) connect(o Options) error {
	opts := &container.ClientOptions{}
	opts.Transport = s.transport
	opts.Retry = policy.RetryOptions{MaxRetries: readRetries, RetryDelay: retryDelay, MaxRetryDelay: maxRetryDelay}
	opts.Telemetry = policy.TelemetryOptions{ApplicationID: "btrlog"}

	var err error
	own := o.Key != "" || o.SAS != "" || o.Credential != nil
	if text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" && o.Account == "" && o.Endpoint == "" && !own {
		s.client, err = container.NewClientFromConnectionString(text, o.Container, opts)
		if err != nil {
			return fmt.Errorf("objstore: %s: AZURE_STORAGE_CONNECTION_STRING is malformed", s.name) // it is not repeated, it is a secret
		}
		return nil
	}
	account, service, err := s.service(o)
	if err != nil {
		return err
	}
	where := service + "/" + url.PathEscape(o.Container)
	key, sas := o.Key, o.SAS
	if !own {
		key, sas = os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
		if key == "" && sas == "" && account == emulatorAccount {
			key = emulatorKey
		}
	}
	switch {
	case key != "" && account == "":
		return fmt.Errorf("objstore: %s: a key needs the account's name; add ?account=… to the URL, or set AZURE_STORAGE_ACCOUNT", s.name)
	case key != "":
		cred, e := container.NewSharedKeyCredential(account, key)
		if e != nil {
			return fmt.Errorf("objstore: %s: the account's key is malformed: it is base64", s.name)
		}
		s.client, err = container.NewClientWithSharedKeyCredential(where, cred, opts)
	case sas != "":
		s.client, err = container.NewClientWithNoCredential(where+"?"+strings.TrimPrefix(sas, "?"), opts)
	default:
		cred := o.Credential
		if cred == nil {
			if cred, err = azidentity.NewDefaultAzureCredential(nil); err != nil {
				return fmt.Errorf("objstore: %s: looking for credentials: %w", s.name, err)
			}
		}
		s.client, err = container.NewClient(where, cred, opts)
	}
	if err != nil {
		return fmt.Errorf("objstore: %s: %w", s.name, withoutQuery(err))
	}
	return nil
}

// service returns the account and the URL of its blob service, without a slash at its end.
func (s *store) service(o Options) (account, service string, err error) {
	if account = o.Account; account == "" {
		account = os.Getenv("AZURE_STORAGE_ACCOUNT")
	}
	if o.Endpoint == "" {
		if account == "" {
			return "", "", fmt.Errorf("objstore: %s: no account; add ?account=… or ?endpoint=… to the URL, or set AZURE_STORAGE_ACCOUNT", s.name)
		}
		for _, c := range account {
			// It becomes a part of a host's name.
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') {
				return "", "", fmt.Errorf("objstore: %s: the account %q is no name of a storage account: lower-case letters and digits", s.name, account)
			}
		}
		return account, "https://" + account + ".blob.core.windows.net", nil
	}
	e, err := url.Parse(o.Endpoint)
	if err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" || e.User != nil || e.RawQuery != "" || e.ForceQuery || e.Fragment != "" {
		return "", "", fmt.Errorf("objstore: azure: the endpoint must be https://account.blob.core.windows.net, or http://host:port/account of an emulator, without credentials")
	}
	path := strings.Trim(e.Path, "/")
	if strings.Contains(path, "/") {
		return "", "", fmt.Errorf("objstore: azure: the endpoint's path is the account of an emulator and nothing else; the container stands before it, as az://container")
	}
	if o.Account == "" { // the endpoint names it; the environment may mean another
		if path != "" {
			account = path
		} else if first, rest, _ := strings.Cut(e.Hostname(), "."); strings.HasPrefix(rest, "blob.") {
			account = first
		}
	}
	return account, strings.TrimRight(e.String(), "/"), nil
}

// once is for writes: after a lost reply a second try of a conditional write meets the first one, and its refusal would be taken for
// a lost race. The caller knows that the outcome is unknown, and looks.
func once(ctx context.Context) context.Context {
	return policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
}

func (s *store) String() string { return s.name }

// Close closes idle connections.
func (s *store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

func (s *store) blob(key string) *blockblob.Client {
	return s.client.NewBlockBlobClient(s.prefix + key)
}

// ETags are quoted in headers and, by the service, not in listings.
func bare(etag *azcore.ETag) string {
	if etag == nil {
		return ""
	}
	return strings.Trim(string(*etag), `"`)
}

func (s *store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.name, key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := s.check(ctx, "put", key); err != nil {
		return objstore.Info{}, err
	}
	opts := &blockblob.UploadOptions{Metadata: encodeMetadata(meta)}
	etag, match := cond.Match()
	switch {
	case cond.IsIfAbsent():
		every := azcore.ETagAny
		opts.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: &every}}
	case match:
		quoted := azcore.ETag(`"` + etag + `"`) // never the bare *, which every blob matches
		opts.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &quoted}}
	}
	ctx, fate := remote.Track(ctx)
	out, err := s.blob(key).Upload(once(ctx), streaming.NopCloser(bytes.NewReader(body)), opts)
	if err != nil {
		return objstore.Info{}, s.err("put", key, err, match, fate.Sent())
	}
	return objstore.Info{Key: key, Size: int64(len(body)), ETag: bare(out.ETag), Modified: value(out.LastModified)}, nil
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
	out, err := s.blob(key).DownloadStream(ctx, &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: r.Offset, Count: r.Length}})
	if err != nil {
		return nil, objstore.Info{}, s.err("get", key, err, false, true)
	}
	info := objstore.Info{Key: key, Size: value(out.ContentLength), ETag: bare(out.ETag), Modified: value(out.LastModified), Metadata: decodeMetadata(out.Metadata)}
	want := info.Size
	if r != objstore.Whole {
		from, to, size, err := remote.ContentRange(value(out.ContentRange))
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

func (s *store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, s.invalid("head", key, err)
	}
	if err := s.check(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	out, err := s.blob(key).GetProperties(ctx, nil)
	if err != nil {
		return objstore.Info{}, s.err("head", key, err, false, true)
	}
	return objstore.Info{Key: key, Size: value(out.ContentLength), ETag: bare(out.ETag), Modified: value(out.LastModified), Metadata: decodeMetadata(out.Metadata)}, nil
}

// List asks with startFrom, which includes the key itself, and follows markers until it has what was asked for: a page of the service may
// be short, or empty, before the end. A server that ignores startFrom is read from the beginning of the prefix.
func (s *store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.name, prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	most, full := int32(limit), s.prefix+prefix
	in := &container.ListBlobsFlatOptions{MaxResults: &most}
	if full != "" {
		in.Prefix = &full
	}
	if startAfter > prefix { // otherwise all that has the prefix comes after it, or is it
		if !strings.HasPrefix(startAfter, prefix) {
			return objstore.Page{}, nil // behind all that has the prefix
		}
		from := s.prefix + startAfter
		most++
		in.StartFrom = &from
	}
	page, last := objstore.Page{}, ""
	for pager := s.client.NewListBlobsFlatPager(in); pager.More(); {
		out, err := pager.NextPage(ctx)
		if err != nil {
			return objstore.Page{}, s.err("list", prefix, err, false, true)
		}
		if out.Segment == nil {
			continue
		}
		for _, o := range out.Segment.BlobItems {
			key := strings.TrimPrefix(value(o.Name), s.prefix)
			if key <= last {
				// Everything that pages through a listing relies on the order.
				return objstore.Page{}, &objstore.Error{Store: s.name, Op: "list", Key: prefix, Kind: objstore.ErrDenied,
					Err: fmt.Errorf("the container lists %q after %q: it cannot be used; does its account have a hierarchical namespace?", key, last)}
			}
			last = key
			if key <= startAfter {
				continue
			}
			if len(page.Objects) == limit {
				page.More = true
				return page, nil
			}
			info := objstore.Info{Key: key}
			if p := o.Properties; p != nil {
				info.Size, info.ETag, info.Modified = value(p.ContentLength), bare(p.ETag), value(p.LastModified)
			}
			page.Objects = append(page.Objects, info)
		}
		if len(page.Objects) == limit {
			page.More = pager.More()
			return page, nil
		}
	}
	return page, nil
}

// Delete deletes the blob, with snapshots that somebody may have made of it: Azure refuses to delete it without them.
func (s *store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.invalid("delete", key, err)
	}
	if err := s.check(ctx, "delete", key); err != nil {
		return err
	}
	all := blob.DeleteSnapshotsOptionTypeInclude
	ctx, fate := remote.Track(ctx)
	if _, err := s.blob(key).Delete(once(ctx), &blob.DeleteOptions{DeleteSnapshots: &all}); err != nil {
		if err = s.err("delete", key, err, false, fate.Sent()); !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// check refuses a key that Azure would change, and a request that was given up already.
func (s *store) check(ctx context.Context, op, key string) error {
	if err := checkName(s.prefix + key); err != nil {
		return s.invalid(op, key, err)
	}
	return objstore.CheckContext(ctx, s.name, op, key)
}

func (s *store) invalid(op, key string, err error) error {
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: objstore.ErrInvalid, Err: err}
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
