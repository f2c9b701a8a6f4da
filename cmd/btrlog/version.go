package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/lst"
)

// versions is what 'btrlog version' prints. Two programs work together if their ranges of the wire overlap; a program reads data
// of its own format and older ones.
type versions struct {
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	Wire       int    `json:"wire_version"`
	WireOldest int    `json:"wire_oldest"`
	Metadata   int    `json:"metadata_format"`
	Archive    int    `json:"archive_format"`
	Storage    int    `json:"lst_format"`
}

func readVersions() versions {
	v := versions{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Wire: wire.Version, WireOldest: wire.OldestVersion,
		Metadata: meta.FormatVersion, Archive: archive.FormatVersion, Storage: lst.FormatVersion}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value + v.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += "+modified"
		}
	}
	return v
}

func (v versions) print(w io.Writer) error {
	return table(w, func(w io.Writer) {
		row := func(key, format string, args ...any) { fmt.Fprintf(w, key+"\t"+format+"\n", args...) }
		row("btrlog", "%s", v.Version)
		if v.Revision != "" {
			row("revision", "%s", v.Revision)
		}
		row("wire protocol", "%d (speaks %d to %d)", v.Wire, v.WireOldest, v.Wire)
		row("metadata format", "%d", v.Metadata)
		row("archive format", "%d", v.Archive)
		row("lst format", "%d", v.Storage)
		row("go", "%s, %s", v.Go, v.Platform)
	})
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program, its protocol and its formats",
		Example: `  btrlog version
  btrlog version --json | jq .wire_version`,
		Args: noArgs,
	}
	jsonFlag(cmd, &asJSON, "the versions as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if asJSON {
			return printJSON(cmd.OutOrStdout(), readVersions())
		}
		return readVersions().print(cmd.OutOrStdout())
	}
	return cmd
}
