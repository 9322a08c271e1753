package flink;

import common.Format;
import common.Measurement;
import common.Message;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SerializerConfig;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.typeutils.GenericTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.lineage.DefaultKafkaDatasetFacet;
import org.apache.flink.connector.kafka.lineage.DefaultKafkaDatasetIdentifier;
import org.apache.flink.connector.kafka.lineage.KafkaDatasetFacet;
import org.apache.flink.connector.kafka.lineage.KafkaDatasetFacetProvider;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.kafka.shaded.org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The neighbour join, or aligned rows, in Flink, from topic to topic.
 *
 * <p>usage: Joins ORDER BOOTSTRAP DATA OUT LATENESS_MS NAME=VALUE …
 *
 * <p>ORDER is {@code timers} or {@code arrival}; see {@link ByHand}. The settings are Flink's own or, with the prefix
 * {@code source.} or {@code sink.}, those of Kafka's clients. {@code drift_ms} limits how far apart the partitions may
 * be in event time. {@code transaction_naming} is a {@link TransactionNamingStrategy}. If there is a setting {@code
 * quantities}, it names those of a driver and of its columns, and the program makes aligned rows. If there is a setting
 * {@code schema}, the messages are in Avro with this schema, not in JSON.
 */
public final class Joins {
  private static final Duration ALIGN = Duration.ofMillis(50);

  public static void main(String[] given) throws Exception {
    String order = given[0], bootstrap = given[1], data = given[2], out = given[3];
    long latenessMs = Long.parseLong(given[4]);
    Map<String, String> settings = new TreeMap<>();
    for (int place = 5; place < given.length; place++) {
      String[] words = given[place].split("=", 2);
      settings.put(words[0], words[1]);
    }
    Properties reading = take(settings, "source."), writing = take(settings, "sink.");
    long driftMs = Long.parseLong(settings.remove("drift_ms"));
    TransactionNamingStrategy naming = TransactionNamingStrategy.valueOf(settings.remove("transaction_naming"));
    String named = settings.remove("quantities");
    List<String> quantities = named == null ? Measurement.SIDES : List.of(named.split(","));
    Parsing parsing = new Parsing(settings.remove("schema"), quantities);
    boolean isExactlyOnce = settings.getOrDefault("execution.checkpointing.mode", "").equals("EXACTLY_ONCE");
    StreamExecutionEnvironment flink =
        StreamExecutionEnvironment.getExecutionEnvironment(Configuration.fromMap(settings));
    KafkaSource<Measurement> source =
        KafkaSource.<Measurement>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(data)
            .setGroupId(out)
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(parsing)
            .setProperties(reading)
            .build();
    WatermarkStrategy<Measurement> watermarks = WatermarkStrategy.noWatermarks();
    if (order.equals("timers"))
      watermarks =
          WatermarkStrategy.<Measurement>forBoundedOutOfOrderness(Duration.ofMillis(latenessMs))
              .withTimestampAssigner((one, before) -> one.timeMs);
    if (driftMs > 0) watermarks = watermarks.withWatermarkAlignment("records", Duration.ofMillis(driftMs), ALIGN);
    flink
        .fromSource(source, watermarks, "records")
        .keyBy(one -> one.thing)
        .process(new ByHand(order.equals("timers"), named != null))
        .returns(Message.class)
        .sinkTo(sink(bootstrap, new Writing(out, quantities), writing, isExactlyOnce, naming));
    flink.execute("neighbours");
  }

  private static KafkaSink<Message> sink(
      String bootstrap, Writing out, Properties settings, boolean isExactlyOnce, TransactionNamingStrategy naming) {
    return KafkaSink.<Message>builder()
        .setBootstrapServers(bootstrap)
        .setDeliveryGuarantee(isExactlyOnce ? DeliveryGuarantee.EXACTLY_ONCE : DeliveryGuarantee.AT_LEAST_ONCE)
        .setTransactionalIdPrefix(out.topic + "-" + Long.toHexString(System.nanoTime()))
        .setTransactionNamingStrategy(naming)
        .setKafkaProducerConfig(settings)
        .setRecordSerializer(out)
        .build();
  }

  /** Remove the settings whose names have a prefix. Return them without the prefix. */
  private static Properties take(Map<String, String> settings, String prefix) {
    Properties found = new Properties();
    for (String name : settings.keySet().toArray(String[]::new))
      if (name.startsWith(prefix)) found.put(name.substring(prefix.length()), settings.remove(name));
    return found;
  }

  /** Parses records. */
  private static final class Parsing extends AbstractDeserializationSchema<Measurement> {
    private static final long serialVersionUID = 1;

    private final String schema;
    private final List<String> quantities;
    private transient Format format;

    Parsing(String schema, List<String> quantities) {
      super(new Type());
      this.schema = schema;
      this.quantities = quantities;
    }

    @Override
    public void open(InitializationContext context) {
      format = Format.of(schema, quantities);
    }

    @Override
    public Measurement deserialize(byte[] message) {
      return format.read(message);
    }
  }

  /** The type of the records, which determines their serializer. */
  private static final class Type extends GenericTypeInfo<Measurement> {
    private static final long serialVersionUID = 1;

    Type() {
      super(Measurement.class);
    }

    @Override
    public TypeSerializer<Measurement> createSerializer(
        SerializerConfig config) {
      return BinarySerializer.OfMeasurements.ONE;
    }
  }

  /** Writes results. It declares its topic, because the pooled transactions are listed by topic. */
  private static final class Writing implements KafkaRecordSerializationSchema<Message>, KafkaDatasetFacetProvider {
    private static final long serialVersionUID = 1;

    private final String topic;
    private final List<String> quantities;

    Writing(String topic, List<String> quantities) {
      this.topic = topic;
      this.quantities = quantities;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Message one, KafkaSinkContext context, Long timestamp) {
      return new ProducerRecord<>(topic, one.key(), one.json(quantities));
    }

    @Override
    public Optional<KafkaDatasetFacet> getKafkaDatasetFacet() {
      return Optional.of(new DefaultKafkaDatasetFacet(DefaultKafkaDatasetIdentifier.ofTopics(List.of(topic))));
    }
  }

  private Joins() {}
}
