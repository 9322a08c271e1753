package common;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamWriteFeature;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A result: a left and a right record of the same thing. */
public final class Pair implements Message {
  // The number conversion of the JDK, which is the default, is slower.
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamWriteFeature.USE_FAST_DOUBLE_WRITER).build();
  private static final int BYTES = 160;

  public Measurement left;
  public Measurement right;

  /** Used by Flink, which sets the fields afterwards. */
  public Pair() {}

  /** Create the pair of a left and a right record. */
  public Pair(Measurement left, Measurement right) {
    this.left = left;
    this.right = right;
  }

  /** Create the pair of two records from different sides, given in any order. */
  public static Pair of(Measurement one, Measurement other) {
    return one.side == Measurement.LEFT ? new Pair(one, other) : new Pair(other, one);
  }

  @Override
  public byte[] key() {
    return left.thing.getBytes(StandardCharsets.UTF_8);
  }

  @Override
  public byte[] json(List<String> quantities) {
    return json();
  }

  /** Return the message: the thing, the two ids, the product of the values, and the mean time. */
  public byte[] json() {
    ByteArrayOutputStream made = new ByteArrayOutputStream(BYTES);
    try (JsonGenerator to = JSON.createGenerator(made)) {
      to.writeStartObject();
      to.writeStringField("thing", left.thing);
      to.writeStringField("left", left.id);
      to.writeStringField("right", right.id);
      to.writeNumberField("result", left.result * right.result);
      to.writeNumberField("phenomenonTime", (left.timeMs + right.timeMs) / 2.0);
      to.writeEndObject();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return made.toByteArray();
  }
}
