import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

/**
 * Calls Kafka's assignors of consumer groups directly: cases as JSON on the standard input, their assignments as JSON on the standard output.
 *
 * A group here keeps the case's order of members, topics and partitions, while a broker's group has that of its hash maps.
 * The form of a case is in tests/groups/assignors/cases.py.
 */
public class AssignorProgram {
    private static final ObjectMapper JSON = new ObjectMapper();

    record Member(Optional<String> instanceId, Set<Uuid> subscribedTopicIds, Map<Uuid, Set<Integer>> partitions)
        implements MemberSubscription, MemberAssignment {
        @Override
        public Optional<String> rackId() {
            return Optional.empty();
        }
    }

    record Group(Map<String, Member> members, SubscriptionType subscriptionType) implements GroupSpec {
        @Override
        public Collection<String> memberIds() {
            return members.keySet();
        }

        @Override
        public boolean isPartitionAssigned(Uuid topicId, int partition) {
            return members.values().stream().anyMatch(member -> member.partitions().getOrDefault(topicId, Set.of()).contains(partition));
        }

        @Override
        public boolean isPartitionAssignable(Uuid topicId, int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(String memberId) {
            return members.get(memberId);
        }

        @Override
        public MemberAssignment memberAssignment(String memberId) {
            return members.get(memberId);
        }
    }

    record Topics(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ArrayNode answers = JSON.createArrayNode();
        for (JsonNode given : JSON.readTree(System.in)) {
            ConsumerGroupPartitionAssignor assignor =
                given.get("assignor").asText().equals("range") ? new RangeAssignor() : new UniformAssignor();
            Map<Uuid, Integer> counts = new LinkedHashMap<>();
            given.get("partitions").fields().forEachRemaining(topic -> counts.put(uuid(topic.getKey()), topic.getValue().asInt()));
            answers.add(written(assignor.assign(group(given.get("members")), new Topics(counts)).members()));
        }
        JSON.writeValue(System.out, answers);
    }

    private static Group group(JsonNode given) {
        Map<String, Member> members = new LinkedHashMap<>();
        Set<Set<Uuid>> subscriptions = new LinkedHashSet<>();
        for (JsonNode each : given) {
            Set<Uuid> topics = new LinkedHashSet<>();
            each.get("topics").forEach(topic -> topics.add(uuid(topic.asText())));
            subscriptions.add(topics);
            Map<Uuid, Set<Integer>> assigned = new LinkedHashMap<>();
            each.get("assigned").fields().forEachRemaining(topic -> {
                Set<Integer> numbers = new LinkedHashSet<>();
                topic.getValue().forEach(number -> numbers.add(number.asInt()));
                assigned.put(uuid(topic.getKey()), numbers);
            });
            Optional<String> instanceId = Optional.ofNullable(each.get("instance").textValue());
            members.put(each.get("id").asText(), new Member(instanceId, topics, Collections.unmodifiableMap(assigned)));
        }
        return new Group(members, subscriptions.size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS);
    }

    private static ObjectNode written(Map<String, MemberAssignment> assignment) {
        ObjectNode members = JSON.createObjectNode();
        assignment.forEach((memberId, assigned) -> {
            ObjectNode topics = members.putObject(memberId);
            assigned.partitions().forEach((topicId, numbers) -> {
                ArrayNode row = topics.putArray(new UUID(topicId.getMostSignificantBits(), topicId.getLeastSignificantBits()).toString());
                new TreeSet<>(numbers).forEach(row::add);
            });
        });
        return members;
    }

    private static Uuid uuid(String text) {
        UUID parsed = UUID.fromString(text);
        return new Uuid(parsed.getMostSignificantBits(), parsed.getLeastSignificantBits());
    }
}
