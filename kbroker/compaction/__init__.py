"""Log compaction, the pure part: of each key only the latest record stays (cleanup.policy=compact).

    offset_map.py       the latest offset of each key, in bounded memory
    mapping.py          fills it from the batches that are new since the last pass
    transactions.py     what a pass has seen of transactions: aborted records, markers without any
    batch_cleaning.py   a pass: which records of a batch stay, and the batch that holds them
    choice.py           whether a log needs a pass, and how far the pass may go

No module here reads a log, a clock or a setting. kbroker/broker/compaction/ does.
"""
