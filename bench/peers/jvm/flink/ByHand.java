package flink;

import common.Measurement;
import common.Neighbours;
import common.Pair;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The neighbour join written by hand. Both sides come from one topic, so the function has a single input.
 *
 * <p>With timers, a record waits until the watermark has reached its time. A record that arrives after that is ignored.
 * Without timers, all records of a thing, from both sides, are assumed to arrive in the order of their times.
 */
final class ByHand extends KeyedProcessFunction<String, Measurement, Pair> {
  private static final long serialVersionUID = 1;

  private final boolean hasTimers;
  private transient ValueState<Neighbours> states;
  private transient MapState<Long, List<Measurement>> held;
  private transient Kept kept;

  ByHand(boolean hasTimers) {
    this.hasTimers = hasTimers;
  }

  @Override
  public void open(OpenContext context) {
    BinarySerializer.OfMeasurements one = (BinarySerializer.OfMeasurements) BinarySerializer.OfMeasurements.ONE;
    states = getRuntimeContext().getState(new ValueStateDescriptor<>("state", BinarySerializer.OfNeighbours.ONE));
    kept = new Kept(getRuntimeContext().getListState(new ListStateDescriptor<>("run", one)));
    if (hasTimers)
      held =
          getRuntimeContext()
              .getMapState(new MapStateDescriptor<>("held", LongSerializer.INSTANCE, new ListSerializer<>(one)));
  }

  @Override
  public void processElement(Measurement one, Context context, Collector<Pair> out) throws Exception {
    if (!hasTimers) {
      Neighbours neighbours = state(one.thing);
      neighbours.add(one, kept, out::collect);
      states.update(neighbours);
      return;
    }
    if (one.timeMs <= context.timerService().currentWatermark()) return;
    List<Measurement> some = held.get(one.timeMs);
    if (some == null) some = new ArrayList<>(1);
    some.add(one);
    held.put(one.timeMs, some);
    context.timerService().registerEventTimeTimer(one.timeMs);
  }

  @Override
  public void onTimer(long timeMs, OnTimerContext context, Collector<Pair> out) throws Exception {
    Neighbours neighbours = state(context.getCurrentKey());
    Consumer<Pair> to = out::collect;
    for (Measurement one : held.get(timeMs)) neighbours.add(one, kept, to);
    neighbours.passed(timeMs, kept, to);
    held.remove(timeMs);
    states.update(neighbours);
  }

  private Neighbours state(String thing) throws Exception {
    Neighbours found = states.value();
    return found == null ? Neighbours.of(thing, null) : found;
  }

  /** The run of the current thing. */
  private static final class Kept implements Neighbours.Run {
    private final ListState<Measurement> run;

    private Kept(ListState<Measurement> run) {
      this.run = run;
    }

    @Override
    public void add(Measurement one, int number) {
      try {
        run.add(one);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }

    @Override
    public void drain(Consumer<Measurement> to) {
      try {
        run.get().forEach(to);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
      run.clear();
    }
  }
}
