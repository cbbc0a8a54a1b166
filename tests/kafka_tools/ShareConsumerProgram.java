import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer as in an application: the record's value says how to acknowledge it.
 *
 *   accept    ACCEPT
 *   release   RELEASE at the first delivery, ACCEPT at the second
 *   reject    REJECT
 *   renew     RENEW until twice the duration of the record's first lock has passed, then ACCEPT
 *
 * Arguments: bootstrap servers, topic, group, records to finish, lock duration in ms, and for another acquire mode
 * than batch_optimized, that mode and the maximum number of records per poll.
 * Prints for each delivery "value delivery-count verdict", and at the end "finished N".
 */
public class ShareConsumerProgram {
    public static void main(String[] arguments) {
        int wanted = Integer.parseInt(arguments[3]);
        long lockMs = Long.parseLong(arguments[4]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[2]);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("share.acquire.mode", arguments.length > 5 ? arguments[5] : "batch_optimized");
        properties.put("max.poll.records", arguments.length > 6 ? arguments[6] : "10");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        Map<Long, Long> firstSeen = new HashMap<>();
        int finished = 0;
        long deadline = System.currentTimeMillis() + 60_000;
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(arguments[1]));
            while (finished < wanted && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    AcknowledgeType verdict = verdict(record, firstSeen, lockMs);
                    System.out.println(record.value() + " " + record.deliveryCount().get() + " " + verdict.name());
                    consumer.acknowledge(record, verdict);
                    if (verdict == AcknowledgeType.ACCEPT || verdict == AcknowledgeType.REJECT) {
                        finished++;
                    }
                }
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(e -> System.out.println("error " + e)));
            }
        }
        System.out.println("finished " + finished);
    }

    private static AcknowledgeType verdict(ConsumerRecord<String, String> record, Map<Long, Long> firstSeen, long lockMs) {
        String value = String.valueOf(record.value());
        if (value.startsWith("reject")) {
            return AcknowledgeType.REJECT;
        }
        if (value.startsWith("release") && record.deliveryCount().get() == 1) {
            return AcknowledgeType.RELEASE;
        }
        if (value.startsWith("renew")) {
            long now = System.currentTimeMillis();
            long first = firstSeen.computeIfAbsent(record.offset(), offset -> now);
            return now - first < 2 * lockMs ? AcknowledgeType.RENEW : AcknowledgeType.ACCEPT;
        }
        return AcknowledgeType.ACCEPT;
    }
}
