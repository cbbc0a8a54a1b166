"""The Kafka wire protocol: frames, headers and messages over kio's schemas, with hand-written code
for the hot requests only."""
