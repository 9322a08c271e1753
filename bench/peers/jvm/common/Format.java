package common;

import java.util.List;

/** The format of the messages. An instance is used by one thread only. */
public interface Format {
  /** Return the record in a message. */
  Measurement read(byte[] message);

  /**
   * Return the format of messages in Avro with this schema, or in JSON if the schema is null. The side of a record is
   * the index of its quantity.
   */
  static Format of(String schema, List<String> quantities) {
    return schema == null ? json -> Measurement.parse(json, quantities) : new Avro(schema, quantities);
  }
}
