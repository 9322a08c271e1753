package streams;

import common.Measurement;
import common.Neighbours;
import common.Pair;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * The neighbour join written by hand.
 *
 * <p>Without lateness, it assumes that all records of a thing, from both sides, arrive in the order of their times.
 * With lateness, it holds each record until a record of the same thing has arrived whose time is later by at least the
 * lateness. A record that arrives after that is ignored.
 */
final class ByHand extends ContextualProcessor<String, Measurement, String, Pair> {
  private static final String STATE = "state", RUN = "run", HELD = "held";
  private static final Serde<Bytes> KEYS = Serdes.Bytes();
  private static final Serde<byte[]> VALUES = Serdes.ByteArray();

  private final long latenessMs;
  private KeyValueStore<Bytes, byte[]> states;
  private KeyValueStore<Bytes, byte[]> run;
  private KeyValueStore<Bytes, byte[]> held;

  private ByHand(long latenessMs) {
    this.latenessMs = latenessMs;
  }

  /** Creates the processor of each partition, with its stores. */
  record Supplier(boolean isInMemory, long latenessMs) implements ProcessorSupplier<String, Measurement, String, Pair> {
    @Override
    public Processor<String, Measurement, String, Pair> get() {
      return new ByHand(latenessMs);
    }

    @Override
    public Set<StoreBuilder<?>> stores() {
      return Set.of(store(STATE), store(RUN), store(HELD));
    }

    private StoreBuilder<?> store(String name) {
      KeyValueBytesStoreSupplier of =
          isInMemory ? Stores.inMemoryKeyValueStore(name) : Stores.persistentKeyValueStore(name);
      StoreBuilder<KeyValueStore<Bytes, byte[]>> made = Stores.keyValueStoreBuilder(of, KEYS, VALUES);
      // With a cache, only the newest state of a thing since the last commit is written to the changelog. The other
      // stores are scanned, so they have no cache: it would keep each row that was removed since the last commit.
      return name.equals(STATE) ? made.withCachingEnabled() : made.withCachingDisabled();
    }
  }

  @Override
  public void init(ProcessorContext<String, Pair> context) {
    super.init(context);
    states = context.getStateStore(STATE);
    run = context.getStateStore(RUN);
    held = context.getStateStore(HELD);
  }

  @Override
  public void process(Record<String, Measurement> record) {
    String thing = record.key();
    byte[] name = thing.getBytes(StandardCharsets.UTF_8);
    Consumer<Pair> out = pair -> context().forward(record.withValue(pair));
    Bytes key = Bytes.wrap(name);
    Neighbours neighbours = Neighbours.of(thing, states.get(key));
    Kept kept = new Kept(thing, name);
    if (latenessMs == 0) neighbours.add(record.value(), kept, out);
    else if (!reorder(neighbours, name, record.value(), kept, out)) return;
    states.put(key, neighbours.toBytes());
  }

  /**
   * Hold a record, and join all held records that older records can no longer precede.
   *
   * @return whether the state of the thing may have changed
   */
  private boolean reorder(Neighbours neighbours, byte[] name, Measurement one, Kept kept, Consumer<Pair> out) {
    // The newest time is stored among the states, whose keys are plain names, because that store has the cache.
    Bytes newest = key(name, 0, 0);
    byte[] bytes = states.get(newest);
    long newestMs = bytes == null ? Long.MIN_VALUE + latenessMs : ByteBuffer.wrap(bytes).getLong();
    long certainMs = newestMs - latenessMs;
    if (one.timeMs < certainMs) return false;
    held.put(key(name, one.timeMs, context().recordMetadata().orElseThrow().offset()), one.toBytes());
    if (one.timeMs <= newestMs) return false;
    states.put(newest, ByteBuffer.allocate(Long.BYTES).putLong(one.timeMs).array());
    Bytes first = key(name, certainMs, 0);
    certainMs = one.timeMs - latenessMs;
    drain(held, first, key(name, certainMs, Long.MAX_VALUE), one.thing)
        .forEach(next -> neighbours.add(next, kept, out));
    neighbours.passed(certainMs - 1, kept, out);
    return true;
  }

  /** Remove and return the records between two keys, in order. */
  private static List<Measurement> drain(KeyValueStore<Bytes, byte[]> store, Bytes first, Bytes last, String thing) {
    List<Measurement> found = new ArrayList<>();
    List<Bytes> gone = new ArrayList<>();
    try (KeyValueIterator<Bytes, byte[]> rows = store.range(first, last)) {
      while (rows.hasNext()) {
        KeyValue<Bytes, byte[]> row = rows.next();
        found.add(Measurement.of(thing, row.value));
        gone.add(row.key);
      }
    }
    gone.forEach(store::delete);
    return found;
  }

  /**
   * Return a key that sorts by thing, time and number. It contains the length of the thing's name, so no key is a
   * prefix of another.
   */
  private static Bytes key(byte[] name, long timeMs, long number) {
    ByteBuffer made = ByteBuffer.allocate(Short.BYTES + name.length + 2 * Long.BYTES);
    // The sign bit is flipped, because keys are compared as unsigned bytes.
    made.putShort((short) name.length).put(name).putLong(timeMs ^ Long.MIN_VALUE).putLong(number);
    return Bytes.wrap(made.array());
  }

  /** The run of a thing, with one row for each record. */
  private final class Kept implements Neighbours.Run {
    private final String thing;
    private final byte[] name;

    private Kept(String thing, byte[] name) {
      this.thing = thing;
      this.name = name;
    }

    @Override
    public void add(Measurement one, int number) {
      run.put(key(name, 0, number), one.toBytes());
    }

    @Override
    public void drain(Consumer<Measurement> to) {
      ByHand.drain(run, key(name, 0, 0), key(name, 0, Integer.MAX_VALUE), thing).forEach(to);
    }
  }
}
