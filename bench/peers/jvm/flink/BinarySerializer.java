package flink;

import common.Measurement;
import common.Message;
import common.Rule;
import java.io.IOException;
import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** Serializes records and states faster than Flink's generic serializers. It writes the thing, then the other bytes. */
abstract class BinarySerializer<T> extends TypeSerializerSingleton<T> {
  private static final long serialVersionUID = 1;

  abstract String thing(T value);

  abstract byte[] bytes(T value);

  abstract T of(String thing, byte[] bytes);

  @Override
  public void serialize(T value, DataOutputView to) throws IOException {
    byte[] bytes = bytes(value);
    to.writeUTF(thing(value));
    to.writeInt(bytes.length);
    to.write(bytes);
  }

  @Override
  public T deserialize(DataInputView from) throws IOException {
    String thing = from.readUTF();
    byte[] bytes = new byte[from.readInt()];
    from.readFully(bytes);
    return of(thing, bytes);
  }

  @Override
  public T deserialize(T reuse, DataInputView from) throws IOException {
    return deserialize(from);
  }

  @Override
  public void copy(DataInputView from, DataOutputView to) throws IOException {
    serialize(deserialize(from), to);
  }

  @Override
  public T copy(T from) {
    return of(thing(from), bytes(from));
  }

  @Override
  public T copy(T from, T reuse) {
    return copy(from);
  }

  @Override
  public boolean isImmutableType() {
    return false;
  }

  @Override
  public int getLength() {
    return -1;
  }

  /** Serializes records. They are never modified, so they need not be copied. */
  static final class OfMeasurements extends BinarySerializer<Measurement> {
    static final TypeSerializer<Measurement> ONE = new OfMeasurements();
    private static final long serialVersionUID = 1;

    @Override
    String thing(Measurement value) {
      return value.thing;
    }

    @Override
    byte[] bytes(Measurement value) {
      return value.toBytes();
    }

    @Override
    Measurement of(String thing, byte[] bytes) {
      return Measurement.of(thing, bytes);
    }

    @Override
    public Measurement copy(Measurement from) {
      return from;
    }

    @Override
    public boolean isImmutableType() {
      return true;
    }

    @Override
    public Measurement createInstance() {
      return new Measurement();
    }

    @Override
    public TypeSerializerSnapshot<Measurement> snapshotConfiguration() {
      return new Snapshot();
    }

    /** The version of the format. */
    public static final class Snapshot extends SimpleTypeSerializerSnapshot<Measurement> {
      /** Called by Flink. */
      public Snapshot() {
        super(() -> ONE);
      }
    }
  }

  /** Serializes the states of things. */
  static final class OfRules extends BinarySerializer<Rule<Message>> {
    static final TypeSerializer<Rule<Message>> ONE = new OfRules();
    private static final long serialVersionUID = 1;

    @Override
    String thing(Rule<Message> value) {
      return value.thing();
    }

    @Override
    byte[] bytes(Rule<Message> value) {
      return value.toBytes();
    }

    @Override
    Rule<Message> of(String thing, byte[] bytes) {
      return Rule.of(thing, bytes);
    }

    @Override
    public Rule<Message> createInstance() {
      return Rule.start("", false);
    }

    @Override
    public TypeSerializerSnapshot<Rule<Message>> snapshotConfiguration() {
      return new Snapshot();
    }

    /** The version of the format. */
    public static final class Snapshot extends SimpleTypeSerializerSnapshot<Rule<Message>> {
      /** Called by Flink. */
      public Snapshot() {
        super(() -> ONE);
      }
    }
  }
}
