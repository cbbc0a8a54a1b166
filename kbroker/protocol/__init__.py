"""The Kafka wire protocol: frames, headers and messages over kio's schemas; encoders by hand only
where measured hot."""
