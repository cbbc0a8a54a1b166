"""Workloads of clients, against any broker that speaks Kafka's protocol: the unmodified client
library, a process for each client.

    window          begin together, warm up, open, close, gather: what is counted and what is not
    client_process  a client's end of it
    outcome         what came out
    fill            a topic with records in it
    produce, fetch, share, latency    the workloads, each a function of the same name (`share` has
                                      share_consume)

Topics and the configs of groups are the caller's business. Nothing here knows how the broker runs.
"""
