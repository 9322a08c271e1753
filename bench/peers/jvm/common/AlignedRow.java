package common;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamWriteFeature;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A result: a record of the driver, and the previous value of each column at its time (NaN: none so far). */
public record AlignedRow(Measurement driver, double[] values) implements Message {
  // The number conversion of the JDK, which is the default, is slower.
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamWriteFeature.USE_FAST_DOUBLE_WRITER).build();
  private static final int BYTES = 200;

  @Override
  public byte[] key() {
    return driver.thing.getBytes(StandardCharsets.UTF_8);
  }

  @Override
  public byte[] json(List<String> quantities) {
    ByteArrayOutputStream made = new ByteArrayOutputStream(BYTES);
    try (JsonGenerator to = JSON.createGenerator(made)) {
      to.writeStartObject();
      to.writeStringField("thing", driver.thing);
      to.writeNumberField("phenomenonTime", driver.timeMs);
      to.writeNumberField("result", driver.result);
      to.writeStringField("id", driver.id);
      to.writeObjectFieldStart("values");
      for (int side = 1; side < quantities.size(); side++) {
        to.writeFieldName(quantities.get(side));
        if (side > values.length || Double.isNaN(values[side - 1])) to.writeNull();
        else to.writeNumber(values[side - 1]);
      }
      to.writeEndObject();
      to.writeEndObject();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return made.toByteArray();
  }
}
