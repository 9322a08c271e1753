package common;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.util.Utf8;

/**
 * Messages in Avro, each after a byte 0 and the id of its schema (4 bytes).
 *
 * <p>All messages have the same schema, which is given, so the id is not read, and no registry is asked. As Avro's
 * documentation advises, the reader is the fast one, and it reuses the decoder and the record with all its parts.
 */
final class Avro implements Format {
  private static final int HEADER_BYTES = 5;

  private final GenericDatumReader<GenericRecord> reader;
  private final List<Utf8> quantities;
  private final int device;
  private final int name;
  private final int type;
  private final int unixtime;
  private final int value;
  private final int number;
  private BinaryDecoder decoder;
  private GenericRecord record;

  Avro(String text, List<String> quantities) {
    Schema schema = new Schema.Parser().parse(text);
    reader = new GenericDatumReader<>(schema, schema, new GenericData().setFastReaderEnabled(true));
    this.quantities = quantities.stream().map(Utf8::new).toList();
    // Positions, because looking a field up by its name takes longer.
    device = schema.getField("device").pos();
    name = schema.getField("device").schema().getField("name").pos();
    type = schema.getField("type").pos();
    unixtime = schema.getField("unixtime").pos();
    value = schema.getField("value").pos();
    number = schema.getField("no").pos();
  }

  @Override
  public Measurement read(byte[] message) {
    if (message.length < HEADER_BYTES || message[0] != 0)
      throw new IllegalArgumentException("a message does not begin with a byte 0 and the id of a schema");
    try {
      decoder = DecoderFactory.get().binaryDecoder(message, HEADER_BYTES, message.length - HEADER_BYTES, decoder);
      record = reader.read(record, decoder);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    Measurement made = new Measurement();
    made.thing = ((GenericRecord) record.get(device)).get(name).toString();
    made.side = quantities.indexOf(record.get(type));
    made.timeMs = (Long) record.get(unixtime);
    made.result = (Double) record.get(value);
    made.id = record.get(number).toString();
    return made;
  }
}
