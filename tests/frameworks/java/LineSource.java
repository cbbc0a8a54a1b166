import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** A source that reads a growing file: each line is a record, its offset the byte after the line. */
public final class LineSource extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public void stop() {}

    @Override
    public Class<? extends Task> taskClass() {
        return Lines.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        return List.of(settings);
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "the file")
            .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "the topic of its lines");
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public String version() {
        return "1";
    }

    public static final class Lines extends SourceTask {
        private static final int MOST_BYTES = 4096;
        private static final long PAUSE_MS = 20;
        private String topic;
        private Map<String, String> partition;
        private RandomAccessFile file;
        private long position;

        @Override
        public void start(Map<String, String> settings) {
            topic = settings.get("topic");
            partition = Map.of("file", settings.get("file"));
            Map<String, Object> stored = context.offsetStorageReader().offset(partition);
            position = stored == null ? 0 : (Long) stored.get("position");
            try {
                file = new RandomAccessFile(settings.get("file"), "r");
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            byte[] bytes = new byte[MOST_BYTES];
            List<SourceRecord> records = new ArrayList<>();
            try {
                file.seek(position);
                int length = Math.max(file.read(bytes), 0);
                int begin = 0;
                for (int end = 0; end < length; end++) {
                    if (bytes[end] == '\n') {
                        records.add(record(new String(bytes, begin, end - begin), position + end + 1));
                        begin = end + 1;
                    }
                }
                position += begin;
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            if (records.isEmpty()) {
                Thread.sleep(PAUSE_MS);
                return null;
            }
            return records;
        }

        private SourceRecord record(String line, long next) {
            return new SourceRecord(partition, Map.of("position", next), topic, Schema.STRING_SCHEMA, line);
        }

        @Override
        public void stop() {
            try {
                file.close();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
