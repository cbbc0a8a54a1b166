"""The broker's settings that Apache Kafka does not have."""

from __future__ import annotations

from kbroker.settings.definition import ConfigDef, ConfigType

OWN_CONFIGS = (
    ConfigDef(
        name="kbroker.disk.min.free.bytes",
        type=ConfigType.LONG,
        default=str(64 << 20),
        minimum=0,
        doc="Disk space that producers must leave free, at most a sixteenth of the disk, and at least what "
        "the storage engines need to remove records. Below it the broker refuses Produce and new topics "
        "with KAFKA_STORAGE_ERROR and compacts nothing, so that consumers can still acknowledge and "
        "retention can make room. Half of it is for dead letters; segments of queues and of dead letter "
        "topics are at most an eighth of it. 0: producers and dead letters may fill the disk.",
    ),
    ConfigDef(
        name="kbroker.data.directory.mode",
        type=ConfigType.STRING,
        default="700",
        choices=("700", "750", "755"),
        doc="Permissions of a new data directory: 700, or for its readers, such as Spark, 750 (the group) or "
        "755 (all users). An existing one keeps its own; the broker warns if they are wider.",
    ),
    ConfigDef(
        name="kbroker.admin.protocol",
        type=ConfigType.STRING,
        default="PLAINTEXT",
        choices=("PLAINTEXT", "SSL"),
        doc="How `--admin` is served: PLAINTEXT (http) or SSL (https, with the settings `ssl.*`). "
        "`listener.name.admin.ssl.*` are for this endpoint alone.",
    ),
    ConfigDef(
        name="kbroker.payload.check",
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether Produce opens batches; default of the topic setting of that name.",
    ),
    ConfigDef(
        name="kbroker.persister",
        type=ConfigType.STRING,
        default="default",
        doc="Keeper of share state: default (state storage), noop (none; for tests), an installed plugin's "
        "name, such as control-records (logs).",
    ),
    ConfigDef(
        name="kbroker.queue.cache.bytes",
        type=ConfigType.LONG,
        default=str(8 << 20),
        minimum=1 << 20,
        doc="Memory for decompressed batches that share consumers fetch in parts; a larger single batch is "
        "held alone.",
    ),
    ConfigDef(
        name="kbroker.response.max.bytes",
        type=ConfigType.INT,
        default=str(64 << 20),
        minimum=1 << 20,
        dynamic=True,
        doc="Largest answer of several rows, except to Fetch and ShareFetch; one row may have any size.",
    ),
    ConfigDef(
        name="kbroker.sync.interval.ms",
        type=ConfigType.INT,
        default="75",
        minimum=1,
        maximum=60_000,
        doc="With --durability os: how often writes are synced in the background.",
    ),
)
