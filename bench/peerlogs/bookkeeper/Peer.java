import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The client of the peer Apache BookKeeper: it appends what the generator sends it through a pipe, with asynchronous adds. Numbers are
 * big-endian. Each ledger has three bookies, a write quorum of three and an acknowledgement quorum of two.
 *
 * <pre>
 * in:  O u32 ledgers                  open ledgers until there are so many     out: O
 *      A u32 ledger u64 id u32 n …    append n bytes                           out: D u64 id i32 result, 0 for success
 *      C u32 count u32 n              append count entries, one at a time      out: C u32 count, count × u64 nanoseconds
 * </pre>
 *
 * Arguments: the metadata service's URI, and whether to be tuned: busy waits in the client's threads.
 */
public final class Peer {
    private static final byte[] PASSWORD = new byte[0];

    private record Reply(byte kind, long id, int result, long[] took) {}

    private static final LinkedBlockingQueue<Reply> replies = new LinkedBlockingQueue<>();

    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setNettyMaxFrameSizeBytes(5 << 20);
        conf.setProperty("ledgerManagerFactoryClass", "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory");
        if (Boolean.parseBoolean(args[1])) {
            conf.setBusyWaitEnabled(true);
        }
        conf.setNumWorkerThreads(1);
        conf.setNumIOThreads(1);
        BookKeeper bk = new BookKeeper(conf);
        List<LedgerHandle> ledgers = new ArrayList<>();
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(FileDescriptor.in), 1 << 20));
        Thread writer = new Thread(Peer::write);
        writer.setDaemon(true);
        writer.start();
        for (;;) {
            int kind = in.read();
            switch (kind) {
                case -1:
                    System.exit(0); // a close of thousands of ledgers is of no use to anybody
                    break;
                case 'O':
                    for (int n = in.readInt(); ledgers.size() < n; ) {
                        ledgers.add(bk.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD));
                    }
                    replies.add(new Reply((byte) 'O', 0, 0, null));
                    break;
                case 'A': {
                    LedgerHandle ledger = ledgers.get(in.readInt());
                    long id = in.readLong();
                    byte[] entry = new byte[in.readInt()];
                    in.readFully(entry);
                    ledger.asyncAddEntry(entry, (rc, lh, e, ctx) -> replies.add(new Reply((byte) 'D', id, rc, null)), null);
                    break;
                }
                case 'C': {
                    long[] took = new long[in.readInt()];
                    byte[] entry = new byte[in.readInt()];
                    for (int i = 0; i < took.length; i++) {
                        long begin = System.nanoTime();
                        ledgers.get(0).addEntry(entry);
                        took[i] = System.nanoTime() - begin;
                    }
                    replies.add(new Reply((byte) 'C', 0, 0, took));
                    break;
                }
                default:
                    throw new IllegalArgumentException("order " + kind);
            }
        }
    }

    /** Writes replies, and flushes when there are no more for the moment. */
    private static void write() {
        try {
            DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16));
            for (;;) {
                Reply r = replies.poll();
                if (r == null) {
                    out.flush();
                    r = replies.take();
                }
                out.writeByte(r.kind);
                if (r.kind == 'D') {
                    out.writeLong(r.id);
                    out.writeInt(r.result);
                } else if (r.kind == 'C') {
                    out.writeInt(r.took.length);
                    for (long t : r.took) {
                        out.writeLong(t);
                    }
                }
            }
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
    }
}
