import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer, and a consume-transform-produce loop: BOOTSTRAP INPUT OUTPUT GROUP COUNT.
 * Each input becomes an output. Every third transaction is aborted first, and then done again.
 * At the end a second producer fences the first one: "fenced" is printed.
 */
public final class TransactionProgram {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] args) {
        String output = args[2];
        KafkaProducer<String, String> producer = producer(args[0], args[3]);
        producer.initTransactions();
        int done = 0;
        int round = 0;
        try (KafkaConsumer<String, String> consumer = consumer(args[0], args[3])) {
            consumer.subscribe(List.of(args[1]));
            while (done < Integer.parseInt(args[4])) {
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                consumer.poll(PATIENCE).forEach(records::add);
                if (records.isEmpty()) {
                    throw new IllegalStateException("no more inputs after " + done);
                }
                round++;
                if (round % 3 == 1) {
                    send(producer, consumer, records, output, "aborted ");
                    producer.abortTransaction();
                }
                send(producer, consumer, records, output, "of ");
                producer.commitTransaction();
                done += records.size();
            }
        }
        try (KafkaProducer<String, String> second = producer(args[0], args[3])) {
            second.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(output, 0, null, "late"));
            producer.commitTransaction();
            System.out.println("not fenced");
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            System.out.println("fenced");
        }
        producer.close(Duration.ZERO);
    }

    private static void send(
            KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            List<ConsumerRecord<String, String>> records, String output, String prefix) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(output, record.partition(), null, prefix + record.value()));
            offsets.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String transactionalId) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", transactionalId);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", "7");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }
}
