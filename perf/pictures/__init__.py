"""The pictures of the README, made from real runs: `python -m perf.pictures.queue` and `python -m
perf.pictures.spark_report`. The picture of the figures is made by `perf.report`."""
