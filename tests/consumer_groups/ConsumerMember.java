import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group with Kafka's own consumer: gets records, logs them, commits, and repeats the commit for a partition
 * before it gives it up. Its events are those of tests/judges/history_events.py, one per line.
 *
 * Arguments: kind (java-range, java-cooperative: classic protocol; java-consumer: the new one), name, bootstrap servers, group, topic,
 * history file, session timeout in ms, seed. System.nanoTime() is CLOCK_MONOTONIC, as in the other processes.
 */
public class ConsumerMember implements ConsumerRebalanceListener {
    private final String name;
    private final FileChannel history;
    private final KafkaConsumer<String, String> consumer;
    private final Map<TopicPartition, Long> readUpTo = new HashMap<>();
    private final Map<TopicPartition, Long> confirmed = new HashMap<>();
    private final Set<TopicPartition> held = new HashSet<>();
    private final Set<TopicPartition> fenced = new HashSet<>();
    private long askedNs = System.nanoTime();
    private static volatile boolean stopping = false;

    public static void main(String[] arguments) throws IOException {
        Thread main = Thread.currentThread();
        int[] code = {1};
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                main.join();
            } catch (InterruptedException e) {
                code[0] = 2;
            }
            Runtime.getRuntime().halt(code[0]);
        }));
        new ConsumerMember(arguments).run();
        code[0] = 0;
    }

    private ConsumerMember(String[] arguments) throws IOException {
        name = arguments[1];
        consumer = new KafkaConsumer<>(properties(arguments));
        consumer.subscribe(List.of(arguments[4]), this);
        history = FileChannel.open(Path.of(arguments[5]), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static Properties properties(String[] arguments) {
        Properties properties = new Properties();
        properties.put("client.id", arguments[1]);
        properties.put("bootstrap.servers", arguments[2]);
        properties.put("group.id", arguments[3]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("fetch.max.wait.ms", "100");
        properties.put("reconnect.backoff.ms", "20");
        properties.put("reconnect.backoff.max.ms", "200");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        if (arguments[0].equals("java-consumer")) {
            properties.put("group.protocol", "consumer");
            return properties;
        }
        Class<?> assignor = arguments[0].equals("java-range") ? RangeAssignor.class : CooperativeStickyAssignor.class;
        int sessionMs = Integer.parseInt(arguments[6]);
        properties.put("partition.assignment.strategy", assignor.getName());
        properties.put("session.timeout.ms", Integer.toString(sessionMs));
        properties.put("heartbeat.interval.ms", Integer.toString(sessionMs / 8));
        return properties;
    }

    private void run() {
        while (!stopping || !uncommitted().isEmpty()) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (!records.isEmpty()) {
                read(records);
            }
            commit(uncommitted());
        }
        consumer.close();
    }

    private void read(ConsumerRecords<String, String> records) {
        long now = System.nanoTime();
        StringBuilder lines = new StringBuilder();
        for (ConsumerRecord<String, String> record : records) {
            lines.append(String.format("{\"event\":\"Read\",\"at_ns\":%d,\"consumer\":\"%s\",\"record\":[\"%s\",%d,%d],\"value\":\"%s\"}\n",
                now, name, record.topic(), record.partition(), record.offset(), record.value().stripTrailing()));
            readUpTo.put(new TopicPartition(record.topic(), record.partition()), record.offset() + 1);
        }
        write(lines);
    }

    /** A commit may be refused for a while, for example during a rebalance. */
    private Set<TopicPartition> uncommitted() {
        Set<TopicPartition> found = new HashSet<>(readUpTo.keySet());
        found.removeIf(partition -> readUpTo.get(partition).equals(confirmed.get(partition)));
        return found;
    }

    private void commit(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : partitions) {
            if (readUpTo.containsKey(partition)) {
                offsets.put(partition, new OffsetAndMetadata(readUpTo.get(partition)));
            }
        }
        if (offsets.isEmpty()) {
            return;
        }
        StringBuilder lines = new StringBuilder();
        offsets.forEach((partition, offset) -> lines.append(event("CommitSent", partition, ",\"offset\":" + offset.offset())));
        write(lines);
        String outcome;
        try {
            consumer.commitSync(offsets);
            outcome = "confirmed";
            fenced.removeAll(offsets.keySet());
            offsets.forEach((partition, offset) -> confirmed.put(partition, offset.offset()));
        } catch (CommitFailedException e) {
            outcome = "refused";
            fenced.addAll(offsets.keySet());
        } catch (RebalanceInProgressException e) {
            outcome = "refused";
        } catch (KafkaException e) {
            outcome = "unknown";
        }
        StringBuilder answers = new StringBuilder();
        for (TopicPartition partition : offsets.keySet()) {
            answers.append(event("CommitAnswered", partition, ",\"outcome\":\"" + outcome + "\""));
        }
        write(answers);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        held.addAll(partitions);
        StringBuilder lines = new StringBuilder();
        partitions.forEach(partition -> lines.append(event("Assigned", partition, ",\"asked_ns\":" + askedNs)));
        write(lines);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit(partitions);
        giveUp(partitions, false);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        giveUp(partitions, true);
    }

    /** If it is closed during a rebalance, this library reports some partitions twice. */
    private void giveUp(Collection<TopicPartition> told, boolean lost) {
        List<TopicPartition> partitions = told.stream().filter(held::contains).toList();
        StringBuilder lines = new StringBuilder();
        partitions.forEach(partition -> lines.append(event("Revoked", partition, ",\"lost\":" + (lost || fenced.contains(partition)))));
        write(lines);
        held.removeAll(partitions);
        readUpTo.keySet().removeAll(partitions);
        confirmed.keySet().removeAll(partitions);
        fenced.removeAll(partitions);
        askedNs = System.nanoTime();
    }

    private String event(String event, TopicPartition partition, String more) {
        return String.format("{\"event\":\"%s\",\"at_ns\":%d,\"consumer\":\"%s\",\"topic\":\"%s\",\"partition\":%d%s}\n",
            event, System.nanoTime(), name, partition.topic(), partition.partition(), more);
    }

    /** With one write, so that kill -9 of this process loses nothing. */
    private void write(StringBuilder lines) {
        try {
            ByteBuffer bytes = ByteBuffer.wrap(lines.toString().getBytes(StandardCharsets.UTF_8));
            while (bytes.hasRemaining()) {
                history.write(bytes);
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
