import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Workers of a queue, with the jobs and the events of tests/clients/queue_worker.py: `work`, `fail` and `reject`.
 *
 * Arguments: bootstrap servers, the queue, and how many workers; each is a thread. SIGTERM ends them at once.
 */
public class QueueWorker {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) {
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            String name = "java-worker-" + number;
            new Thread(() -> run(arguments[0], arguments[1], name)).start();
        }
    }

    private static void run(String bootstrap, String queue, String name) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", queue);
        properties.put("client.id", name);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("max.poll.interval.ms", "3600000");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(queue));
            say(event("ready"));
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    work(consumer, record);
                }
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void work(KafkaShareConsumer<String, String> consumer, ConsumerRecord<String, String> record) throws Exception {
        JsonNode job = JSON.readTree(record.value());
        short count = record.deliveryCount().get();
        say(placed(event("took"), record).put("count", count).put("job", job.path("job").asInt()));
        JsonNode work = job.path("work");
        int last = Math.min(count, work.size()) - 1;
        Thread.sleep((long) (1000 * (work.isArray() ? work.get(last) : work).asDouble()));
        AcknowledgeType kind = job.path("reject").asBoolean() ? AcknowledgeType.REJECT
            : count <= job.path("fail").asInt() ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
        double sentAt = now();
        consumer.acknowledge(record, kind);
        Map<TopicIdPartition, Optional<KafkaException>> answers = consumer.commitSync();
        int code = 0;
        for (Optional<KafkaException> answer : answers.values()) {
            if (answer.isPresent()) {
                code = answer.get() instanceof ApiException refused ? Errors.forException(refused).code() : -1;
            }
        }
        say(placed(event("answered"), record).put("kind", kind.name()).put("code", code).put("sent_at", sentAt));
    }

    private static ObjectNode event(String name) {
        return JSON.createObjectNode().put("event", name).put("at", now());
    }

    private static ObjectNode placed(ObjectNode event, ConsumerRecord<String, String> record) {
        return event.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
    }

    /** By the monotonic clock, as in Python. */
    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static synchronized void say(ObjectNode event) {
        System.out.println(event);
    }
}
