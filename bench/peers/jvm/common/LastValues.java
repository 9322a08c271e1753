package common;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;

/**
 * The aligned rows of one thing, whose columns have previous values: each is the last one at or before the row's time.
 *
 * <p>A row is written as soon as it is certain: when a later record arrives, or when its time has passed, because until
 * then a record of the same time may follow. A record older than the newest one is ignored. The state is small: the
 * last value of each column, and the driver's records of the newest time.
 */
public final class LastValues implements Rule<AlignedRow> {
  static final byte MARK = -1;

  private static final int DRIVER = 0;

  private final String thing;
  private final List<Measurement> now = new ArrayList<>(1);
  private double[] values = {};
  private long timeMs = Long.MIN_VALUE;

  private LastValues(String thing) {
    this.thing = thing;
  }

  @Override
  public String thing() {
    return thing;
  }

  @Override
  public long timeMs() {
    return timeMs;
  }

  @Override
  public void add(Measurement one, Neighbours.Run run, Consumer<AlignedRow> out) {
    if (one.timeMs < timeMs) return;
    if (one.timeMs > timeMs) write(out);
    timeMs = one.timeMs;
    if (one.side == DRIVER) {
      now.add(one);
      return;
    }
    if (one.side > values.length) {
      int known = values.length;
      values = Arrays.copyOf(values, one.side);
      Arrays.fill(values, known, one.side, Double.NaN);
    }
    values[one.side - 1] = one.result;
  }

  @Override
  public void passed(long timeMs, Neighbours.Run run, Consumer<AlignedRow> out) {
    if (timeMs >= this.timeMs) write(out);
  }

  private void write(Consumer<AlignedRow> out) {
    for (Measurement one : now) out.accept(new AlignedRow(one, values.clone()));
    now.clear();
  }

  @Override
  public byte[] toBytes() {
    int length = 2 + Long.BYTES + values.length * Double.BYTES;
    List<byte[]> names = new ArrayList<>(now.size());
    for (Measurement one : now) {
      byte[] name = one.id.getBytes(StandardCharsets.UTF_8);
      names.add(name);
      length += Measurement.size(name);
    }
    ByteBuffer made = ByteBuffer.allocate(length);
    made.put(MARK).putLong(timeMs).put((byte) values.length);
    for (double value : values) made.putDouble(value);
    for (int place = 0; place < now.size(); place++) now.get(place).put(made, names.get(place));
    return made.array();
  }

  /** Return the state of a thing from its binary form; null is the state of an unseen thing. */
  public static LastValues of(String thing, byte[] bytes) {
    LastValues made = new LastValues(thing);
    if (bytes == null) return made;
    ByteBuffer from = ByteBuffer.wrap(bytes);
    from.get();
    made.timeMs = from.getLong();
    made.values = new double[from.get()];
    for (int column = 0; column < made.values.length; column++) made.values[column] = from.getDouble();
    while (from.hasRemaining()) made.now.add(Measurement.get(thing, from));
    return made;
  }
}
