"""Components that run inside NVFlare's own processes: a controller at the server and an executor at every site.

This module travels with the job to servers that do not have FedSim installed, so it imports NVFlare only.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsData
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.widgets.convert_to_fed_event import FED_EVENT_PREFIX

TASK = "fedsim"
REPORT = "fedsim"  # key of a party's report in the metadata of its result
RESULT_FILE = "fedsim.json"
EPOCHS_TAG = "epochs"
SITE_COMMAND = [sys.executable, "-m", "fedsim_nvflare.site"]  # with the Python of the site's NVFlare
FINISHED, FAILED = "finished", "failed"
OTHERS_SECONDS = 15.0  # after one party failed, the others are notified by it and report soon
HEARTBEAT_SECONDS = 120.0  # without a sign of life from a party's process


class FedSimExecutor(ClientAPIExecutor):  # type: ignore[misc] # NVFlare has no types
    """Runs one party of a job in its own process; a process that died is restarted with the next task.

    Parameters
    ----------
    job_file
        Name of the job file, which is deployed to the folder ``config`` of the app.
    party_file
        Path of the party file at the site; a relative path starts at the site's workspace.
    """

    def __init__(self, job_file: str, party_file: str) -> None:
        super().__init__(
            execution_mode=ExecutionMode.EXTERNAL_PROCESS,
            command=SITE_COMMAND,
            launch_once=False,
            heartbeat_timeout=HEARTBEAT_SECONDS,
        )
        self.job_file, self.party_file = job_file, party_file

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Complete the command at the start of the run, when the site's folders are known."""
        if event_type == EventType.START_RUN:
            workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            job_file = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()), self.job_file)
            self._command = [*SITE_COMMAND, str(job_file), str(Path(workspace.get_root_dir(), self.party_file))]
        super().handle_event(event_type, fl_ctx)


class FedSimController(Controller):  # type: ignore[misc] # NVFlare has no types
    """Starts the party at every site, logs the epochs, and ends the job when all parties finished or one failed.

    Parameters
    ----------
    sites
        The names of the sites.
    restarts
        How often the process of one site may die and be started again; it resumes from its last checkpoint.
    """

    def __init__(self, sites: list[str], restarts: int = 3) -> None:
        super().__init__()
        self.sites, self.restarts = sites, restarts
        self._done: SimpleQueue[Task] = SimpleQueue()

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing: the parties start in ``control_flow``."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing: NVFlare stops the parties."""

    def process_result_of_unknown_task(self, *_: Any) -> None:
        """Ignore the result of a party that was abandoned."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run all parties, write their reports to ``fedsim.json`` in the folder of the run, and fail if one failed."""
        reports: dict[str, dict[str, Any]] = {}
        deaths: Counter[str] = Counter()
        deadline = float("inf")
        for site in self.sites:
            self._start(site, fl_ctx)
        while len(reports) < len(self.sites) and time.monotonic() < deadline and not abort_signal.triggered:
            try:
                task = self._done.get(timeout=0.5)
            except Empty:
                continue
            site, report = task.props["site"], _read_report(task)
            if report["code"] == "process-died" and deaths[site] < self.restarts and deadline == float("inf"):
                deaths[site] += 1
                self.log_warning(fl_ctx, f"the process of {site} died; starting it again")
                self._start(site, fl_ctx)
                continue
            reports[site] = report
            self.log_info(fl_ctx, f"{site}: {_describe(report)}")
            if report["status"] == FAILED:
                deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)
        self._write(reports, fl_ctx)
        failed = [f"{site} {_describe(report)}" for site, report in reports.items() if report["status"] == FAILED]
        if failed and not abort_signal.triggered:
            self.system_panic(f"{'; '.join(failed)}; nvflare.log in the folder of each party states the reason", fl_ctx)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Log the figures that the primary reports."""
        super().handle_event(event_type, fl_ctx)
        if event_type == FED_EVENT_PREFIX + ANALYTIC_EVENT_TYPE:
            shared = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            figure = AnalyticsData.from_dxo(from_shareable(shared))
            site = shared.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
            if figure is not None:
                what = "done" if figure.tag == EPOCHS_TAG else f"{figure.tag} {figure.value:.5g}"
                self.log_info(fl_ctx, f"{site}: epoch {figure.step}: {what}")

    def _start(self, site: str, fl_ctx: Any) -> None:
        data = FLModelUtils.to_shareable(FLModel(params={}))
        task = Task(TASK, data, props={"site": site}, task_done_cb=lambda task, fl_ctx: self._done.put(task))
        self.send(task, fl_ctx, targets=[site])

    def _write(self, reports: dict[str, dict[str, Any]], fl_ctx: Any) -> None:
        folder = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
        Path(folder, RESULT_FILE).write_text(json.dumps(reports, indent=2), encoding="utf-8")


def _read_report(task: Task) -> dict[str, Any]:
    """Return what a party reported; a party whose process or site is gone reported nothing."""
    if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
        return {"status": FAILED, "code": "site-lost"}
    result = task.client_tasks[-1].result if task.client_tasks else None
    if result is None or result.get_return_code() != ReturnCode.OK:
        return {"status": FAILED, "code": "process-died"}
    report: dict[str, Any] = FLModelUtils.from_shareable(result).meta[REPORT]
    return report


def _describe(report: dict[str, Any]) -> str:
    return f"{report['party']} {report['status']}" if report["status"] == FINISHED else f"failed ({report['code']})"
