import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An instance of Kafka Streams with exactly_once_v2: BOOTSTRAP APPLICATION INPUT OUTPUT KEYS FOLDER.
 * Each input, a number, gets one of KEYS keys, which needs a repartition topic. A state store counts
 * the inputs of each key. Each input becomes an output: "COUNT INPUT" with the new key.
 */
public final class RunningNumbers {
    public static void main(String[] args) {
        int keys = Integer.parseInt(args[4]);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[2])
            .selectKey((key, input) -> "key-" + Long.parseLong(input) % keys)
            .groupByKey()
            .aggregate(
                () -> "0 none",
                (key, input, before) -> (Long.parseLong(before.split(" ")[0]) + 1) + " " + input,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("running"))
            .toStream()
            .to(args[3]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(args));
        streams.setStateListener((now, before) -> {
            System.out.println("state " + now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        streams.start();
    }

    private static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[5]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // With a cache, only the last of several updates of a key is an output.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // A transaction is open most of the time, so that kills hit one.
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 500);
        // The others take over as soon as the broker allows.
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
        return settings;
    }
}
