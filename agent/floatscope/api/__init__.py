"""A client of the floatscope server for programs: the standard library is all it needs.

from floatscope.api import Api, server_of

with Api(server_of(os.environ)) as api:
    for run in api.runs(status="running"):
        print(run.run_id, run.health, run.summary)
"""

from floatscope.api.api import Api
from floatscope.api.errors import ApiError, CutOff, NotFound, NotReached, Problem, Refused
from floatscope.api.records import Alert, Run, Series
from floatscope.api.where import BadAddress, Server, server_of

__all__ = [
    "Alert",
    "Api",
    "ApiError",
    "BadAddress",
    "CutOff",
    "NotFound",
    "NotReached",
    "Problem",
    "Refused",
    "Run",
    "Series",
    "Server",
    "server_of",
]
