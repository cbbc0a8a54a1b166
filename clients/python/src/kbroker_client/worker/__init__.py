"""Workers: functions that do the jobs of queues, under asyncio and trio.

from kbroker_client.worker import App, Reject, Retry
"""

from ..errors import QueueMissing
from ..security import Security
from .app import App
from .job import Job, JobEvent
from .policies import Reject, Retry, Unreadable
from .queue_facts import SchedulingOff
from .serializers import JSON, RAW, Serializer
from .service import StartRefused
from .task import Task

__all__ = [
    "JSON", "RAW", "App", "Job", "JobEvent", "QueueMissing", "Reject", "Retry", "SchedulingOff",
    "Security", "Serializer", "StartRefused", "Task", "Unreadable",
]  # fmt: skip
