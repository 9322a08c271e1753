package common;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * Finds the neighbours of the records of one thing. The records must be given in the order of their times.
 *
 * <p>A record's neighbours are the last record of the other side at or before it, and the first one at or after it.
 * Records with equal times count in the order in which they are given. A pair is written once, as soon as it is
 * certain. The next neighbour of a record is certain when that neighbour arrives. The previous neighbour is certain
 * when a later record arrives, or when the record's time has {@link #passed}, because until then a record with the same
 * time may follow. A record that is older than the newest one is ignored.
 *
 * <p>The records that wait for their next neighbour are kept in a {@link Run}, a list that is only appended to and
 * emptied. The engine provides it. Everything else is small, has a binary form, and is stored as one value in the
 * engine's state.
 */
public final class Neighbours implements Rule<Pair> {
  /** The records of one side that are earlier than the newest time and later than the last record of the other side. */
  public interface Run {
    /** Append a record. {@code number} is its index in the run. */
    void add(Measurement one, int number);

    /** Pass all records to a consumer, in any order, and remove them. */
    void drain(Consumer<Measurement> to);
  }

  private final String thing;
  private final List<List<Measurement>> now = List.of(new ArrayList<>(1), new ArrayList<>(1));
  private final Measurement[] before = new Measurement[2];
  private int waiting;
  private int waitingSide;
  private boolean isPaired;

  private Neighbours(String thing) {
    this.thing = thing;
  }

  @Override
  public String thing() {
    return thing;
  }

  @Override
  public long timeMs() {
    for (List<Measurement> some : now) if (!some.isEmpty()) return some.get(0).timeMs;
    return Long.MIN_VALUE;
  }

  @Override
  public void add(Measurement one, Run run, Consumer<Pair> out) {
    int side = one.side, other = 1 - side;
    if (one.timeMs < timeMs()) return;
    if (one.timeMs > timeMs()) advance(one, run, out);
    List<Measurement> own = now.get(side), others = now.get(other);
    boolean isFirst = own.isEmpty();
    if (isFirst && waiting > 0 && waitingSide == other) {
      run.drain(kept -> out.accept(Pair.of(one, kept)));
      waiting = 0;
      isPaired = true;
    }
    for (int place = 0; place < (isFirst ? others.size() : Math.min(1, others.size())); place++)
      out.accept(Pair.of(one, others.get(place)));
    own.add(one);
  }

  @Override
  public void passed(long timeMs, Run run, Consumer<Pair> out) {
    // A single record that is already paired with its previous neighbour is not moved to the run.
    boolean isDone = isPaired && now.get(0).size() + now.get(1).size() == 1;
    if (timeMs >= timeMs() && !isDone) advance(null, run, out);
  }

  /** Advance to the time of a record, or beyond the newest time if the record is null. */
  private void advance(Measurement one, Run run, Consumer<Pair> out) {
    pairWithPrevious(out);
    isPaired = false;
    for (int side = 0; side < 2; side++) {
      List<Measurement> some = now.get(side);
      if (some.isEmpty()) continue;
      before[side] = some.get(some.size() - 1);
      // If the other side has no record at this time, only the new record can be the next neighbour of these records.
      if (now.get(1 - side).isEmpty()) {
        isPaired = one != null && one.side != side;
        for (Measurement kept : some) {
          if (isPaired) out.accept(Pair.of(one, kept));
          else run.add(kept, waiting++);
        }
        if (!isPaired) waitingSide = side;
      }
    }
    for (List<Measurement> some : now) some.clear();
  }

  /** Pair the records at the newest time with their previous neighbours, and write the pairs not written before. */
  private void pairWithPrevious(Consumer<Pair> out) {
    List<Measurement> left = now.get(Measurement.LEFT), right = now.get(Measurement.RIGHT);
    int lefts = left.size(), rights = right.size();
    if (lefts > 0 && rights > 0) {
      // On arrival, each was paired with the first record of the other side. Each is also a neighbour of the last one.
      for (int place = 1; place < lefts && rights > 1; place++)
        out.accept(new Pair(left.get(place), right.get(rights - 1)));
      for (int place = 1; place < rights - 1 && lefts > 1; place++)
        out.accept(new Pair(left.get(lefts - 1), right.get(place)));
      return;
    }
    for (int side = 0; side < 2; side++) {
      Measurement previous = before[1 - side];
      List<Measurement> some = now.get(side);
      for (int place = isPaired ? 1 : 0; previous != null && place < some.size(); place++)
        out.accept(Pair.of(some.get(place), previous));
    }
  }

  @Override
  public byte[] toBytes() {
    int length = 1 + Integer.BYTES;
    List<byte[]> names = new ArrayList<>(4);
    List<Measurement> every = new ArrayList<>(4);
    for (Measurement one : before) if (one != null) every.add(one);
    for (List<Measurement> some : now) every.addAll(some);
    for (Measurement one : every) {
      byte[] name = one.id.getBytes(StandardCharsets.UTF_8);
      names.add(name);
      length += Measurement.size(name);
    }
    ByteBuffer made = ByteBuffer.allocate(length);
    int flags = (before[0] == null ? 0 : 1) | (before[1] == null ? 0 : 2) | waitingSide << 2 | (isPaired ? 8 : 0);
    made.put((byte) flags).putInt(waiting);
    for (int place = 0; place < every.size(); place++) every.get(place).put(made, names.get(place));
    return made.array();
  }

  /** Return the state of a thing from its binary form. Null represents the state of a thing without records. */
  public static Neighbours of(String thing, byte[] bytes) {
    Neighbours made = new Neighbours(thing);
    if (bytes == null) return made;
    ByteBuffer from = ByteBuffer.wrap(bytes);
    int flags = from.get();
    made.waiting = from.getInt();
    made.waitingSide = flags >> 2 & 1;
    made.isPaired = (flags & 8) != 0;
    for (int side = 0; side < 2; side++) if ((flags & 1 << side) != 0) made.before[side] = Measurement.get(thing, from);
    while (from.hasRemaining()) {
      Measurement one = Measurement.get(thing, from);
      made.now.get(one.side).add(one);
    }
    return made;
  }
}
