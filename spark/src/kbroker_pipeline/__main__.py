"""`python -m kbroker_pipeline JOB ...`, and the file to pass to spark-submit."""

from kbroker_pipeline.cli import main

if __name__ == "__main__":
    main()
