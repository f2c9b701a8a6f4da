package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore/localdir"
)

const (
	// defaultListen is where a node listens, and where 'btrlog dev' has its first one.
	defaultListen = "127.0.0.1:4460"

	envStore = "BTRLOG_STORE"
	envNodes = "BTRLOG_NODES"
	envRoot  = "BTRLOG_ROOT"
)

// connection holds the flags that say which cluster a command works on.
type connection struct {
	store   string
	nodes   []string
	root    string
	timeout time.Duration
	verbose bool
}

func (c *connection) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&c.store, "store", "", "the cluster's object store, as a URL such as file:///var/lib/btrlog/store (environment: "+envStore+")")
	f.StringSliceVar(&c.nodes, "nodes", nil, "log nodes that give access to the store, as host:port,host:port; one that answers is enough (environment: "+
		envNodes+"; default "+defaultListen+")")
	f.StringVar(&c.root, "root", "", "prefix of the cluster's keys in the store (environment: "+envRoot+")")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "longest wait for an answer")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "show the client's log messages on standard error")
	configurable(f, "")
}

// config turns the settings into a client's configuration. Of --store and --nodes the one from the higher place counts; both from one place
// are refused, because it would be a guess which of them is meant.
func (c *connection) config(cmd *cobra.Command) (btrlog.Config, error) {
	cfg := btrlog.Config{StoreURL: c.store, Nodes: c.nodes, Root: c.root, Timeout: c.timeout, Logger: logger(cmd, c.verbose)}
	if c.timeout <= 0 {
		return cfg, usagef("--timeout is %v; it must be positive", c.timeout)
	}
	switch store, nodes := sourceOf(cmd, "store"), sourceOf(cmd, "nodes"); {
	case store.rank == fromDefault && nodes.rank == fromDefault:
		cfg.Nodes = []string{defaultListen}
	case store.rank > nodes.rank:
		cfg.Nodes = nil
	case nodes.rank > store.rank:
		cfg.StoreURL = ""
	case store.rank == fromEnv:
		return cfg, usagef("%s and %s are set; one of them, or a flag, says where the cluster is", envStore, envNodes)
	default:
		return cfg, usagef("%s and %s are given; one of them says where the cluster is", named("store", store), named("nodes", nodes))
	}
	if cfg.StoreURL != "" {
		if err := checkStoreURL(cfg.StoreURL); err != nil {
			return cfg, err
		}
	}
	for _, n := range cfg.Nodes {
		if err := checkHostPort(n); err != nil {
			return cfg, &usageError{err}
		}
	}
	if cfg.StoreURL == "" && len(cfg.Nodes) == 0 {
		return cfg, usagef("--store or --nodes is empty")
	}
	return cfg, nil
}

// named is a setting as a message names it.
func named(key string, s source) string {
	if s.rank == fromFile {
		return key + " (" + s.place + ")"
	}
	return s.place
}

// checkStoreURL says what is wrong with an object store's URL that a user gave: a usage error. The URL is repeated only where it is a path,
// since another may carry credentials.
func checkStoreURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return usagef("the store's URL is malformed; write for example file:///var/lib/btrlog/store")
	case u.Scheme == "":
		return usagef("the store %q is no URL; write it as file://%s", raw, absolute(raw))
	case otherNames[u.Scheme] != "":
		return usagef("the scheme %s:// is written %s:// here; %s", u.Scheme, otherNames[u.Scheme], storeForms)
	case clouds[u.Scheme].form != "" && u.Host == "":
		return usagef("the store's URL names no %s; write %s", clouds[u.Scheme].bucket, clouds[u.Scheme].form)
	case leftOut[u.Scheme] != "":
		return usagef("this program was built without the backend for %s:// (build tag %s); %s", u.Scheme, leftOut[u.Scheme], storeForms)
	case u.Scheme == "http", u.Scheme == "https", clouds[u.Scheme].form != "":
		return nil // their backends say more
	case u.Scheme != "file":
		return usagef("there is no backend for scheme %q; %s", u.Scheme, storeForms)
	case u.Opaque != "", u.Host != "" && u.Host != "localhost":
		return usagef("the store %q names the host %q; a directory is written with three slashes, this one as file://%s", raw, u.Host, absolute(u.Host+u.Path+u.Opaque))
	case u.RawQuery != "" || u.Fragment != "":
		return usagef("the store %q has something behind the path; write file:///absolute/path alone", raw)
	case u.Path == "":
		return usagef("the store %q has no path; write file:///absolute/path", raw)
	}
	return nil
}

// connect opens a client. The caller closes it.
func (c *connection) connect(ctx context.Context, cmd *cobra.Command) (*btrlog.Client, error) {
	cfg, err := c.config(cmd)
	if err != nil {
		return nil, err
	}
	if err := checkStoreExists(cfg.StoreURL); err != nil {
		return nil, err
	}
	client, err := btrlog.Connect(ctx, cfg)
	if len(cfg.Nodes) > 0 && errors.Is(err, btrlog.ErrUnavailable) {
		hint := "is the cluster running? 'btrlog dev' starts one; --nodes or --store says where another is"
		if strings.Contains(err.Error(), "http2: ") {
			hint = "what answers there is no log node; --nodes or --store says where the cluster is"
		}
		err = &hinted{err, hint}
	}
	return client, err
}

// checkStoreExists refuses the URL of a local directory that holds no store. Opening it would make an empty one: a mistyped path, or one
// whose file system is not mounted, would look like a cluster without logs.
func checkStoreExists(rawURL string) error {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "file" {
		return nil // the store's own error is better
	}
	if there, err := localdir.Exists(u.Path); err == nil && !there {
		if names, err := os.ReadDir(u.Path); err == nil && len(names) > 0 {
			return nil // it holds something else, which the store's own error names
		}
		return &hinted{fmt.Errorf("there is no object store in %s", u.Path), "is the path right, and its file system mounted? The first node of a cluster makes its store"}
	}
	return nil
}

// infoFor is client.Info for a command that needs it: its errors name what the user asked for.
func infoFor(ctx context.Context, client *btrlog.Client, op, name string) (btrlog.LogInfo, error) {
	info, err := client.Info(ctx, name)
	var e *btrlog.Error
	if errors.As(err, &e) {
		named := *e
		named.Op = op
		return info, &named
	}
	return info, err
}

// with runs f with a client, on the name that is the command's argument.
func (c *connection) with(f func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		ctx := cmd.Context()
		client, err := c.connect(ctx, cmd)
		if err != nil {
			return interrupted(ctx, err)
		}
		defer client.Close() // reports an error of a store's Close only; nothing of this command depends on it
		return interrupted(ctx, f(ctx, cmd, client, args))
	}
}

// interrupted says that a signal ended the command, where an error of the client would speak of a cancelled context.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !isSaid(err) {
		return &hinted{errInterrupted, ""}
	}
	return err
}

// logger writes warnings and more with verbose. Without it the one line of the error says what there is to say.
func logger(cmd *cobra.Command, verbose bool) *slog.Logger {
	if !verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
