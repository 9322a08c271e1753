package spark;

import common.Measurement;
import common.Message;
import common.Neighbours;
import common.Rule;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.function.Consumer;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.ExpiredTimerInfo;
import org.apache.spark.sql.streaming.ListState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The neighbour join, or aligned rows, written by hand, with custom state.
 *
 * <p>With a watermark, a thing's records are held until the watermark has passed them, as in Spark's examples. Without
 * one, all records of a thing, from all streams, are assumed to be in order from batch to batch.
 *
 * <p>A row consists of the thing, the record in binary form, and its offset. Records with equal times are joined in the
 * order of their offsets.
 */
final class ByHand extends StatefulProcessor<String, Row, Tuple2<byte[], byte[]>> {
  private static final long serialVersionUID = 1;
  private static final Comparator<Held> ORDER =
      Comparator.<Held>comparingLong(held -> held.one.timeMs).thenComparingLong(held -> held.offset);

  private final boolean hasWatermark;
  private final List<String> quantities;
  private transient ValueState<byte[]> states;
  private transient ListState<byte[]> run;
  private transient ListState<byte[]> held;

  ByHand(boolean hasWatermark, List<String> quantities) {
    this.hasWatermark = hasWatermark;
    this.quantities = quantities;
  }

  /** A record and its offset. */
  private record Held(Measurement one, long offset) {
    static Held of(String thing, byte[] bytes) {
      ByteBuffer from = ByteBuffer.wrap(bytes);
      long offset = from.getLong();
      byte[] rest = new byte[from.remaining()];
      from.get(rest);
      return new Held(Measurement.of(thing, rest), offset);
    }

    byte[] toBytes() {
      byte[] bytes = one.toBytes();
      return ByteBuffer.allocate(Long.BYTES + bytes.length).putLong(offset).put(bytes).array();
    }
  }

  @Override
  public void init(OutputMode outputMode, TimeMode timeMode) {
    states = getHandle().getValueState("state", Encoders.BINARY(), TTLConfig.NONE());
    run = getHandle().getListState("run", Encoders.BINARY(), TTLConfig.NONE());
    if (hasWatermark) held = getHandle().getListState("held", Encoders.BINARY(), TTLConfig.NONE());
  }

  @Override
  public Iterator<Tuple2<byte[], byte[]>> handleInputRows(String thing, Iterator<Row> rows, TimerValues times) {
    List<Held> some = new ArrayList<>();
    while (rows.hasNext()) {
      Row row = rows.next();
      some.add(new Held(Measurement.of(thing, row.<byte[]>getAs(1)), row.getLong(2)));
    }
    return join(thing, some, hasWatermark ? times.getCurrentWatermarkInMs() : Long.MAX_VALUE);
  }

  @Override
  public Iterator<Tuple2<byte[], byte[]>> handleExpiredTimer(
      String thing, TimerValues times, ExpiredTimerInfo timer) {
    return join(thing, new ArrayList<>(), times.getCurrentWatermarkInMs());
  }

  /** Join those held and new records that are older than a given time. Hold the others. */
  private Iterator<Tuple2<byte[], byte[]>> join(String thing, List<Held> some, long untilMs) {
    if (hasWatermark) held.get().foreach(bytes -> some.add(Held.of(thing, bytes)));
    some.sort(ORDER);
    boolean hasColumns = !quantities.equals(Measurement.SIDES);
    Rule<Message> rule = states.exists() ? Rule.of(thing, states.get()) : Rule.start(thing, hasColumns);
    List<Tuple2<byte[], byte[]>> found = new ArrayList<>();
    Consumer<Message> out = one -> found.add(new Tuple2<>(one.key(), one.json(quantities)));
    Kept kept = new Kept(thing, run);
    int done = 0;
    while (done < some.size() && some.get(done).one.timeMs < untilMs) rule.add(some.get(done++).one, kept, out);
    if (hasWatermark) {
      rule.passed(untilMs - 1, kept, out);
      hold(some.subList(done, some.size()));
    }
    kept.write();
    states.update(rule.toBytes());
    return CollectionConverters.asScala(found.iterator());
  }

  private void hold(List<Held> rest) {
    getHandle().listTimers().toList().foreach(timer -> {
      getHandle().deleteTimer((Long) timer);
      return null;
    });
    if (rest.isEmpty()) {
      held.clear();
      return;
    }
    byte[][] rows = new byte[rest.size()][];
    for (int place = 0; place < rows.length; place++) rows[place] = rest.get(place).toBytes();
    held.put(rows);
    // This timer expires once the watermark has passed the oldest record, even if there are no new records.
    getHandle().registerTimer(rest.get(0).one.timeMs + 1);
  }

  /** The run of a thing. Records that a batch adds and removes again are never written to the state. */
  private static final class Kept implements Neighbours.Run {
    private final String thing;
    private final ListState<byte[]> run;
    private final List<Measurement> added = new ArrayList<>();

    private Kept(String thing, ListState<byte[]> run) {
      this.thing = thing;
      this.run = run;
    }

    @Override
    public void add(Measurement one, int number) {
      added.add(one);
    }

    @Override
    public void drain(Consumer<Measurement> to) {
      run.get().foreach(bytes -> {
        to.accept(Measurement.of(thing, bytes));
        return null;
      });
      run.clear();
      added.forEach(to);
      added.clear();
    }

    private void write() {
      if (!added.isEmpty()) run.appendList(added.stream().map(Measurement::toBytes).toArray(byte[][]::new));
    }
  }
}
