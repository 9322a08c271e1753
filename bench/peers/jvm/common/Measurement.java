package common;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * An input record: the value of a quantity of a thing at a point in time.
 *
 * <p>The binary form, which the engines store, does not contain the thing, because the thing is the key of their state.
 */
public final class Measurement {
  public static final int LEFT = 0;
  public static final int RIGHT = 1;
  public static final List<String> SIDES = List.of("speed", "torque");

  // The number conversion of the JDK, which is the default, is slower.
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER).build();

  public String thing = "";
  public int side;
  public long timeMs;
  public double result;
  public String id = "";

  /** Parse a record. Its side is the index of its quantity. Members that are not needed are skipped. */
  public static Measurement parse(byte[] json, List<String> quantities) {
    Measurement made = new Measurement();
    try (JsonParser parser = JSON.createParser(json)) {
      parser.nextToken();
      while (parser.nextToken() == JsonToken.FIELD_NAME) {
        String name = parser.currentName();
        parser.nextToken();
        switch (name) {
          case "thing" -> made.thing = parser.getText();
          case "quantity" -> made.side = quantities.indexOf(parser.getText());
          case "phenomenonTime" -> made.timeMs = parser.getLongValue();
          case "result" -> made.result = parser.getDoubleValue();
          case "id" -> made.id = parser.getText();
          default -> parser.skipChildren();
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return made;
  }

  /** Return the binary form. */
  public byte[] toBytes() {
    byte[] name = id.getBytes(StandardCharsets.UTF_8);
    ByteBuffer made = ByteBuffer.allocate(size(name));
    put(made, name);
    return made.array();
  }

  /** Return the record of a thing from its binary form. */
  public static Measurement of(String thing, byte[] bytes) {
    return get(thing, ByteBuffer.wrap(bytes));
  }

  static int size(byte[] name) {
    return 1 + Long.BYTES + Double.BYTES + Short.BYTES + name.length;
  }

  void put(ByteBuffer to, byte[] name) {
    to.put((byte) side).putLong(timeMs).putDouble(result).putShort((short) name.length).put(name);
  }

  static Measurement get(String thing, ByteBuffer from) {
    Measurement made = new Measurement();
    made.thing = thing;
    made.side = from.get();
    made.timeMs = from.getLong();
    made.result = from.getDouble();
    byte[] name = new byte[from.getShort()];
    from.get(name);
    made.id = new String(name, StandardCharsets.UTF_8);
    return made;
  }
}
