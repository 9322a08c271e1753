package flink;

import common.Measurement;
import common.Message;
import common.Neighbours;
import common.Rule;
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
 * The neighbour join, or aligned rows, written by hand. All streams come from one topic, so the function has a single
 * input.
 *
 * <p>With timers, a record waits until the watermark has reached its time. A record that arrives after that is ignored.
 * Without timers, all records of a thing, from all streams, are assumed to arrive in the order of their times.
 */
final class ByHand extends KeyedProcessFunction<String, Measurement, Message> {
  private static final long serialVersionUID = 1;

  private final boolean hasTimers;
  private final boolean hasColumns;
  private transient ValueState<Rule<Message>> states;
  private transient MapState<Long, List<Measurement>> held;
  private transient Kept kept;

  ByHand(boolean hasTimers, boolean hasColumns) {
    this.hasTimers = hasTimers;
    this.hasColumns = hasColumns;
  }

  @Override
  public void open(OpenContext context) {
    BinarySerializer.OfMeasurements one = (BinarySerializer.OfMeasurements) BinarySerializer.OfMeasurements.ONE;
    states = getRuntimeContext().getState(new ValueStateDescriptor<>("state", BinarySerializer.OfRules.ONE));
    kept = new Kept(getRuntimeContext().getListState(new ListStateDescriptor<>("run", one)));
    if (hasTimers)
      held =
          getRuntimeContext()
              .getMapState(new MapStateDescriptor<>("held", LongSerializer.INSTANCE, new ListSerializer<>(one)));
  }

  @Override
  public void processElement(Measurement one, Context context, Collector<Message> out) throws Exception {
    if (!hasTimers) {
      Rule<Message> rule = state(one.thing);
      rule.add(one, kept, out::collect);
      states.update(rule);
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
  public void onTimer(long timeMs, OnTimerContext context, Collector<Message> out) throws Exception {
    Rule<Message> rule = state(context.getCurrentKey());
    Consumer<Message> to = out::collect;
    for (Measurement one : held.get(timeMs)) rule.add(one, kept, to);
    rule.passed(timeMs, kept, to);
    held.remove(timeMs);
    states.update(rule);
  }

  private Rule<Message> state(String thing) throws Exception {
    Rule<Message> found = states.value();
    return found == null ? Rule.start(thing, hasColumns) : found;
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
