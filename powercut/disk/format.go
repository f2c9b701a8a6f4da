package disk

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Format makes a file system on a device that was not used yet: kind is ext4 or xfs, and its mkfs must be installed. dir is for a
// temporary file.
func (d *Disk) Format(kind, dir string) error {
	path := filepath.Join(dir, d.name+".mkfs")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	if err := f.Truncate(d.size); err != nil {
		return err
	}
	args := map[string][]string{
		// Without lazy initialisation: the kernel would write the inode tables while the test runs.
		"ext4": {"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"},
		"xfs":  {"mkfs.xfs", "-q", "-f", "-K"},
	}[kind]
	if args == nil {
		return fmt.Errorf("file system %q: ext4 or xfs", kind)
	}
	if out, err := exec.Command(args[0], append(args[1:], path)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s(packages e2fsprogs and xfsprogs have the programs)", args[0], err, out)
	}
	buf := make([]byte, chunkBytes)
	zeros := make([]byte, chunkBytes)
	for off := int64(0); off < d.size; off += chunkBytes {
		n, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return err
		}
		if bytes.Equal(buf[:n], zeros[:n]) {
			continue
		}
		if err := d.Fill(buf[:n], off); err != nil {
			return err
		}
	}
	return nil
}
