package streams;

import common.Format;
import common.Measurement;
import common.Pair;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;

/**
 * Joins in Kafka Streams, from topic to topic.
 *
 * <p>usage: Joins KIND DATA OUT STORE WIDTH_MS LATENESS_MS NAME=VALUE …
 *
 * <p>KIND is {@code window}, the windowed join of the DSL, or {@code neighbours}, a join written with the Processor
 * API. STORE is {@code memory} or {@code rocksdb}. All other arguments are settings of Kafka Streams, except for {@code
 * schema}, the schema of messages in Avro. Without it, the messages are in JSON.
 */
public final class Joins {
  /** Gives the messages wall-clock times. The event times are years old, so Kafka would delete the log at once. */
  private static final Map<String, String> LOG = Map.of("message.timestamp.type", "LogAppendTime");

  public static void main(String[] given) throws Exception {
    String kind = given[0], data = given[1], out = given[2];
    boolean isInMemory = given[3].equals("memory");
    long widthMs = Long.parseLong(given[4]), latenessMs = Long.parseLong(given[5]);
    Properties settings = new Properties();
    for (int place = 6; place < given.length; place++) {
      String[] words = given[place].split("=", 2);
      settings.put(words[0], words[1]);
    }
    String schema = (String) settings.remove("schema");
    StreamsBuilder builder = new StreamsBuilder();
    Consumed<String, Measurement> consumed =
        Consumed.with(Serdes.String(), records(schema))
            .withTimestampExtractor((record, before) -> ((Measurement) record.value()).timeMs);
    KStream<String, Measurement> records = builder.stream(data, consumed);
    KStream<String, Pair> pairs =
        kind.equals("window")
            ? window(records, isInMemory, widthMs, latenessMs)
            : records.process(new ByHand.Supplier(isInMemory, latenessMs));
    pairs.to(out, Produced.with(Serdes.String(), pairs()));
    run(new KafkaStreams(builder.build(settings), settings));
  }

  /** Return all pairs of a left and a right record that are at most the width apart. */
  private static KStream<String, Pair> window(
      KStream<String, Measurement> records, boolean isInMemory, long widthMs, long latenessMs) {
    JoinWindows windows =
        JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(widthMs), Duration.ofMillis(latenessMs));
    StreamJoined<String, Measurement, Measurement> joined =
        StreamJoined.<String, Measurement, Measurement>with(Serdes.String(), kept(), kept())
            .withThisStoreSupplier(store("left", isInMemory, windows))
            .withOtherStoreSupplier(store("right", isInMemory, windows))
            .withLoggingEnabled(LOG);
    KStream<String, Measurement> left = records.filter((thing, one) -> one.side == Measurement.LEFT);
    KStream<String, Measurement> right = records.filter((thing, one) -> one.side == Measurement.RIGHT);
    return left.join(right, Joins::pair, windows, joined);
  }

  private static Pair pair(String thing, Measurement left, Measurement right) {
    left.thing = thing; // not in the stored value, because it is the key of the store
    return new Pair(left, right);
  }

  private static WindowBytesStoreSupplier store(String name, boolean isInMemory, JoinWindows windows) {
    Duration size = Duration.ofMillis(windows.size());
    Duration retention = Duration.ofMillis(windows.size() + windows.gracePeriodMs());
    return isInMemory
        ? Stores.inMemoryWindowStore(name, retention, size, true)
        : Stores.persistentWindowStore(name, retention, size, true);
  }

  /** Run until stopped. An error ends the process. */
  private static void run(KafkaStreams streams) throws InterruptedException {
    CountDownLatch ended = new CountDownLatch(1);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
    streams.start();
    ended.await();
  }

  /** The records of the input topic. Kafka Streams uses the same instance in all of its threads. */
  private static Serde<Measurement> records(String schema) {
    ThreadLocal<Format> formats = ThreadLocal.withInitial(() -> Format.of(schema, Measurement.SIDES));
    Deserializer<Measurement> parse = (topic, bytes) -> formats.get().read(bytes);
    return Serdes.serdeFrom((topic, one) -> one.toBytes(), parse);
  }

  /** The records in a window's store. */
  private static Serde<Measurement> kept() {
    return Serdes.serdeFrom((topic, one) -> one.toBytes(), (topic, bytes) -> Measurement.of("", bytes));
  }

  private static Serde<Pair> pairs() {
    Deserializer<Pair> none = (topic, bytes) -> null;
    return Serdes.serdeFrom((topic, pair) -> pair.json(), none);
  }

  private Joins() {}
}
