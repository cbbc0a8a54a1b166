"""The share coordinator (KIP-932), pure: the state of share-partitions as snapshots and updates."""
