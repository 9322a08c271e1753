import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * An exactly-once pass-through with Kafka's own client.
 *
 * <p>usage: PassThrough BOOTSTRAP DATA OUT PARTITIONS BATCH RECORDS
 *
 * <p>Like the joiner, it has one consumer and one transaction for each partition and batch. The transactions of a batch
 * run in parallel while the next batch is read.
 */
public final class PassThrough {
  private static final Duration WAIT = Duration.ofMillis(20);

  public static void main(String[] given) throws Exception {
    String bootstrap = given[0], data = given[1], out = given[2];
    int partitions = Integer.parseInt(given[3]), batch = Integer.parseInt(given[4]);
    long left = Long.parseLong(given[5]);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, out, batch)) {
      List<TopicPartition> places = new ArrayList<>();
      List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
      for (int number = 0; number < partitions; number++) {
        places.add(new TopicPartition(data, number));
        producers.add(producer(bootstrap, out + "-" + number));
      }
      consumer.assign(places);
      consumer.seekToBeginning(places);
      ConsumerGroupMetadata group = consumer.groupMetadata();
      ExecutorService pool =
          Executors.newFixedThreadPool(
              partitions,
              work -> {
                Thread thread = new Thread(work);
                thread.setDaemon(true);
                return thread;
              });
      Map<Integer, Future<?>> commits = new HashMap<>();
      while (left > 0) {
        ConsumerRecords<byte[], byte[]> read = consumer.poll(WAIT);
        for (TopicPartition place : read.partitions()) {
          int number = place.partition();
          if (commits.containsKey(number)) commits.get(number).get();
          List<ConsumerRecord<byte[], byte[]>> records = read.records(place);
          commits.put(number, pool.submit(() -> commit(producers.get(number), group, place, out, records)));
        }
        left -= read.count();
      }
      for (Future<?> commit : commits.values()) commit.get();
      pool.shutdown();
    }
  }

  private static Void commit(
      KafkaProducer<byte[], byte[]> producer,
      ConsumerGroupMetadata group,
      TopicPartition place,
      String out,
      List<ConsumerRecord<byte[], byte[]>> records) {
    producer.beginTransaction();
    for (ConsumerRecord<byte[], byte[]> one : records)
      producer.send(new ProducerRecord<>(out, place.partition(), one.key(), one.value()));
    long next = records.get(records.size() - 1).offset() + 1;
    producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(next)), group);
    producer.commitTransaction();
    return null;
  }

  private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group, int batch) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", group);
    settings.put("enable.auto.commit", "false");
    settings.put("auto.offset.reset", "earliest");
    settings.put("isolation.level", "read_committed");
    settings.put("max.poll.records", Integer.toString(batch));
    settings.put("fetch.max.bytes", Integer.toString(64 << 20));
    settings.put("max.partition.fetch.bytes", Integer.toString(8 << 20));
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String id) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("transactional.id", id);
    settings.put("compression.type", "lz4");
    settings.put("linger.ms", "5");
    settings.put("batch.size", Integer.toString(1 << 20));
    settings.put("buffer.memory", Integer.toString(128 << 20));
    KafkaProducer<byte[], byte[]> made =
        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    made.initTransactions();
    return made;
  }
}
