"""Client workloads against any broker that speaks Kafka's protocol. Each client is a process with
the unmodified client library.

    window          starts the clients, opens and closes the window, collects the reports
    client_process  the client's side of the window
    outcome         the results of a workload
    fill            fills topics with records
    produce, fetch, share, latency    the workloads: in each a function of the same name (in `share`
                                      it is share_consume)

The caller creates topics and sets configs of groups. Nothing here depends on how the broker runs.
"""
