package spark;

import common.Measurement;
import java.sql.Timestamp;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.TimeMode;
import scala.Tuple4;

/**
 * The neighbour join, or aligned rows, written by hand in Spark, from topic to topic.
 *
 * <p>usage: Joins ORDER BOOTSTRAP DATA OUT STATE LATENESS_MS BATCH NAME=VALUE …
 *
 * <p>ORDER is {@code watermark} or {@code arrival}; see {@link ByHand}. BATCH is the number of records in a
 * micro-batch. All other arguments are settings of Spark or, with the prefix {@code sink.}, of the producer. If there
 * is a setting {@code quantities}, it names those of a driver and of its columns, and the program makes aligned rows.
 */
public final class Joins {
  private static final String SINK = "sink.";

  public static void main(String[] given) throws Exception {
    String order = given[0], bootstrap = given[1], data = given[2], out = given[3], state = given[4];
    boolean hasWatermark = order.equals("watermark");
    SparkSession.Builder builder = SparkSession.builder().appName("neighbours");
    Map<String, String> writing = new HashMap<>();
    List<String> quantities = Measurement.SIDES;
    for (int place = 7; place < given.length; place++) {
      String[] words = given[place].split("=", 2);
      if (words[0].startsWith(SINK)) writing.put("kafka." + words[0].substring(SINK.length()), words[1]);
      else if (words[0].equals("quantities")) quantities = List.of(words[1].split(","));
      else builder.config(words[0], words[1]);
    }
    List<String> known = quantities;
    Dataset<Row> records =
        builder
            .getOrCreate()
            .readStream()
            .format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", data)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", given[6])
            .load()
            .select("value", "offset")
            .map((MapFunction<Row, Tuple4<String, byte[], Long, Timestamp>>) row -> parse(row, known), ENCODER)
            .toDF("thing", "record", "offset", "at");
    if (hasWatermark) records = records.withWatermark("at", given[5] + " milliseconds");
    records
        .groupBy("thing")
        .as(Encoders.STRING(), Encoders.row(records.schema()))
        .transformWithState(
            new ByHand(hasWatermark, quantities),
            hasWatermark ? TimeMode.EventTime() : TimeMode.None(),
            OutputMode.Append(),
            Encoders.tuple(Encoders.BINARY(), Encoders.BINARY()))
        .toDF("key", "value")
        .writeStream()
        .format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(writing)
        .option("topic", out)
        .option("checkpointLocation", state)
        .start()
        .awaitTermination();
  }

  private static final Encoder<Tuple4<String, byte[], Long, Timestamp>> ENCODER =
      Encoders.tuple(Encoders.STRING(), Encoders.BINARY(), Encoders.LONG(), Encoders.TIMESTAMP());

  /** Return the thing, the binary form, the offset and the time of each record, which is parsed only once. */
  private static Tuple4<String, byte[], Long, Timestamp> parse(Row row, List<String> quantities) {
    Measurement one = Measurement.parse(row.<byte[]>getAs(0), quantities);
    return new Tuple4<>(one.thing, one.toBytes(), row.getLong(1), new Timestamp(one.timeMs));
  }

  private Joins() {}
}
