package common;

import java.util.function.Consumer;

/** How the records of one thing, which are given in the order of their times, become results. */
public interface Rule<T extends Message> {
  /** Return the thing. */
  String thing();

  /** Return the newest time, in ms. */
  long timeMs();

  /** Take the next record, and write the results that it makes certain. */
  void add(Measurement one, Neighbours.Run run, Consumer<T> out);

  /** Take note that no further record at or before a time follows, and write the results that this makes certain. */
  void passed(long timeMs, Neighbours.Run run, Consumer<T> out);

  /** Return the binary form, without the run. */
  byte[] toBytes();

  /** Return the state of a thing from its binary form. */
  static Rule<Message> of(String thing, byte[] bytes) {
    return any(bytes[0] == LastValues.MARK ? LastValues.of(thing, bytes) : Neighbours.of(thing, bytes));
  }

  /** Return the state of an unseen thing, for aligned rows or for pairs of neighbours. */
  static Rule<Message> start(String thing, boolean hasColumns) {
    return any(hasColumns ? LastValues.of(thing, null) : Neighbours.of(thing, null));
  }

  @SuppressWarnings("unchecked") // a consumer of messages takes messages of every kind
  private static Rule<Message> any(Rule<? extends Message> rule) {
    return (Rule<Message>) rule;
  }
}
