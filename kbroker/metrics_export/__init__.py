"""/metrics: the broker's numbers, gathered at each scrape and encoded by the prometheus-client
library.

    definition.py        a row of the tables
    table.py             all metrics; nothing else can be added to a scrape
    share_table.py       its part for share groups
    scrape.py            the values of one scrape, and its pace
    broker_numbers.py    requests, topics, commits, coordinators: read from the parts' counters and
                         statistics() in one step each
    consumer_numbers.py  classic and consumer groups, committed offsets, lag
    share_numbers.py     share groups and share-partitions: lag, age, in flight
    exposition.py        families to text, a piece at a time

Everything here is read-only: a scrape loads no share-partition and changes no state.
"""
