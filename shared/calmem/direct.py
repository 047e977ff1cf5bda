"""Memory over Postgres and Redis, in the host's own process."""

from __future__ import annotations

from calmem.facts import Facts
from calmem.models import ActiveModel, Models
from calmem.queueing import WakeUps
from calmem.recall import Recaller
from calmem.recording import Recorder
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import Users


class Direct:
    """The use cases as one backend. Nothing is connected before the first call."""

    def __init__(self, settings: Settings) -> None:
        self._database = Database(settings)
        self._database.open()
        models = Models(settings)
        self._model = ActiveModel(self._database, models)
        self._recaller = Recaller(self._database, settings, models)
        recorder = Recorder(self._database, WakeUps(settings.redis_url), settings)
        facts, users = Facts(self._database), Users(self._database)
        self.record, self.record_many = recorder.record, recorder.record_many
        self.recall, self.search = self._recaller.recall, self._recaller.search
        self.remember_fact, self.recall_facts = facts.remember, facts.recall
        self.forget_fact, self.fact_history = facts.forget, facts.history
        self.get_user, self.put_user, self.delete_user = users.get, users.put, users.delete_user
        self.delete_session, self.delete_message = users.delete_session, users.delete_message
        self.sessions, self.messages = users.sessions, users.messages

    def close(self) -> None:
        self._recaller.close()
        self._database.close()

    def warm(self) -> None:
        self._model.check(None)
