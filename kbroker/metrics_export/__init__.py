"""/metrics: what the broker counts, gathered when somebody asks, and written as the
prometheus-client library writes it.

    table.py             every metric there is; nothing else can be added to a scrape
    scrape.py            the families of one scrape in the making, and the turns that others get
                         meanwhile
    broker_numbers.py    requests, topics, commits, coordinators: read from the parts' counters and
                         statistics() in one step each
    consumer_numbers.py  classic and consumer groups, committed offsets, lag
    share_numbers.py     share groups and share-partitions: lag, age, in flight
    exposition.py        families to text, a piece at a time

Everything here is read-only: a scrape loads no share-partition and changes no state.
"""
