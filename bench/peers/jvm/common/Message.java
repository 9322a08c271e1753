package common;

import java.util.List;

/** A result. */
public interface Message {
  /** Return the key of the message, which is the thing. */
  byte[] key();

  /** Return the message. The quantities are those of the driver and of the columns. */
  byte[] json(List<String> quantities);
}
