import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A KafkaConsumer that is controlled by its standard input: each line has a command and its arguments, separated by tabs. The answer is
 * any number of lines and a last one, "done" or "error" with Kafka's code (-1: none) and text. Ends after "close".
 */
public class ConsumerProgram {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Properties SETTINGS = new Properties();
    private static KafkaConsumer<String, String> consumer;

    private static final ConsumerRebalanceListener LISTENER = new ConsumerRebalanceListener() {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            if (!partitions.isEmpty()) {
                OUT.println("changed");
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            OUT.println("changed");
        }
    };

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);  // Before the client is loaded: it logs there.
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            try {
                obey(words[0], Arrays.asList(words).subList(1, words.length));
                OUT.println("done");
            } catch (RuntimeException error) {
                Errors known = Errors.forException(error);
                String text = (error.getClass().getSimpleName() + ": " + error.getMessage()).replaceAll("\\s+", " ");
                OUT.println("error\t" + (known == Errors.UNKNOWN_SERVER_ERROR ? -1 : known.code()) + "\t" + text);
            }
            if (words[0].equals("close")) {
                return;
            }
        }
    }

    private static void obey(String command, List<String> words) {
        switch (command) {
            case "set" -> SETTINGS.put(words.get(0), words.get(1));
            case "open" -> consumer = new KafkaConsumer<>(SETTINGS, new StringDeserializer(), new StringDeserializer());
            case "subscribe" -> consumer.subscribe(words, LISTENER);
            case "pattern" -> consumer.subscribe(Pattern.compile(words.get(0)), LISTENER);
            case "assign" -> assign(words);
            case "poll" -> poll(Duration.ofMillis(Long.parseLong(words.get(0))));
            case "assignment" -> consumer.assignment().forEach(ConsumerProgram::print);
            case "commit" -> commit(words);
            case "commit_async" -> consumer.commitAsync();
            case "committed" -> committed(place(words));
            case "seek" -> consumer.seek(place(words), Long.parseLong(words.get(2)));
            case "pause" -> consumer.pause(List.of(place(words)));
            case "resume" -> consumer.resume(List.of(place(words)));
            case "offset_for_time" -> offsetForTime(place(words), Long.parseLong(words.get(2)));
            case "close" -> consumer.close();
            default -> throw new IllegalArgumentException(command);
        }
    }

    private static TopicPartition place(List<String> words) {
        return new TopicPartition(words.get(0), Integer.parseInt(words.get(1)));
    }

    /** Topic and partition, repeated. */
    private static void assign(List<String> words) {
        List<TopicPartition> places = new ArrayList<>();
        for (int at = 0; at + 1 < words.size(); at += 2) {
            places.add(place(words.subList(at, at + 2)));
        }
        consumer.assign(places);
    }

    private static void print(TopicPartition place) {
        OUT.println(place.topic() + "\t" + place.partition());
    }

    private static void poll(Duration timeout) {
        for (ConsumerRecord<String, String> record : consumer.poll(timeout)) {
            OUT.println("got\t" + record.topic() + "\t" + record.partition() + "\t" + record.offset() + "\t" + record.value());
        }
    }

    /** Topic, partition, offset and metadata, repeated; none: the positions read so far. */
    private static void commit(List<String> words) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (int at = 0; at + 3 < words.size(); at += 4) {
            long offset = Long.parseLong(words.get(at + 2));
            offsets.put(place(words.subList(at, at + 2)), new OffsetAndMetadata(offset, words.get(at + 3)));
        }
        if (offsets.isEmpty()) {
            consumer.commitSync();
        } else {
            consumer.commitSync(offsets);
        }
    }

    private static void committed(TopicPartition place) {
        OffsetAndMetadata row = consumer.committed(Set.of(place)).get(place);
        if (row != null) {
            OUT.println(row.offset() + "\t" + row.metadata());
        }
    }

    private static void offsetForTime(TopicPartition place, long timestamp) {
        OffsetAndTimestamp row = consumer.offsetsForTimes(Map.of(place, timestamp)).get(place);
        if (row != null) {
            OUT.println(row.offset());
        }
    }
}
