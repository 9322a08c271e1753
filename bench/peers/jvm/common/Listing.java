package common;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Turns records from standard input, one per line, into results on standard output. It shows the rules without an
 * engine.
 *
 * <p>usage: Listing QUANTITIES ORDER [SCHEMA]
 *
 * <p>The quantities are those of the two sides of a join, or of a driver and its columns, separated by commas. An empty
 * line ends a stream. If ORDER is {@code passed} instead of {@code arrival}, the program announces before each later
 * record that no more records with earlier times follow. After each record, the state is written and read back, as in
 * an engine's store. With a schema, the messages are in Avro, and the lines in Base64.
 */
public final class Listing {
  public static void main(String[] given) throws IOException {
    BufferedReader from = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream to = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    Map<String, byte[]> states = new HashMap<>();
    Map<String, Listed> runs = new HashMap<>();
    List<String> quantities = List.of(given[0].split(","));
    boolean hasWatermarks = given[1].equals("passed");
    Format format = Format.of(given.length > 2 ? given[2] : null, quantities);
    boolean hasColumns = !quantities.equals(Measurement.SIDES);
    Consumer<Message> out = one -> to.println(new String(one.json(quantities), StandardCharsets.UTF_8));
    for (String line = from.readLine(); line != null; line = from.readLine()) {
      if (line.isEmpty()) {
        states.clear();
        runs.clear();
        to.println();
        continue;
      }
      byte[] message = line.getBytes(StandardCharsets.UTF_8);
      Measurement one = format.read(given.length > 2 ? Base64.getDecoder().decode(message) : message);
      byte[] state = states.get(one.thing);
      Rule<Message> rule = state == null ? Rule.start(one.thing, hasColumns) : Rule.of(one.thing, state);
      Listed run = runs.computeIfAbsent(one.thing, thing -> new Listed());
      if (hasWatermarks && one.timeMs > rule.timeMs()) rule.passed(one.timeMs - 1, run, out);
      rule.add(one, run, out);
      states.put(one.thing, rule.toBytes());
    }
    to.flush();
  }

  private static final class Listed implements Neighbours.Run {
    private final List<Measurement> run = new ArrayList<>();

    @Override
    public void add(Measurement one, int number) {
      if (number != run.size()) throw new IllegalStateException("number " + number + " of " + run.size());
      run.add(one);
    }

    @Override
    public void drain(Consumer<Measurement> to) {
      run.forEach(to);
      run.clear();
    }
  }

  private Listing() {}
}
